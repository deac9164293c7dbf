"""What a token mixer declares holds with each option of softmax attention.

The full suite also has every option as a decoder under both position schemes, and compiled and exported by itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.channel_mixer.mlp import MLP
from blockyard.contracts import Memory
from blockyard.token_mixer.attention import Attention
from blockyard.verify.checks import bfloat16, compiles, gradients
from tests.components.attention_options import APART, CASES, OPTIONS
from tests.components.properties.checks import cached_decoding, causality, fused_equals_unfused, packing, padding
from tests.components.reference.inputs import sequence
from tests.support.helpers import LENGTH, context, stir, tiny, token_ids

CASE = pytest.mark.parametrize(("mixer", "options"), CASES, ids=str)


# Under rotations and under a bias of scores: each case under one of them, the mixers of a kind in turn.
SCHEMES = ("rope", "alibi")
DECODERS = [
    pytest.param(*case, position, marks=() if number % 2 == place else pytest.mark.full)
    for number, case in enumerate(CASES)
    for place, position in enumerate(SCHEMES)
]
# Each option occurs in one of these that are traced; in the full suite each is traced by itself.
TRACED: list[tuple[str, dict[str, Any]]] = [
    ("attention", {"gate": "channel", "num_kv_heads": 2, "bias": True, "qk_norm": "full", "sink": "learned"}),
    ("attention", {"qk_norm": "sphere", "softcap": 2.0, "sink": "zero", "conv": 3, "score_scale": 0.3}),
    ("attention", {"qk_norm": "cosine", "exclusive": True, "gate": "head"}),
    ("attention", {"qk_norm": "layer", "tied_kv": True, "score_scale": "log_n"}),
    ("attention", {"fused": False, "score_scale": "learned", "gate": "head"}),
    ("attention", {"project": ("output",), "map": partial(MLP, expansion=2.0)}),
    ("windowed_attention", {"stride": 2, "window": 2, "sink": "learned", "qk_norm": True}),
    ("windowed_attention", {"chunked": True, "gate": "head"}),
    ("memory_attention", {"conv": 3, "gate": "head", "softcap": 2.0}),
    ("strict_attention", {"num_kv_heads": 2, "qk_norm": "sphere"}),
]


@pytest.mark.parametrize(("mixer", "options", "position"), DECODERS, ids=str)
@pytest.mark.sampled(2)
def test_a_decoder(mixer: str, options: dict[str, Any], position: str) -> None:
    model = tiny(causal=True, token_mixer=mixer, position=position, options={"token_mixer": options})
    causality(model, LENGTH)
    padding(model, LENGTH)
    packing(model, LENGTH)
    cached_decoding(model, LENGTH)


@CASE
@pytest.mark.sampled(2)
def test_an_encoder(mixer: str, options: dict[str, Any]) -> None:
    model = tiny(token_mixer=mixer, position="rope", options={"token_mixer": options})
    padding(model, LENGTH)
    packing(model, LENGTH)
    gradients(model, LENGTH)


def one_layer(mixer: str, options: dict[str, Any]) -> nn.Module:
    """A decoder of one layer: what is traced grows with the layers."""
    return tiny(causal=True, token_mixer=mixer, options={"token_mixer": options}, sizes={"depth": 1})


@CASE
def test_in_low_precision(mixer: str, options: dict[str, Any]) -> None:
    bfloat16(one_layer(mixer, options), LENGTH)


def test_every_option_is_traced() -> None:
    kinds = {(name, str(value)) for _, options in CASES for name, value in options.items()}
    traced = {(name, str(value)) for _, options in TRACED for name, value in options.items()}
    named = {name for name, _ in kinds}
    assert named <= {name for name, _ in traced}
    named = {each for each in kinds if each[1].isidentifier()}
    assert named <= traced


@pytest.mark.parametrize(
    ("mixer", "options"), [*TRACED, *(pytest.param(*case, marks=pytest.mark.full) for case in CASES)], ids=str
)
@pytest.mark.sampled(100)
def test_compiled_and_exported(mixer: str, options: dict[str, Any]) -> None:
    model = one_layer(mixer, options)
    compiles(model, LENGTH)
    exported = torch.export.export(model, (token_ids(2, LENGTH),), strict=False).module()
    assert_close(exported(token_ids(2, LENGTH, seed=1)), model(token_ids(2, LENGTH, seed=1)))


@pytest.mark.parametrize("options", [each for each in OPTIONS if each not in APART], ids=str)
def test_in_a_fused_block(options: dict[str, Any]) -> None:
    pair = [
        tiny(block="parallel", options={"block": {"fused": fused}, "token_mixer": options}) for fused in (True, False)
    ]
    fused_equals_unfused(*pair, LENGTH)


@pytest.mark.parametrize("options", APART, ids=str)
def test_a_fused_block_needs_one_product(options: dict[str, Any]) -> None:
    assert not Attention.has("mix", options)
    with pytest.raises(
        ValueError, match=r"block\.fused=true joins the projections of both mixers, and Attention has none"
    ):
        tiny(block="parallel", options={"token_mixer": options})
    causality(tiny(causal=True, block="parallel", options={"block": {"fused": False}, "token_mixer": options}), LENGTH)


@pytest.mark.parametrize("options", [each for each in OPTIONS if Attention.traits_for(each).cross], ids=str)
def test_a_sequence_as_its_own_memory(options: dict[str, Any]) -> None:
    """Cross-attention to the sequence itself equals bidirectional self-attention."""
    mixer = stir(Attention(context(), **options)).double()
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64)
    assert_close(mixer(x, sequence(LENGTH), memory=Memory(x, sequence(LENGTH))), mixer(x, sequence(LENGTH)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_layers_that_read_earlier_keys(options: dict[str, Any]) -> None:
    model = tiny(causal=True, position="rope", options={"token_mixer": {**options, "kv_every": 2}})
    causality(model, LENGTH)
    cached_decoding(model, LENGTH)
