"""What decays, over every choice on the disk: maps from vectors to vectors, and no bias, gain or learned vector."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from blockyard.config import schema
from blockyard.contracts import DataSpec, NoWeightDecay, Tokenizer
from blockyard.model._prefix import Prefix
from blockyard.optimizer._param_groups import hidden_matrices, split_by_decay
from blockyard.token_mixer.fully_connected import FullyConnected
from blockyard.weight_init import initialise
from tests.components.test_models import planned
from tests.helpers import choices, context, factory, node, tiny

DATA = {
    "image": DataSpec("image", (3, 32, 32)),
    "views": DataSpec("views", (2, 3, 32, 32)),
    "text": DataSpec("text", (6,)),
    "symbols": DataSpec("symbols", (6,), vocabulary=11),
}
BUILT = ("token_mixer", "channel_mixer", "norm", "position", "head")  # from a Context and options alone
CHOICES = [
    (family, name) for family in (*BUILT, "block", "model", "tokenizer") for name in choices(family) if name != "none"
]


def variants(target: type, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The options as they are, then each switch the other way and each word in turn."""
    yield {}
    if issubclass(target, Tokenizer):  # one of them may ask a library for trained weights
        return
    for name, option in schema.options(target).items():
        hint = option.annotation
        if hint is bool:
            yield {name: not given.get(name, option.default)}
        for word in typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ():
            yield {name: word}


def built(family: str, name: str) -> Iterator[nn.Module]:
    """A choice with its initial weights, in every variant that stands."""
    target, given = node(family, name)
    for options in variants(target, given):
        for axes in (1, 2):
            try:
                made = one(family, name, options, axes)
            except ValueError:
                continue  # options, or axes, that do not go together
            yield initialise(nn.ModuleList([made]), 0)


def one(family: str, name: str, options: dict[str, Any], axes: int) -> nn.Module:
    if family == "model":
        prefix = {"prefix": Prefix(registers=1)} if "prefix" in schema.options(node("model", name)[0]) else {}
        return planned(name, **{**prefix, **options})
    if family == "tokenizer":
        target, given = node("tokenizer", name)
        plan = target(**{**given, **options})
        tokens = plan.spec(DATA[plan.modality])
        return plan.embedder(replace(context(), tokens=tokens, data=DATA[plan.modality]))
    if family == "block":
        channel = "none" if node("block", name)[0].single else "mlp"
        inner = [factory("token_mixer", "attention"), factory("channel_mixer", channel), factory("norm", "layer")]
        return factory("block", name, options)(context(axes=axes), *inner)
    return factory(family, name, options)(context(axes=axes, prefix=Prefix(family == "head")))


def no_maps(model: nn.Module) -> set[str]:
    """What decays although it starts as what adds, scales or stands still: not spread evenly around zero."""
    decayed = {id(p) for p in split_by_decay(model)[0]} | {id(p) for p in hidden_matrices(model)}
    return {
        name
        for name, p in model.named_parameters()
        if id(p) in decayed and (p.std() == 0 or p.mean().abs() > 2 * p.std())
    }


@pytest.mark.parametrize(("family", "name"), CHOICES)
def test_what_starts_as_a_bias_or_a_gain_does_not_decay(family: str, name: str) -> None:
    found = list(built(family, name))
    assert found, f"{family}={name} was built in no variant"
    for model in found:
        assert no_maps(model) == set()
        for module in model.modules():
            if isinstance(module, NoWeightDecay):
                assert all(hasattr(module, each) for each in module.no_weight_decay)


def test_learned_tokens_and_tables_do_not_decay() -> None:
    for name, vectors in (("perceiver", "latents.vectors"), ("encoder", "prefix.class_token")):
        prefix = {"prefix": Prefix(True, 1)} if name == "encoder" else {}
        model = planned(name, **prefix)
        plain = {id(p) for p in split_by_decay(model)[1]}
        assert id(model.get_parameter(vectors)) in plain


def test_muon_takes_no_gains() -> None:
    model = tiny(block="single", token_mixer="gated_attention_unit")
    offsets = model.blocks[0].token_mixer.offsets
    assert offsets.gain.ndim == 2
    assert not {id(p) for p in hidden_matrices(model)} & {id(p) for p in offsets.parameters()}


def test_slots_decay_and_are_no_hidden_matrix() -> None:
    """They stand for the two matrices of an MLP."""
    model = tiny(token_mixer="memory_attention")
    mixer = model.blocks[0].token_mixer
    slots = {id(mixer.keys), id(mixer.values)}
    assert slots <= {id(p) for p in split_by_decay(model)[0]}
    assert not slots & {id(p) for p in hidden_matrices(model)}


def test_a_bias_that_is_not_declared_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FullyConnected, "no_weight_decay", frozenset())
    with pytest.raises(AssertionError, match="bias"):
        test_what_starts_as_a_bias_or_a_gain_does_not_decay("token_mixer", "fully_connected")


def test_a_gain_that_is_drawn_around_one_is_caught() -> None:
    model = nn.ModuleList([nn.Linear(8, 8)])
    with torch.no_grad():
        model[0].weight.normal_(1.0, 0.02)
    assert no_maps(model) == {"0.weight"}
