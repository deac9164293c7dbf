"""token_mixer=cycle: the mixers of its pattern, layer by layer, from the command line to the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.compose_many import Composer
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
from tests.helpers import context, factory, symbols, tiny

BASE = ["data=code", "tokenizer=char", "model=decoder", "head=token", "objective=next_token", "logger=none"]


def cycle(*pattern: str, **options: dict[str, Any]) -> dict[str, Any]:
    """The options of a cycle of choices."""
    members = {name: factory("token_mixer", name, options.get(name)) for name in dict.fromkeys(pattern)}
    return {"token_mixer": {"pattern": pattern, "members": members}}


def made(*pattern: str, depth: int = 4, options: dict[str, Any] | None = None, **picks: Any) -> torch.nn.Module:
    """A tiny model of a cycle."""
    sizes = {"depth": depth, **picks.pop("sizes", {})}
    return tiny(token_mixer="cycle", options={**cycle(*pattern), **(options or {})}, sizes=sizes, **picks)


def mixers(words: list[str]) -> list[TokenMixer]:
    """The mixers of a command line's model. Fails where `check` refuses it."""
    composed = compose([*BASE, "model.dim=16", "model.heads=2", *words])
    assert [str(issue) for issue in check(composed)] == []
    return Components(composed.config).meta_model().mixers


def issues(words: list[str]) -> str:
    """What `check` says."""
    return "\n".join(str(issue) for issue in check(compose([*BASE, "model.dim=16", "model.heads=2", *words])))


def test_the_pattern_goes_on_over_the_layers() -> None:
    words = ["token_mixer=cycle", "token_mixer.pattern=[conv,conv,attention]", "model.depth=5"]
    found = mixers([*words, "token_mixer.members.conv.kernel=5", "position=rope"])
    assert [type(mixer) for mixer in found] == [Conv, Conv, Attention, Conv, Conv]
    assert [mixer.kernel for mixer in found if isinstance(mixer, Conv)] == [5] * 4


def test_a_choice_that_is_not_in_the_file_is_drawn_by_its_name() -> None:
    words = ["token_mixer=cycle", "token_mixer.pattern=[gru,linear_attention]", "model.depth=2"]
    found = mixers([*words, "token_mixer.members.linear_attention.feature=relu"])
    assert [type(mixer).__name__ for mixer in found] == ["GRU", "LinearAttention"]
    assert found[1].feature == "relu"


def test_a_node_of_ones_own_under_a_name_of_ones_own() -> None:
    wide = "{wide: {_target_: blockyard.token_mixer.conv.Conv, _partial_: true, kernel: 9}}"
    words = ["token_mixer=cycle", "token_mixer.pattern=[conv,wide]", f"token_mixer.members={wide}"]
    assert [mixer.kernel for mixer in mixers(words)] == [3, 9, 3, 9]


def test_the_frozen_config_says_all_and_names_the_arm() -> None:
    words = [*BASE, "token_mixer=cycle", "token_mixer.pattern=[conv,attention]"]
    plain, wide = compose(words), compose([*words, "token_mixer.members.conv.kernel=5"])
    assert plain.config["token_mixer"]["members"]["conv"]["bias"] is True
    assert identity(plain.config) == identity(compose([*BASE, "token_mixer=cycle"]).config)
    assert identity(plain.config) != identity(wide.config)
    for line in (words, [*words, "token_mixer.members.conv.kernel=5"]):
        assert Composer().compose(line).config == compose(line).config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["token_mixer.pattern=[convv]"],
            r"pattern: 'convv' is neither a token_mixer nor one of token_mixer.members \(works: conv",
        ),
        (["token_mixer.pattern=[]"], "pattern is empty; name at least one"),
        (["token_mixer.pattern=[cycle,conv]"], "members.cycle is a cycle itself"),
        (["token_mixer.pattern=[conv,gru,rnn]", "model.depth=2"], "has 3 places, model.depth=2 reaches 2"),
        (["token_mixer.members.convv.kernel=5"], r"members.convv: is no node.*conv"),
        (["token_mixer.members.conv.kernl=5"], "has no option 'kernl'.*kernel"),
        (["token_mixer.members.conv.kernel=0"], r"kernel: 0 does not fit: expected int >= 1"),
        (["token_mixer.pattern=conv"], "'conv' does not fit: expected a list of text"),
        (["token_mixer.pattern=[conv,shift]", "position=rope"], "acts on queries_and_keys, which token_mixer=cycle"),
        (["token_mixer.pattern=[conv,fourier]"], "hides the future, token_mixer=cycle cannot"),
        (["token_mixer.pattern=[conv,attention]", "model.prefix.registers=1"], "no place for class and register"),
        (["token_mixer.pattern=[attention,gmlp]", "data.packed=true"], "cannot keep them apart"),
        (["token_mixer.pattern=[conv,attention]", "block=parallel"], "has none to share: block.fused=false"),
        (
            ["token_mixer.pattern=[wide]", "token_mixer.members={wide: {_target_: torch.nn.GELU, _partial_: true}}"],
            "torch.nn.GELU is no TokenMixer",
        ),
        (
            ["token_mixer.pattern=[a]", "token_mixer.members={a: {_target_: os.system, _partial_: true}}"],
            "of no allowed package",
        ),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], said: str) -> None:
    import re

    assert re.search(said, issues(["token_mixer=cycle", *words]), re.DOTALL), issues(["token_mixer=cycle", *words])


