"""token_mixer=beside: several mixers in every layer, from the command line to the model."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.ops import maps
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.beside import Beside
from blockyard.token_mixer.gru import GRU
from blockyard.token_mixer.mamba2 import Mamba2
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import LENGTH, context, tiny, token_ids
from tests.support.tiny import DECODER

CODE = ("data=code", "tokenizer=char", *DECODER, "logger=none", "model.dim=16", "model.heads=2", "token_mixer=beside")


def issues(*overrides: str) -> str:
    return "\n".join(str(issue) for issue in check(compose([*CODE, *overrides])))


@pytest.mark.parametrize("join", ["sum", "normed"])
def test_what_mixers_give_is_added(join: str) -> None:
    members = {"attention": partial(Attention, num_kv_heads=2), "gru": partial(GRU)}
    both = stirred(Beside(context(causal=True), mixers=("attention", "gru"), members=members, join=join)).eval()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    each = [mixer(x, sequence(6)) for mixer in both.members.values()]
    if join == "normed":
        each = [
            gain * y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() / 2
            for y, gain in zip(each, both.gains, strict=True)
        ]
    assert_close(both(x, sequence(6)), each[0] + each[1])
    assert (both(x, sequence(6)) - each[0]).abs().max() > 1e-2


def test_from_the_command_line() -> None:
    overrides = ["token_mixer.mixers=[attention,mamba2]", "token_mixer.members.mamba2.state=5", "position=rope"]
    composed = compose([*CODE, *overrides])
    assert [str(issue) for issue in check(composed)] == []
    built = Components(composed.config).meta_model().mixers
    assert [type(part) for part in built[0].members.values()] == [Attention, Mamba2]
    assert {type(mixer) for mixer in built} == {Beside}


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("token_mixer.mixers=[attention]", "side by side are at least two mixers of different names"),
        ("token_mixer.mixers=[attention,attention]", "side by side are at least two mixers of different names"),
        (
            "token_mixer.mixers=[attention,attn]",
            "'attn' is neither a token_mixer nor one of token_mixer.members",
        ),
        ("token_mixer.mixers=[attention,cycle]", "cycle holds mixers itself"),
        ("token_mixer.mixers=[attention,token_mlp]", "token_mixer"),
    ],
)
def test_refusals(override: str, reason: str) -> None:
    assert reason in issues(override)


def test_in_some_layers() -> None:
    """As a kind of layers; a cycle refuses it and says so."""
    kinds = ["layers.pattern=[base,both]", "layers.kinds.both=[token_mixer=beside]", "token_mixer=attention"]
    composed = compose([*CODE[:-1], *kinds, "model.depth=4"])
    assert [str(issue) for issue in check(composed)] == []
    built = Components(composed.config).meta_model().mixers
    assert [type(mixer) for mixer in built] == [Attention, Beside] * 2
    cycle = ["token_mixer=cycle", "token_mixer.pattern=[attention,beside]", "model.depth=2"]
    text = "\n".join(str(issue) for issue in check(compose([*CODE[:-1], *cycle])))
    assert "layers.kinds.both=[token_mixer=beside]" in text


def test_a_scheme_without_a_mixer_for_it_is_refused() -> None:
    assert "position" in issues("token_mixer.mixers=[gru,conv]", "position=rope")


@pytest.mark.parametrize("join", ["sum", "normed"])
def test_members_keep_what_they_declare(join: str) -> None:
    """With a window, whose cache drops tokens, and a recurrence, whose state is constant."""
    options = {"mixers": ("windowed_attention", "decayed_attention"), "members": members(), "join": join}
    model = tiny(causal=True, token_mixer="beside", position="rope", options={"token_mixer": options})
    causality(model, LENGTH)
    padding(model, LENGTH)
    packing(model, LENGTH)
    cached_decoding(model, LENGTH)
    cache = model.init_cache(2)
    model(token_ids(2, LENGTH), cache=cache)
    assert cache.layers[0].bytes == sum(part.bytes for part in cache.layers[0].parts) > 0
    assert cache.layers[0].kind == "key-value cache and recurrent state"
    taken_back = cache.snapshot()
    after = model(token_ids(2, 1), cache=cache)
    assert_close(model(token_ids(2, 1), cache=taken_back), after)


def members() -> dict[str, object]:
    from tests.support.helpers import factory

    return {name: factory("token_mixer", name) for name in ("windowed_attention", "decayed_attention")}


def test_maps_and_kernels_are_of_members() -> None:
    model = tiny(causal=True, token_mixer="beside")
    (first, *_) = maps.attention(model, token_ids(2, LENGTH))
    assert first.layer == "blocks.0.token_mixer.members.attention"
    layers = {entry["layer"]: entry["kernel"] for entry in model.kernels(token_ids(2, LENGTH))}
    assert layers["blocks.0.token_mixer.members.attention"] == "flash"
    assert "blocks.0.token_mixer" not in layers


def test_keys_of_two_members_have_one_name() -> None:
    """Two attentions would give keys under one name: neither gives any."""
    two = {"near": partial(Attention), "far": partial(Attention, num_kv_heads=1), "gru": partial(GRU)}
    assert (
        Beside(context(causal=True), mixers=("near", "far"), members={k: two[k] for k in ("near", "far")}).gives == {}
    )
    assert (
        "keys_and_values"
        in Beside(context(causal=True), mixers=("near", "gru"), members={k: two[k] for k in ("near", "gru")}).gives
    )
    three = {"near": partial(Attention), "far": partial(Attention), "third": partial(Attention)}
    assert Beside(context(causal=True), mixers=tuple(three), members=three).gives == {}
