"""The last pass of the check: every component is constructed on the meta device and may raise.

Only a constructor can check some constraints (a width that does not divide, an image that no patch size tiles). On the
meta device nothing is allocated, so this takes milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from blockyard.config import lightning, machine
from blockyard.config.build import LATE, TEACHER, Components, context, parametrized
from blockyard.config.instantiate import instantiate
from blockyard.config.placed_nodes import placed_nodes
from blockyard.config.rules import Facts
from blockyard.config.tree import Node
from blockyard.config.untrusted.targets import allow_of, locate
from blockyard.contracts import (
    PLAIN,
    ChannelMixer,
    Context,
    Embedder,
    Head,
    Issue,
    OptimizerBuilder,
    Position,
    TokenMixer,
)
from blockyard.errors import UserError, first_line, unreadable
from blockyard.model._embedding import check_key_widths
from blockyard.ops.meta import without_compiler
from blockyard.weight_init import initialise

META = torch.device("meta")
# Neither the model nor its memory depends on these keys, but for the tensors that the optimizer keeps for each weight.
_NOT_OF_MODEL = ("optimizer", "schedule", "callbacks", "logger", "seed", "repeat", "name", "tags", "outputs", "force")
HALF = 2  # bytes of the smallest number that a forward pass computes with
FAMILIES = {
    "tokenizer": Embedder,
    "position": Position,
    "token_mixer": TokenMixer,
    "channel_mixer": ChannelMixer,
    "head": Head,
}


@dataclass(frozen=True)
class Need:
    """Bytes that a run needs at least, from numbers that are known before anything is allocated.

    Only bytes that no run can do without are counted, so that a config is refused only where it must fail. Kernels and
    libraries need more.

    weights: with gradients and the tensors that the optimizer keeps for them, where the run trains
    batch: the stream that every block reads in a training step, and the predictions
    data: generated into memory
    """

    weights: int
    batch: int = 0
    data: int = 0

    @property
    def total(self) -> int:
        """The bytes of everything."""
        return self.weights + self.batch + self.data

    def times(self, processes: int) -> Need:
        """Return the need of several processes together."""
        return Need(self.weights * processes, self.batch * processes, self.data * processes)


def memory_issue(components: Components, model: nn.Module, *, training: bool) -> Issue | None:
    """Return the issue of a run that cannot fit into the memory of this machine; None where it may.

    model: on the meta device; training: False where a trained model is only loaded
    """
    trainer = components.node("trainer")
    if not training:
        device = "machine"
        capacity = machine.memory()
        need = Need(_bytes(model))
    elif trainer.device_type() == "cuda":
        device = "GPU"
        capacity = machine.gpu_memory()
        need = _need(components, model, trainer)
        # Each process has a GPU of its own, and generated data stay in the memory of the machine.
        need = Need(need.weights, need.batch)
    else:
        device = "machine"
        capacity = machine.memory()
        need = _need(components, model, trainer).times(trainer.devices)
    if capacity is None or need.total <= capacity:
        return None
    text = f"needs {_gib(need.total)} of memory or more, and this {device} has {_gib(capacity)}"
    if need.weights >= max(need.batch, need.data):
        return Issue("model", f"{text}; {_describe_weights(model, need, training=training)}")
    if need.batch >= need.data:
        hint = ["trainer.accumulate for micro-batches"] if trainer.accumulate == 1 else []
        return Issue("data.batch_size", f"{text}: {_gib(need.batch)} for a batch of {components.data.batch_size}", hint)
    return Issue("data.samples", f"{text}: {_gib(need.data)} for the data")


def _need(components: Components, model: nn.Module, trainer: Any) -> Need:
    """Return the need of one process of a run."""
    weights = _bytes(model) * (2 + components.optimizer.tensors_per_weight)
    if trainer.sharded:
        # The model is built whole in every process before its weights are spread.
        weights = max(_bytes(model), weights // trainer.world)
    return Need(weights, _batch(components, trainer), components.data.bytes_in_memory())


def _batch(components: Components, trainer: Any) -> int:
    """Return the bytes of a micro-batch: the stream at each block, and the predictions."""
    ctx = components.context()
    if ctx.data.variable or ctx.tokens.variable:
        return 0  # the length of its sequences is not known
    blocks = 0
    if components.architecture.stacks:
        blocks = ctx.visits * _length(components.architecture.mixer_context(ctx))
    stream = (blocks + _length(ctx)) * ctx.dim
    predictions = ctx.outputs
    if components.objective.takes != "sequence":
        predictions *= ctx.tokens.max_len
    return components.data.batch_size * (stream + predictions) * HALF // (trainer.accumulate * trainer.world)


def _length(ctx: Context) -> int:
    """Return the number of tokens that a block reads, with class and register tokens."""
    return ctx.tokens.max_len + ctx.num_prefix


def _bytes(model: nn.Module) -> int:
    """Return the bytes of the parameters and buffers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))


