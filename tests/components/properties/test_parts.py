"""Channel mixers, norms, fused blocks and initial weights, for every choice in conf/."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.channel_mixer.mlp import MLP
from blockyard.contracts import ChannelMixer, Context, Inputs, Seq, Traits
from blockyard.model._prefix import Prefix
from blockyard.token_mixer.attention import Attention
from blockyard.weight_init import Init, initialise
from tests.components.properties.checks import fused_equals_unfused, tokens_alone
from tests.support.every import every
from tests.support.helpers import axes_of, blocks, choices, context, factory, legal, node, stir, tiny, token_ids
from tests.support.pairwise import in_pairs


@pytest.mark.parametrize("name", choices("channel_mixer"))
def test_channel_mixers_never_mix_tokens(name: str) -> None:
    mixer = stir(factory("channel_mixer", name)(context())).double().eval()
    if mixer.empty:
        assert_close(mixer(torch.ones(2, 5, 16)), torch.zeros(2, 5, 16), rtol=0, atol=0)
        return
    tokens_alone(mixer, 16)


@pytest.mark.parametrize("name", choices("norm"))
def test_norms_never_mix_tokens(name: str) -> None:
    """Also in training, unless it declares `across_tokens`."""
    norm = stir(factory("norm", name)(context())).double()
    tokens_alone(norm.eval(), 16)
    if getattr(norm, "across_tokens", False):
        with pytest.raises(AssertionError):
            tokens_alone(norm.train(), 16)
    else:
        tokens_alone(norm.train(), 16)


class Smears(MLP):
    """Planted: subtracts the mean over tokens."""

    def mix(self, h: Tensor) -> Tensor:
        return super().mix(h) - h.mean(1, keepdim=True)


def test_planted_smear_is_caught() -> None:
    with pytest.raises(AssertionError):
        tokens_alone(stir(Smears(context())).double(), 16)


class NotesSeq(MLP):
    """Keeps the facts that its block passes."""

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        self.seq = seq
        return super().forward(x, seq)


class TakesXAlone(MLP):
    """A mixer of one's own that was written before `forward` took `seq`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize("block", [name for name in blocks() if not node("block", name)[0].single])
def test_blocks_pass_the_facts_of_the_sequence_to_channel_mixers(block: str) -> None:
    """A mixer whose `forward` takes x alone gives the same."""
    options = {"block": {"fused": False}} if "fused" in node("block", block)[1] else {}
    inputs = Inputs(token_ids(2, 6), lengths=torch.tensor([6, 4]))
    outputs = []
    for mixer in (NotesSeq, TakesXAlone):
        model = tiny(block=block, options=options, replace={"channel_mixer": mixer}, sizes={"variable": True})
        outputs.append(model(inputs))
        if mixer is NotesSeq:
            assert every(torch.equal(b.channel_mixer.seq.valid.sum(1), inputs.lengths) for b in model.blocks)
    assert torch.equal(*outputs)


def projected(family: str) -> list[str]:
    """Choices that a fused block accepts."""
    return [name for name in choices(family) if hasattr(node(family, name)[0], "mix")]


def fusing() -> list[str]:
    """Blocks that can fuse."""
    return [name for name in choices("block") if node("block", name)[0].fuses({"fused": True})]


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Token mixers that a fused block accepts, with the options that change their projections."""
    variants = ({}, {"bias": True}, {"num_kv_heads": 2, "qk_norm": True})
    parameters = {name: inspect.signature(node("token_mixer", name)[0]).parameters for name in projected("token_mixer")}
    return [(name, options) for name in parameters for options in variants if options.keys() <= parameters[name].keys()]


VARIANTS = {f"{mixer} {options or ''}".strip(): (mixer, options) for mixer, options in variants()}


@pytest.mark.parametrize(
    ("block", "variant", "channel", "bias"),
    in_pairs([*product(fusing(), VARIANTS, projected("channel_mixer"), (False, True))]),
)
@pytest.mark.sampled(3)
def test_fused_equals_unfused(block: str, variant: str, channel: str, bias: bool) -> None:
    mixer, options = VARIANTS[variant]
    for causal in (False, True):
        pair = [
            tiny(
                causal=causal,
                block=block,
                token_mixer=mixer,
                channel_mixer=channel,
                position="rope" if legal(mixer, "rope", 1) else "none",
                options={"block": {"fused": fused}, "channel_mixer": {"bias": bias}, "token_mixer": options},
            )
            for fused in (True, False)
        ]
        fused_equals_unfused(*pair, 6)


class Scaled(MLP):
    """Planted: forward scales what `mix` does not."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.1 * super().forward(x)


def test_planted_difference_is_caught() -> None:
    pair = [
        tiny(block="parallel", options={"block": {"fused": fused}}, replace={"channel_mixer": Scaled})
        for fused in (True, False)
    ]
    with pytest.raises(AssertionError):
        fused_equals_unfused(*pair, 6)


