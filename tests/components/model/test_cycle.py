"""token_mixer=cycle: the mixers of its pattern in every layer, from the command line to the model."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import TokenMixer
from blockyard.runs.identity import identity
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.conv import Conv
from blockyard.token_mixer.cycle import Cycle
from blockyard.weight_init import initialise
from tests.components.properties.checks import (
    cached_decoding,
    causality,
    fused_equals_unfused,
    packing,
    padding,
    permutation,
    relative,
)
from tests.support.helpers import context, cycle_model, cycle_options, tiny, token_ids
from tests.support.tiny import DECODER

CODE = ("data=code", "tokenizer=char", *DECODER, "logger=none")


def mixers(overrides: list[str]) -> list[TokenMixer]:
    """The mixers of the model of a command line, which `check` must accept."""
    composed = compose([*CODE, "model.dim=16", "model.heads=2", *overrides])
    assert [str(issue) for issue in check(composed)] == []
    return Components(composed.config).meta_model().mixers


def issues(overrides: list[str]) -> str:
    """The issues that `check` reports, joined."""
    return "\n".join(str(issue) for issue in check(compose([*CODE, "model.dim=16", "model.heads=2", *overrides])))


def test_the_pattern_repeats_over_the_layers() -> None:
    overrides = ["token_mixer=cycle", "token_mixer.pattern=[conv,conv,attention]", "model.depth=5"]
    built = mixers([*overrides, "token_mixer.members.conv.kernel=5", "position=rope"])
    assert [type(mixer) for mixer in built] == [Conv, Conv, Attention, Conv, Conv]
    assert [mixer.kernel for mixer in built if isinstance(mixer, Conv)] == [5] * 4


def test_a_choice_outside_the_yaml_is_found_by_name() -> None:
    overrides = ["token_mixer=cycle", "token_mixer.pattern=[gru,linear_attention]", "model.depth=2"]
    built = mixers([*overrides, "token_mixer.members.linear_attention.feature=relu"])
    assert [type(mixer).__name__ for mixer in built] == ["GRU", "LinearAttention"]
    assert built[1].feature == "relu"


def test_a_custom_node_under_a_custom_name() -> None:
    wide = "{wide: {_target_: blockyard.token_mixer.conv.Conv, _partial_: true, kernel: 9}}"
    overrides = ["token_mixer=cycle", "token_mixer.pattern=[conv,wide]", f"token_mixer.members={wide}"]
    assert [mixer.kernel for mixer in mixers(overrides)] == [3, 9, 3, 9]


def test_the_frozen_config_and_identity_include_members() -> None:
    overrides = [*CODE, "token_mixer=cycle", "token_mixer.pattern=[conv,attention]"]
    plain, wide = compose(overrides), compose([*overrides, "token_mixer.members.conv.kernel=5"])
    assert plain.config["token_mixer"]["members"]["conv"]["bias"] is True
    assert identity(plain.config) == identity(compose([*CODE, "token_mixer=cycle"]).config)
    assert identity(plain.config) != identity(wide.config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["token_mixer.pattern=[convv]"],
            r"pattern: 'convv' is neither a token_mixer nor one of token_mixer.members \(try conv",
        ),
        (["token_mixer.pattern=[]"], "pattern is empty; name at least one"),
        (["token_mixer.pattern=[cycle,conv]"], "members.cycle is a cycle itself"),
        (["token_mixer.pattern=[conv,gru,rnn]", "model.depth=2"], "has 3 entries and model.depth=2 uses only 2"),
        (["token_mixer.members.convv.kernel=5"], r"members.convv: is not a node.*conv"),
        (["token_mixer.members.conv.kernl=5"], "has no option 'kernl'.*kernel"),
        (["token_mixer.members.conv.kernel=0"], r"kernel: invalid value 0: expected int >= 1"),
        (["token_mixer.pattern=conv"], "invalid value 'conv': expected a list of text"),
        (["token_mixer.pattern=[conv,shift]", "position=rope"], "acts on queries_and_keys, which token_mixer=cycle"),
        (["token_mixer.pattern=[conv,fourier]"], "token_mixer=cycle cannot be causal; model=decoder requires it"),
        (["token_mixer.pattern=[conv,attention]", "model.prefix.registers=1"], "does not support class and register"),
        (["token_mixer.pattern=[attention,gmlp]", "data.packed=true"], "cannot keep them apart"),
        (["token_mixer.pattern=[conv,attention]", "block=parallel"], "has none to share: block.fused=false"),
        (
            ["token_mixer.pattern=[wide]", "token_mixer.members={wide: {_target_: torch.nn.GELU, _partial_: true}}"],
            "torch.nn.GELU is not a TokenMixer",
        ),
        (
            ["token_mixer.pattern=[a]", "token_mixer.members={a: {_target_: os.system, _partial_: true}}"],
            "not in an allowed package",
        ),
    ],
)
def test_invalid_patterns_and_members_are_refused(overrides: list[str], message: str) -> None:
    reported = issues(["token_mixer=cycle", *overrides])
    assert re.search(message, reported, re.DOTALL), reported


def test_an_unused_member_is_refused() -> None:
    options = cycle_options("conv", "attention")["token_mixer"] | {"pattern": ("conv",)}
    with pytest.raises(ValueError, match=r"members.attention is not in token_mixer.pattern=\[conv\]"):
        Cycle(context(), **options)


def test_traits_are_combined() -> None:
    def traits(*pattern: str) -> Any:
        return Cycle.traits_for(cycle_options(*pattern)["token_mixer"])

    assert traits("attention") == Attention.traits
    both = traits("conv", "attention")
    assert (both.axes, both.ports) == (Conv.traits.axes, Attention.traits.ports)
    assert both.causal
    assert both.packing
    assert not both.equivariant
    assert not both.prefix
    assert not traits("attention", "token_mlp").any_length
    assert traits("fixed_features", "attention").reads_features
    assert Cycle.has("init_cache", cycle_options("gru", "conv")["token_mixer"])
    assert not Cycle.has("init_cache", cycle_options("gru", "pool")["token_mixer"])


@pytest.mark.parametrize("name", ["attention", "gru"])
def test_a_cycle_of_one_equals_that_mixer_bitwise(name: str) -> None:
    """The same weights under the same names."""
    ours, theirs = cycle_model(name), tiny(token_mixer=name, sizes={"depth": 4})
    for model in (ours, theirs):
        initialise(model.float(), 3)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert_close(ours(token_ids(2, 6)), theirs(token_ids(2, 6)), rtol=0, atol=0)


PATTERNS = [("conv", "conv", "attention"), ("gru", "linear_attention"), ("linear_recurrence", "shift", "long_conv")]


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_declared_properties_hold(pattern: tuple[str, ...]) -> None:
    model = cycle_model(*pattern, causal=True)
    for check_property in (causality, padding, packing, cached_decoding):
        check_property(model, 6)
    for check_property in (padding, packing):
        check_property(cycle_model(*pattern), 6)


def test_positions_act_in_the_layers_that_support_them() -> None:
    permutation(cycle_model("attention", "linear_attention"), 6)
    relative(cycle_model("conv", "attention", position="rope"), 6)
    with pytest.raises(AssertionError):
        relative(cycle_model("conv", "attention", position="learned"), 6)
    rotated, plain = (cycle_model("conv", "attention", position=name)(token_ids(2, 6)) for name in ("rope", "none"))
    assert (rotated - plain).abs().max() > 1e-6


def test_every_layer_has_its_own_kind_of_cache() -> None:
    cache = cycle_model("conv", "attention", causal=True).init_cache(2)
    assert [type(layer).__name__ for layer in cache.layers] == ["InputCache", "KVCache"] * 2
    with pytest.raises(ValueError, match="token_mixer Pool cannot decode"):
        cycle_model("conv", "pool", causal=True).init_cache(2)


def test_a_cycle_of_fusable_mixers_fuses() -> None:
    pair = [
        cycle_model("attention", "shift", block="parallel", options={"block": {"fused": fused}})
        for fused in (True, False)
    ]
    fused_equals_unfused(*pair, 6)


class Stuck(Cycle):
    """Planted: every layer takes the first mixer of the pattern."""

    def __new__(cls, ctx: Any, **options: Any) -> Any:
        return super().__new__(cls, ctx.at(0), **options)


def test_planted_constant_pattern_is_caught() -> None:
    options = cycle_options("conv", "attention")["token_mixer"]
    types = [type(factory(context(depth=4).at(n), **options)) for factory in (Cycle, Stuck) for n in range(4)]
    assert types[:4] == [Conv, Attention] * 2
    assert types[4:] != [Conv, Attention] * 2