def _describe_weights(model: nn.Module, need: Need, *, training: bool) -> str:
    """Return a text with the number of parameters, and the family that has most of them."""
    count = sum(parameter.numel() for parameter in model.parameters())
    by_family = dict.fromkeys(FAMILIES, 0)
    for module in model.modules():
        for family, kind in FAMILIES.items():
            if isinstance(module, kind):
                by_family[family] += sum(parameter.numel() for parameter in module.parameters())
    largest = max(by_family, key=lambda family: by_family[family])
    bytes_each = need.weights / max(count, 1)
    purpose = "for weights, gradients and optimizer state" if training else "of weights"
    return f"{count:,} parameters, most of them in {largest}, take {bytes_each:.0f} bytes each {purpose}"


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"


def build_components(
    config: Node,
    facts: Facts,
    refused: set[str],
    unsound: set[str],
    kinds: Mapping[str, Facts],
    *,
    reads_data: bool,
    modules: bool,
) -> Iterator[Issue]:
    """Yield the problems that plans report in their options, and modules in their Context.

    refused: families that a rule has refused; unsound: keys of nodes with issues. Neither are built.
    kinds: the choices that only the layers of a kind have, by the key of the kind
    reads_data: False where a trained model is only loaded, without data
    modules: False where plans are built alone, without what PyTorch tells of the machine and of modules
    """
    allow = allow_of(config)
    built: dict[str, Any] = {}
    tops: list[str] = []
    # Every plan, and whatever else a config holds (trainer, loggers, callbacks), is cheap to build.
    for place in placed_nodes(config):
        key = place.key
        if any(key.startswith(f"{top}.") for top in tops):
            continue  # an inner node is built with its parent
        tops.append(key)
        # A factory waits for a Context, which follows from the plans; a plan with an unsound part cannot be built.
        if place.late:
            continue
        if any(f"{part}.".startswith(f"{key}.") for part in unsound):
            continue
        if key.partition(".")[0] == "logger" and lightning.connects(locate(place.target)):
            continue
        try:
            built[key] = instantiate(place.node, allow, META)
        except Exception as error:  # a user's own class may fail in any way
            yield Issue(key, _message(error))
    if "data" in built:
        try:
            missing = built["data"].missing() if reads_data else None
        except OSError as error:  # a folder that this user may not search, or a file that goes meanwhile
            missing = unreadable(error)
        if missing:  # data that is not there has no shape either
            yield Issue("data", missing)
            return
    try:
        if not _fit(built):
            return  # a rule has reported it; the tokens have no shape
        ctx = _context(built)
    except KeyError:
        return  # a plan that the context needs could not be built, and its issue is reported
    except UserError as error:
        # A file of the user's own that cannot be used is a problem of the data.
        yield Issue("data", str(error))
        return
    except ValueError as error:
        yield Issue("shapes", str(error))
        return
    if not modules:
        return
    for key, component in built.items():
        for text in _problems(component, built):
            yield Issue(key, text)
    yield from _build_modules(ctx, built["model"], facts, refused)
    for key, parts in kinds.items():
        for issue in _build_modules(ctx, built["model"], parts, set()):
            yield Issue(f"{key}: {issue.key}", issue.text)


class BuiltModels:
    """The issues of whole models that were built. Arms of a sweep often differ only in how they train one model."""

    def __init__(self) -> None:
        self._issues: dict[str, list[Issue]] = {}

    def __len__(self) -> int:
        return len(self._issues)

    def issues(self, config: Node, *, on_this_machine: bool, training: bool, starts: bool) -> list[Issue]:
        """Return the issues of `build_model`. The other arguments must be the same in each call."""
        key = _model_key(config)
        if key is not None and key in self._issues:
            return self._issues[key]
        issues = list(build_model(config, on_this_machine=on_this_machine, training=training, starts=starts))
        if key is not None:
            self._issues[key] = issues
        return issues


def _model_key(config: Node) -> str | None:
    """Return a text that is equal for configs with the same issues of `build_model`.

    Such configs differ in numbers of the optimizer, or in parts that come after the model. None where `init` reads the
    weights that a run starts from.
    """
    if "init" in config:
        return None
    kept = {key: value for key, value in config.items() if key not in _NOT_OF_MODEL}
    optimizer = instantiate(config["optimizer"], allow_of(config), META)
    values = None
    if _looks_at_models(type(optimizer), OptimizerBuilder):
        values = {key: value for key, value in config["optimizer"].items() if not isinstance(value, int | float)}
    callbacks = []
    for place in placed_nodes(config):
        if place.key.startswith("callbacks.") and _looks_at_models(place.target_class, place.required):
            callbacks.append(place.node)
    return json.dumps([kept, optimizer.tensors_per_weight, values, callbacks])


