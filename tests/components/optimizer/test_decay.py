"""Weight decay applies to linear maps only, and to no bias, gain or learned vector; for every choice in conf/."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from blockyard.config import schema
from blockyard.contracts import CodeTokenizer, DataSpec, ImageTokenizer, NoWeightDecay, Tokenizer
from blockyard.model._prefix import Prefix
from blockyard.optimizer._param_groups import hidden_matrices, split_by_decay
from blockyard.token_mixer.fully_connected import FullyConnected
from blockyard.weight_init import initialise
from tests.components.model.tiny_models import build_tiny
from tests.support.every import every
from tests.support.helpers import GRIDS, choices, context, factory, node, tiny

DATA = {
    "image": DataSpec("image", (3, 32, 32)),
    "views": DataSpec("views", (2, 3, 32, 32)),
    "text": DataSpec("text", (6,)),
    "symbols": DataSpec("symbols", (6,), vocabulary=11),
    "series": DataSpec("series", (32, 1), target="values", values=(8, 1)),
    "audio": DataSpec("audio", (4000,), rate=8000),
    "vector": DataSpec("vector", (5,), target="class", classes=2),
    "graph": DataSpec("graph", (6, 3), variable=True, target="values", values=(1,), pairs=6),
}
GRAY = DataSpec("image", (1, 8, 8), levels=17)  # of which token ids are made
BUILT = ("token_mixer", "channel_mixer", "norm", "position", "head")  # from a Context and options alone
CHOICES = [
    (family, name) for family in (*BUILT, "block", "model", "tokenizer") for name in choices(family) if name != "none"
]


def variants(target: type, defaults: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The default options, then each boolean flipped and each literal value, one at a time."""
    if issubclass(target, Tokenizer):  # one of them may load pretrained weights, and one reads its vocabulary in a file
        yield {"vocab_size": 300} if defaults.get("vocab_size", 0) is None else {}
        return
    yield {}
    for name, option in schema.options(target).items():
        hint = option.annotation
        if hint is bool:
            yield {name: not defaults.get(name, option.default)}
        for value in typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ():
            yield {name: value}


def built(family: str, name: str) -> Iterator[nn.Module]:
    """A choice with its initial weights, in every valid variant."""
    target, defaults = node(family, name)
    for options in variants(target, defaults):
        for axes in GRIDS:
            try:
                module = build_one(family, name, options, axes)
            except ValueError:
                continue  # incompatible options or axes
            yield initialise(nn.ModuleList([module]), 0)


def build_one(family: str, name: str, options: dict[str, Any], axes: int) -> nn.Module:
    if family == "model":
        prefix = {"prefix": Prefix(registers=1)} if "prefix" in schema.options(node("model", name)[0]) else {}
        return build_tiny(name, **{**prefix, **options})
    if family == "tokenizer":
        target, defaults = node("tokenizer", name)
        tokenizer = target(**{**defaults, **options})
        data = GRAY if isinstance(tokenizer, ImageTokenizer) else DATA[tokenizer.modality]
        if isinstance(tokenizer, CodeTokenizer) and data.modality == "audio":  # its sounds are written from texts
            data = replace(data, source=DATA["text"])
        if getattr(tokenizer, "reads_ids", False):
            data = replace(data, vocabulary=11)
        return tokenizer.embedder(replace(context(), tokens=tokenizer.spec(data), data=data))
    if family == "block":
        channel = "none" if node("block", name)[0].single else "mlp"
        inner = [factory("token_mixer", "attention"), factory("channel_mixer", channel), factory("norm", "layer")]
        return factory("block", name, options)(context(axes=axes), *inner)
    later = getattr(node(family, name)[0], "later_ids", False)  # a head of causal models
    return factory(family, name, options)(context(axes=axes, causal=later, prefix=Prefix(family == "head")))


def decayed_non_maps(model: nn.Module) -> set[str]:
    """Decaying parameters that start constant or away from zero, as biases, gains and scales do.

    A linear map that starts at zero, such as a head of option `zero`, is a map all the same.
    """
    decayed = {id(p) for p in split_by_decay(model)[0]} | {id(p) for p in hidden_matrices(model)}
    decayed -= {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear) and not bool(m.weight.any())}
    return {
        name
        for name, p in model.named_parameters()
        if id(p) in decayed and (p.std() == 0 or p.mean().abs() > 2 * p.std())
    }


@pytest.mark.parametrize(("family", "name"), CHOICES)
@pytest.mark.sampled(2)
def test_biases_and_gains_do_not_decay(family: str, name: str) -> None:
    models = list(built(family, name))
    assert models, f"{family}={name} has no valid variant"
    for model in models:
        assert decayed_non_maps(model) == set()
        for module in model.modules():
            if isinstance(module, NoWeightDecay):
                assert every(hasattr(module, each) for each in module.no_weight_decay)


def test_learned_tokens_and_tables_do_not_decay() -> None:
    for name, vectors in (("perceiver", "latents.vectors"), ("encoder", "prefix.class_token")):
        prefix = {"prefix": Prefix(True, 1)} if name == "encoder" else {}
        model = build_tiny(name, **prefix)
        no_decay = {id(p) for p in split_by_decay(model)[1]}
        assert id(model.get_parameter(vectors)) in no_decay


def test_muon_takes_no_gains() -> None:
    model = tiny(block="single", token_mixer="gated_attention_unit")
    offsets = model.blocks[0].token_mixer.offsets
    assert offsets.gain.ndim == 2
    assert not {id(p) for p in hidden_matrices(model)} & {id(p) for p in offsets.parameters()}


def test_slots_decay_and_are_not_muons() -> None:
    """They replace the two matrices of an MLP."""
    model = tiny(token_mixer="memory_attention")
    mixer = model.blocks[0].token_mixer
    slots = {id(mixer.keys), id(mixer.values)}
    assert slots <= {id(p) for p in split_by_decay(model)[0]}
    assert not slots & {id(p) for p in hidden_matrices(model)}


def test_a_missing_no_weight_decay_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FullyConnected, "no_weight_decay", frozenset())
    with pytest.raises(AssertionError, match="bias"):
        test_biases_and_gains_do_not_decay("token_mixer", "fully_connected")


def test_a_gain_around_one_is_caught() -> None:
    model = nn.ModuleList([nn.Linear(8, 8)])
    with torch.no_grad():
        model[0].weight.normal_(1.0, 0.02)
    assert decayed_non_maps(model) == {"0.weight"}
