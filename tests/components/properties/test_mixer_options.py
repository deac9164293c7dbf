"""What a token mixer other than softmax attention declares holds with options that change what it computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.verify.checks import compiles, gradients
from blockyard.weight_init import initialise
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.support.helpers import LENGTH, context, factory, has, stir, tiny, token_ids, traits

CASES: list[tuple[str, dict[str, Any]]] = [
    ("fixed_features", {"normalise": True}),
    ("fully_connected", {"bias": "full"}),
    ("monet", {"skip": "own"}),
    ("monet", {"skip": "own", "norms": False, "bias": False}),
    ("monet", {"norms": False}),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("mixer", "options"), CASES, ids=str)
def test_what_it_declares(mixer: str, options: dict[str, Any], causal: bool) -> None:
    declared = traits(mixer)
    model = tiny(causal=causal, token_mixer=mixer, options={"token_mixer": options})
    gradients(model, LENGTH)
    if causal:
        causality(model, LENGTH)
    if declared.padding:
        padding(model, LENGTH)
    if declared.packing:
        packing(model, LENGTH)
    if causal and has(mixer, "init_cache"):
        cached_decoding(model, LENGTH)


@pytest.mark.parametrize(("mixer", "options"), CASES, ids=str)
@pytest.mark.full
def test_compiled_and_exported(mixer: str, options: dict[str, Any]) -> None:
    model = tiny(token_mixer=mixer, options={"token_mixer": options}, sizes={"depth": 1})
    compiles(model, LENGTH)
    exported = torch.export.export(model, (token_ids(2, LENGTH),), strict=False).module()
    assert_close(exported(token_ids(2, LENGTH, seed=1)), model(token_ids(2, LENGTH, seed=1)))


WITHOUT_PORTS = {
    "decayed_attention": {"decay": "channel"},
    "linear_attention": {"feature": "polynomial_relu"},
    "non_local": {},
}


@pytest.mark.parametrize("name", WITHOUT_PORTS)
@pytest.mark.parametrize("scheme", ["rope", "alibi"])
def test_a_scheme_that_is_there_for_other_layers_acts_in_none_without_a_port(name: str, scheme: str) -> None:
    ctx = context(causal=True)
    mixer = stir(initialise(factory("token_mixer", name, WITHOUT_PORTS[name])(ctx), 0)).double()
    position = factory("position", scheme)(ctx).double()
    x, index = torch.randn(2, 6, 16, dtype=torch.float64), torch.arange(6)
    coords = index.double()[None, :, None]
    plain, with_scheme = (mixer(x, Seq(index, coords, position=each)) for each in (None, position))
    torch.testing.assert_close(with_scheme, plain, rtol=0, atol=0)