def _looks_at_models(component: Any, base: Any) -> bool:
    """Return whether a component may have problems with a built model; Lightning's callbacks have none."""
    return issubclass(component, base) and component.model_problems is not base.model_problems


def build_model(
    config: Node, *, on_this_machine: bool = True, training: bool = True, starts: bool = True
) -> Iterator[Issue]:
    """Yield the problems of building the whole model of an otherwise sound config, with all initial values.

    on_this_machine: also whether it fits into the memory of this machine; training: with all that training needs
    starts: whether the run begins, and so needs the weights that it starts from
    """
    try:
        with without_compiler():
            components = Components(config, META)
            if components.init is not None and starts:
                components.init.prepare_tokenizers(components)
            if training and components.objective.distillation is not None:
                texts = list(locate(TEACHER).issues(components))  # type: ignore[attr-defined]
                if texts:
                    for text in texts:
                        yield Issue("objective.teacher", text)
                    return
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
            if training:
                problems = list(_training_problems(components, model))
                if problems:
                    yield from problems
                    return
        issue = None
        if on_this_machine:
            issue = memory_issue(components, model, training=training)
    except Exception as error:
        issue = Issue("model", _message(error))
    if issue is not None:
        yield issue


def _training_problems(components: Components, model: nn.Module) -> Iterator[Issue]:
    """Yield the problems of the optimizer and the callbacks with a model, and with the trainer's options."""
    for text in components.optimizer.model_problems(model):
        yield Issue("optimizer", text)
    trainer = components.node("trainer")
    if trainer.sharded and not components.optimizer.shards:
        name = type(components.optimizer).__name__
        text = (
            f"{name} updates whole matrices, which trainer.strategy=fsdp spreads; use strategy=ddp, or optimizer=muon"
        )
        yield Issue("optimizer", text)
    for name, callback in components.node("callbacks").items():
        if hasattr(callback, "model_problems"):  # one of Lightning's has none
            for text in callback.model_problems(model, trainer):
                yield Issue(f"callbacks.{name}", text)


def _build_modules(ctx: Context, architecture: Any, facts: Facts, refused: set[str]) -> Iterator[Issue]:
    """Yield the problems of modules that are built one by one, each from its Context alone."""
    modules: dict[str, Any] = {}
    with without_compiler(), torch.device("meta"):
        for family in LATE:
            if family == "block" or family not in facts.picks or family in refused:
                continue
            pick = facts[family]
            try:
                module_context = ctx
                if family == "token_mixer":
                    if facts.traits.takes:
                        continue  # it is built behind the layers that give to it, with the whole model
                    module_context = architecture.mixer_context(ctx)
                modules[family] = pick.target(module_context, **pick.options)
            except Exception as error:
                yield Issue(family, _message(error))
    if modules.keys() >= {"position", "token_mixer"}:
        try:
            check_key_widths(ctx, modules["position"], [modules["token_mixer"]])
        except Exception as error:
            yield Issue("position", _message(error))


def _problems(component: Any, built: Mapping[str, Any]) -> list[str]:
    """Return the problems of a plan with its data, objective and model, and of a trainer with this machine."""
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
    """Return the first line of an error; errors other than ValueError with the name of their class."""
    if isinstance(error, ValueError):
        return first_line(error)
    return f"{type(error).__name__}: {first_line(error)}"


def _fit(built: Mapping[str, Any]) -> bool:
    """Return whether the tokenizers read the modality of the data and of its source, as far as they are there."""
    if not built.keys() >= {"data", "tokenizer"}:
        return True
    data = built["data"].spec
    tokenizer = built["tokenizer"]
    source_tokenizer = built.get("source_tokenizer", tokenizer)
    if tokenizer.modality != data.modality:
        return False
    if data.source is None or source_tokenizer is tokenizer:
        return True
    return bool(source_tokenizer.modality == data.source.modality)


def _context(built: Mapping[str, Any]) -> Context:
    """Return the Context that the plans give. Raises KeyError where one of them is missing."""
    tokenizer = built["tokenizer"]
    model = built["model"]
    source_tokenizer = built.get("source_tokenizer", tokenizer)
    ctx = context(built["data"].spec, tokenizer, source_tokenizer, built["objective"], model)
    ctx = parametrized(ctx, built.get("parametrization", PLAIN), model)
    assert ctx.head_dim, "a context has the width of a head"
    return ctx
