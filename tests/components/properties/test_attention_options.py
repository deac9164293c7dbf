"""What a token mixer declares holds with each option of softmax attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from blockyard.contracts import Memory
from blockyard.token_mixer.attention import Attention
from blockyard.verify.checks import bfloat16, compiles, gradients
from tests.components.attention_options import APART, CASES, OPTIONS
from tests.components.properties.checks import cached_decoding, causality, fused_equals_unfused, packing, padding
from tests.components.reference.inputs import sequence
from tests.support.helpers import LENGTH, context, stir, tiny, token_ids

CASE = pytest.mark.parametrize(("mixer", "options"), CASES, ids=str)


@CASE
@pytest.mark.parametrize("position", ["rope", "alibi"])
def test_a_decoder(mixer: str, options: dict[str, Any], position: str) -> None:
    model = tiny(causal=True, token_mixer=mixer, position=position, options={"token_mixer": options})
    causality(model, LENGTH)
    padding(model, LENGTH)
    packing(model, LENGTH)
    cached_decoding(model, LENGTH)


@CASE
def test_an_encoder(mixer: str, options: dict[str, Any]) -> None:
    model = tiny(token_mixer=mixer, position="rope", options={"token_mixer": options})
    padding(model, LENGTH)
    packing(model, LENGTH)
    gradients(model, LENGTH)


@CASE
def test_in_low_precision_and_compiled(mixer: str, options: dict[str, Any]) -> None:
    # A layer of each option: what is traced grows with the layers.
    model = tiny(causal=True, token_mixer=mixer, options={"token_mixer": options}, sizes={"depth": 1})
    bfloat16(model, LENGTH)
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
