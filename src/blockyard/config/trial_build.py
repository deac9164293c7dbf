"""The last pass of the check: every component is constructed on the meta device and may raise.

Only a constructor can check some constraints (a width that does not divide, an image that no patch size tiles). On the
meta device nothing is allocated, so this takes milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from blockyard.config import lightning
from blockyard.config.build import LATE, Components, context
from blockyard.config.instantiate import instantiate
from blockyard.config.memory_need import memory_issue
from blockyard.config.placed_nodes import placed_nodes
from blockyard.config.rules import Facts
from blockyard.config.targets import allow_of, locate
from blockyard.contracts import Context, Issue, OptimizerBuilder
from blockyard.errors import UserError, first_line
from blockyard.model._embedding import check_key_widths
from blockyard.ops.meta import without_compiler
from blockyard.weight_init import initialise

META = torch.device("meta")
# What neither the model nor its memory depends on, but for the tensors that the optimizer keeps for each weight.
_NOT_OF_MODEL = ("optimizer", "schedule", "callbacks", "logger", "seed", "name", "tags", "outputs", "force")


def build_components(
    config: dict[str, Any], facts: Facts, refused: set[str], unsound: set[str], *, reads_data: bool = True
) -> Iterator[Issue]:
    """Problems that plans report in their options, and modules in their Context.

    refused: families that a rule has refused; unsound: keys of nodes with issues. Neither are built.
    reads_data: False where a trained model is only loaded, which needs no data
    """
    allow = allow_of(config)
    built: dict[str, Any] = {}
    tops: list[str] = []
    # Every plan, and whatever else a config holds (trainer, loggers, callbacks), is cheap to build.
    for key, node, _, late in placed_nodes(config, allow):
        if any(key.startswith(f"{top}.") for top in tops):
            continue  # an inner node is built with its parent
        tops.append(key)
        if late or any(f"{each}.".startswith(f"{key}.") for each in unsound):
            continue
        if key.partition(".")[0] == "logger" and lightning.connects(locate(str(node["_target_"]))):
            continue
        try:
            built[key] = instantiate(node, allow, META)
        except Exception as error:  # a user's own class may fail in any way
            yield Issue(key, _message(error))
    if "data" in built:
        missing = built["data"].missing() if reads_data else None
        if missing:  # data that is not there has no shape either
            yield Issue("data", missing)
            return
    try:
        if not _fit(built):
            return  # a rule has reported it; the tokens have no shape
        ctx = _context(built)
    except KeyError:
        return
    except ValueError as error:
        # A file of the user's own that cannot be used is a problem of the data.
        yield Issue("data" if isinstance(error, UserError) else "shapes", str(error))
        return
    for key, component in built.items():
        yield from (Issue(key, text) for text in _problems(component, built))
    yield from _build_modules(ctx, built["model"], facts, refused)


def trained_alike(config: dict[str, Any]) -> str | None:
    """Equal for configs of which `build_model` reports the same: they differ in values of the optimizer, or in what
    comes after the model. None where `init` reads the weights that a run starts from.
    """
    if "init" in config:
        return None
    kept = {key: value for key, value in config.items() if key not in _NOT_OF_MODEL}
    allow = allow_of(config)
    optimizer = instantiate(config["optimizer"], allow, META)
    named = config["optimizer"]["_target_"] if _looks_at_models(type(optimizer), OptimizerBuilder) else None
    callbacks = [place for place in placed_nodes(config, allow) if place.key.startswith("callbacks.")]
    nodes = [place.node for place in callbacks if _looks_at_models(locate(place.target), place.required)]
    return json.dumps([kept, optimizer.tensors_per_weight, named, nodes])


def _looks_at_models(component: Any, base: Any) -> bool:
    """Whether it may have problems with a built model; Lightning's callbacks have none."""
    return issubclass(component, base) and component.model_problems is not base.model_problems


def build_model(
    config: dict[str, Any], *, on_this_machine: bool = True, training: bool = True, starts: bool = True
) -> Iterator[Issue]:
    """Whether the whole model of an otherwise sound config can be built, with an initial value for every weight.

    on_this_machine: also whether it fits into the memory of this machine; training: with all that training needs
    starts: whether the run begins, and so needs the weights that it starts from
    """
    try:
        with without_compiler():
            components = Components(config, META)
            if components.init is not None and starts:
                components.init.prepare_tokenizers(components)
            model = components.meta_model(adapted=False)
            initialise(model, 0)
            if components.init is not None:
                issues = list(components.init.issues(components, model, starts=starts))
                if issues:
                    yield from issues
                    return
            problems = [Issue("trainer", text) for text in components.node("trainer").model_problems(model)]
            if problems:
                yield from problems
                return
            components.adapt(model, 0)
            if training and (problems := list(_training_problems(components, model))):
                yield from problems
                return
        issue = memory_issue(components, model, training=training) if on_this_machine else None
    except Exception as error:
        issue = Issue("model", _message(error))
    if issue is not None:
        yield issue


def _training_problems(components: Components, model: nn.Module) -> Iterator[Issue]:
    """What the optimizer and the callbacks cannot train of a model, or not with the trainer's options."""
    yield from (Issue("optimizer", text) for text in components.optimizer.model_problems(model))
    trainer = components.node("trainer")
    for name, callback in components.node("callbacks").items():
        if hasattr(callback, "model_problems"):  # one of Lightning's has none
            texts = callback.model_problems(model, trainer)
            yield from (Issue(f"callbacks.{name}", text) for text in texts)


def _build_modules(ctx: Context, architecture: Any, facts: Facts, refused: set[str]) -> Iterator[Issue]:
    modules: dict[str, Any] = {}
    with without_compiler(), torch.device("meta"):
        for family in LATE:
            if family != "block" and family in facts.picks and family not in refused:
                pick = facts[family]
                try:
                    place = architecture.mixing(ctx) if family == "token_mixer" else ctx
                    modules[family] = pick.target(place, **pick.options)
                except Exception as error:
                    yield Issue(family, _message(error))
    if modules.keys() >= {"position", "token_mixer"}:
        try:
            check_key_widths(ctx, modules["position"], [modules["token_mixer"]])
        except Exception as error:
            yield Issue("position", _message(error))


def _problems(component: Any, built: dict[str, Any]) -> list[str]:
    """Problems that a plan reports with its data, objective and model, and a trainer with this machine."""
    problems = []
    if hasattr(component, "problems"):
        problems += component.problems(built["data"], built["objective"], built["model"])
    if hasattr(component, "device_type"):
        try:
            component.device_type()
        except ValueError as error:
            problems.append(str(error))
    return problems


def _message(error: Exception) -> str:
    return first_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"


def _fit(built: dict[str, Any]) -> bool:
    """Whether the tokenizers read the modality of the data and of its source, as far as they are there."""
    if not built.keys() >= {"data", "tokenizer"}:
        return True
    data, tokenizer = built["data"].spec, built["tokenizer"]
    own = built.get("source_tokenizer", tokenizer)
    fits = data.source is None or own is tokenizer or own.modality == data.source.modality
    return bool(tokenizer.modality == data.modality and fits)


def _context(built: dict[str, Any]) -> Context:
    own = built["tokenizer"]
    ctx = context(built["data"].spec, own, built.get("source_tokenizer", own), built["objective"], built["model"])
    assert ctx.head_dim, "a context has the width of a head"
    return ctx