def test_a_member_without_a_place_is_refused() -> None:
    options = cycle("conv", "attention")["token_mixer"] | {"pattern": ("conv",)}
    with pytest.raises(ValueError, match=r"members.attention is not in token_mixer.pattern=\[conv\]"):
        Cycle(context(), **options)


def test_traits_are_combined() -> None:
    def traits(*pattern: str) -> Any:
        return Cycle.traits_for(cycle(*pattern)["token_mixer"])

    assert traits("attention") == Attention.traits
    both = traits("conv", "attention")
    assert (both.axes, both.ports) == (Conv.traits.axes, Attention.traits.ports)
    assert both.causal
    assert both.packing
    assert not both.equivariant
    assert not both.prefix
    assert not traits("attention", "token_mlp").any_length
    assert traits("fixed_features", "attention").reads_features
    assert Cycle.has("init_cache", cycle("gru", "conv")["token_mixer"])
    assert not Cycle.has("init_cache", cycle("gru", "pool")["token_mixer"])


@pytest.mark.parametrize("name", ["attention", "gru"])
def test_a_cycle_of_one_is_that_mixer_bit_by_bit(name: str) -> None:
    """The same weights, under the same names."""
    ours, theirs = made(name), tiny(token_mixer=name, sizes={"depth": 4})
    for model in (ours, theirs):
        initialise(model.float(), 3)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert_close(ours(symbols(2, 6)), theirs(symbols(2, 6)), rtol=0, atol=0)


PATTERNS = [("conv", "conv", "attention"), ("gru", "linear_attention"), ("linear_recurrence", "shift", "long_conv")]


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_promises_are_kept(pattern: tuple[str, ...]) -> None:
    model = made(*pattern, causal=True)
    for promise in (causality, padding, packing, cached_decoding):
        promise(model, 6)
    for promise in (padding, packing):
        promise(made(*pattern), 6)


def test_order_and_rotation_in_the_layers_that_have_them() -> None:
    permutation(made("attention", "linear_attention"), 6)
    relative(made("conv", "attention", position="rope"), 6)
    with pytest.raises(AssertionError):
        relative(made("conv", "attention", position="learned"), 6)
    turned, plain = (made("conv", "attention", position=name)(symbols(2, 6)) for name in ("rope", "none"))
    assert (turned - plain).abs().max() > 1e-6


def test_caches_are_those_of_the_layers() -> None:
    cache = made("conv", "attention", causal=True).init_cache(2)
    assert [type(layer).__name__ for layer in cache.layers] == ["RowCache", "KVCache"] * 2
    with pytest.raises(ValueError, match="token_mixer Pool cannot decode"):
        made("conv", "pool", causal=True).init_cache(2)


def test_mixers_that_can_all_be_fused_are() -> None:
    pair = [
        made("attention", "shift", block="parallel", options={"block": {"fused": fused}}) for fused in (True, False)
    ]
    fused_equals_unfused(*pair, 6)


class Stuck(Cycle):
    """Planted: every layer takes the first of the pattern."""

    def __new__(cls, ctx: Any, **options: Any) -> Any:
        return super().__new__(cls, ctx.at(0), **options)


def test_planted_standstill_is_caught() -> None:
    options = cycle("conv", "attention")["token_mixer"]
    found = [type(factory(context(depth=4).at(n), **options)) for factory in (Cycle, Stuck) for n in range(4)]
    assert found[:4] == [Conv, Attention] * 2
    assert found[4:] != [Conv, Attention] * 2