class Lookback(Attention):
    """Bidirectional as a class; an option makes it causal only."""

    traits = replace(Attention.traits, causal=False)

    def __init__(self, ctx: Context, *, backwards: bool = False) -> None:
        if backwards:
            self.traits = self.traits_for({"backwards": True})
        super().__init__(ctx)

    @classmethod
    def traits_for(cls, options: dict[str, Any]) -> Traits:
        return replace(cls.traits, causal=True, bidirectional=False) if options.get("backwards") else cls.traits


@pytest.mark.parametrize("block", blocks())
def test_traits_follow_the_options(block: str) -> None:
    backwards = partial(Lookback, backwards=True)
    assert tiny(block=block, causal=True, replace={"token_mixer": backwards})(token_ids(2, 6)).shape == (2, 6, 11)
    with pytest.raises(ValueError, match="Lookback is causal only"):
        tiny(block=block, replace={"token_mixer": backwards})
    tiny(block=block, replace={"token_mixer": Lookback})
    with pytest.raises(ValueError, match="Lookback cannot be causal"):
        tiny(block=block, causal=True, replace={"token_mixer": Lookback})


def weights(**picks: object) -> dict[str, Tensor]:
    """Initial weights of a model, by path."""
    model = tiny(**picks)
    return {k: v.clone() for k, v in initialise(model.float(), 7).state_dict().items()}


@pytest.mark.parametrize("family", ["position", "norm", "block", "token_mixer", "channel_mixer"])
def test_swapping_a_part_leaves_other_weights_bit_identical(family: str) -> None:
    base = weights()
    for name in choices(family):
        other = weights(axes=axes_of(family, name), **{family: name})
        for path in base.keys() & other.keys():
            if family not in path:
                assert torch.equal(base[path], other[path]), path


def test_weights_do_not_depend_on_the_order_of_building() -> None:
    base = weights(position="learned", prefix=Prefix(True, 2))
    torch.manual_seed(123)
    assert every(torch.equal(base[k], v) for k, v in weights(position="learned", prefix=Prefix(True, 2)).items())
    more = weights(position="learned", prefix=Prefix(True, 0))
    assert torch.equal(base["prefix.class_token"], more["prefix.class_token"])
    assert base.keys() > more.keys()


def test_seeds_differ_and_paths_differ() -> None:
    model = tiny()
    first = copy.deepcopy(initialise(model, 0).state_dict())
    second = initialise(model, 1).state_dict()
    name = "blocks.0.token_mixer.proj_in.weight"
    assert not torch.equal(first[name], second[name])
    assert not torch.equal(first[name], first[name.replace(".0.", ".1.")])


def test_standard_deviations_are_as_declared() -> None:
    model = initialise(tiny(sizes={"dim": 128, "depth": 8}), 0)
    block = model.blocks[3]
    assert block.token_mixer.proj_in.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for layer in (block.token_mixer.proj_out, block.channel_mixer.proj_out):
        assert layer.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)


def test_what_is_added_to_the_stream_starts_at_its_scale() -> None:
    """Position vectors, sinusoids, class and register tokens: init_std, unless an option overrides it."""
    sizes = {"dim": 256, "grid": (64,), "init_std": 0.05}
    prefix = Prefix(class_token=True, registers=16)
    model = initialise(tiny(position="learned", prefix=prefix, sizes=sizes), 0)
    for vectors in (model.position.table, model.prefix.class_token, model.prefix.registers):
        assert vectors.std().item() == pytest.approx(0.05, rel=0.15)
        assert vectors.mean().abs().item() < 0.01
    other = initialise(tiny(position="learned", sizes=sizes, options={"position": {"std": 0.3}}), 0)
    assert other.position.table.std().item() == pytest.approx(0.3, rel=0.05)
    assert tiny(position="sinusoidal", sizes=sizes).position.scale == 0.05
    steps = tiny(position="sinusoidal", sizes=sizes).steps(token_ids(1, 64))
    waves = steps["placed"] - steps["embedded"]
    assert waves.square().mean().sqrt().item() == pytest.approx(0.05 / 2**0.5, rel=1e-6)


def test_tied_weights_are_initialised_once() -> None:
    loose, tied = tiny(causal=True), tiny(causal=True, options={"head": {"tied": True}})
    assert tied.head.proj.weight is tied.embedder.table
    tables = [initialise(model, 0).embedder.table for model in (loose, tied)]
    assert torch.equal(*tables)
    assert tied(token_ids(1, 6)).shape == (1, 6, 11)


class Undeclared(ChannelMixer):
    """Planted: a parameter without initial weights."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(ctx.dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class WrongParameter(Undeclared):
    """Planted: initialises another parameter."""

    def init_weights(self, init: Init) -> None:
        init.module.other = None
        init.zeros("other")


@pytest.mark.parametrize(
    ("planted", "message"), [(Undeclared, "declares no initial"), (WrongParameter, "leaves out gain")]
)
def test_undeclared_weights_are_refused(planted: type, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        tiny(replace={"channel_mixer": planted})
    assert planted.__name__ in str(refused.value)
    assert "blocks.0.channel_mixer" in str(refused.value)
