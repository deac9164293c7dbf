"""`objective.teacher`: the trained model from which another one learns, found, compared and loaded.

Source: Hinton, Vinyals and Dean 2015, Distilling the Knowledge in a Neural Network (arXiv 1503.02531)

A teacher is a run, or a model of transformers or timm, whose architecture an import knows. It is not a part of
the model that learns from it: its weights are in no checkpoint and no optimizer. A hash of its config and its weights
identifies it, so that a run that is resumed learns from the same predictions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.atomic_files import read_json
from blockyard.config.build import Components
from blockyard.config.size_matching import flops_by_module
from blockyard.config.tree import Node
from blockyard.config.untrusted.targets import allow_of
from blockyard.contracts import DataSpec, Inputs, Tokenizer
from blockyard.errors import UserError, first_line
from blockyard.runs.identity import semantic
from blockyard.runs.load import components_of, load
from blockyard.weights.sources import LIBRARY_CONFIG, TOKENIZERS, Source, facts, find_source, library, outline
from blockyard.weights.transfer import Transfer, compare
from blockyard.weights.transfer import load as transfer_weights

KEY = "objective.teacher"
# Modalities whose inputs are values that every tokenizer without token ids reads as they are.
VALUES = ("image", "series", "vector", "audio")


class Teacher:
    """A trained model that predicts and is not trained. It is not an `nn.Module`, so that no module holds its weights.

    model: in evaluation mode, without gradients; name: from the config
    sha256: of its config and weights; notes: for the user, a sentence each
    """

    def __init__(self, model: nn.Module, name: str, sha256: str, notes: tuple[str, ...] = ()) -> None:
        self.model = model.eval().requires_grad_(False)
        self.name, self.sha256, self.notes = name, sha256, notes
        self._device: torch.device | None = None

    def __call__(self, batch: Inputs) -> Tensor:
        """Return the predictions for a batch, on its device: (B, V) or (B, N, V)."""
        if self._device != batch.inputs.device:
            self._device = batch.inputs.device
            self.model.to(self._device)
        with torch.no_grad():
            prediction: Tensor = self.model(batch)
        return prediction

    def plain(self) -> dict[str, Any]:
        """Return plain data, for run.json."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return {"from": self.name, "sha256": self.sha256, "parameters": parameters, "notes": list(self.notes)}

    @staticmethod
    def resolved(node: Node, outputs: str) -> Node:
        """Return the node of an objective with the path of its teacher and its hash, as a run's config keeps it.

        Raises UserError if the teacher cannot be read, or differs from `teacher_sha256`.
        """
        name = node.get("teacher")
        if name is None:
            return node
        source = _find(str(name), outputs)
        actual = fingerprint(source)
        _check_hash(str(name), node.get("teacher_sha256"), actual)
        return node | {"teacher": source.library or str(source.path), "teacher_sha256": actual}

    @staticmethod
    def issues(components: Components) -> Iterator[str]:
        """Yield the reasons why a model cannot learn from its teacher, a sentence each. Computes nothing.

        Without a reason, the tokenizers of the components know the token ids of the teacher afterwards.
        """
        distillation = components.objective.distillation
        assert distillation is not None
        if components.node("trainer").context:
            yield "the teacher reads whole sequences, and trainer.strategy=context cuts them; use ddp or one device"
            return
        try:
            source = _source(components)
            teacher = _components(source, components)
            problems = list(_task_problems(components, teacher))
            if not problems:
                # Sizes depend on the vocabulary, and so on the states of the tokenizers.
                prepare_tokenizers(components)
                problems = list(_size_problems(components, teacher))
            yield from problems
            if not problems and source.run is None:
                yield from _library_problems(source, teacher)
        except UserError as error:
            yield str(error).removeprefix(f"{KEY}: ").removeprefix(f"{KEY}=")


def fingerprint(source: Source) -> str:
    """Return the SHA-256 of a teacher's config, weights and tokenizer states. Raises UserError for weights alone."""
    if source.run is not None:
        config = source.run.identity
    elif source.library is not None:
        config = hashlib.sha256((source.path / LIBRARY_CONFIG).read_bytes()).hexdigest()
    else:
        raise UserError(
            f"{KEY}={source.path}: weights alone do not say what model they are of; name a run, or "
            "hf:FOLDER or timm:FOLDER with its config.json"
        )
    try:
        return hashlib.sha256(f"{config} {outline(source).sha256}".encode()).hexdigest()
    except UserError as error:
        raise _about_teacher(error) from error


def prepare_tokenizers(components: Components) -> None:
    """Give tokenizers the token ids of the teacher, before data is read. Raises UserError if they have others."""
    source = _source(components)
    for text in _token_problems(components, _components(source, components)):
        raise UserError(f"{KEY}={source}: {text}")
    for key, path in source.tokenizer_states().items():
        tokenizer: Tokenizer = getattr(components, key)
        state = read_json(path)
        if tokenizer.state() not in ({}, state):
            raise UserError(
                f"{KEY}={source}: its token ids stand for others than those of init.from; start from a run with the "
                "teacher's tokenizer, or leave init.from out"
            )
        tokenizer.load_state(state)


def load_teacher(components: Components) -> Teacher | None:
    """Return the teacher of a run, with its weights; None if the objective names none.

    Raises UserError if the teacher is missing, differs from the recorded hash, or has another output.
    """
    distillation = components.objective.distillation
    if distillation is None:
        return None
    source = _source(components)
    teacher = _components(source, components)
    for text in (*_task_problems(components, teacher), *_size_problems(components, teacher)):
        raise UserError(f"{KEY}={source}: {text}")
    if source.run is None:
        return Teacher(_library_model(source, teacher), distillation.teacher, fingerprint(source))
    model = load(source.run, allow=allow_of(components.config)).model
    return Teacher(model, distillation.teacher, fingerprint(source), tuple(_data_notes(components, teacher)))


def flops(components: Components) -> int:
    """Return the FLOPs of the teacher's forward pass of one full sample of the run's data."""
    teacher = _components(_source(components), components)
    compiled = bool(getattr(components.node("trainer"), "compile", False))
    return flops_by_module(teacher.meta_model(), components.context(), compiled=compiled)[""]


def _task_problems(components: Components, teacher: Components) -> Iterator[str]:
    """Yield the reasons why predictions of a teacher cannot be targets of a run, whatever the sizes of both.

    components: of the run
    """
    objective, of_teacher = components.objective, teacher.objective
    if type(objective) is not type(of_teacher):
        yield (
            f"it was trained for objective={_choice(of_teacher)}, and this run is for {_choice(objective)}; both have "
            "to predict the same"
        )
        return
    if objective.own_position != of_teacher.own_position:
        yield "it has another objective.shift: its predictions stand at other positions"
        return
    is_causal = teacher.context().causal
    if objective.needs_causal not in (None, is_causal):
        direction = "causal" if is_causal else "bidirectional"
        yield f"it is {direction}, and objective={_choice(objective)} is not"
        return
    yield from _token_problems(components, teacher)


def _size_problems(components: Components, teacher: Components) -> Iterator[str]:
    """Yield the reasons why a teacher cannot read the inputs of a run, or predicts other classes or token ids."""
    problems = list(_shape_problems(components.data.spec, teacher.data.spec))
    if problems:
        yield from problems
        return
    outputs, predicted = components.context().outputs, teacher.context().outputs
    if outputs != predicted:
        yield f"it predicts {predicted} classes or token ids, and this run {outputs}"
        return
    try:
        flops_by_module(teacher.meta_model(), components.context())
    except Exception as error:  # its parts may refuse other sizes in any way
        yield f"it cannot read the inputs of this run ({first_line(error) or type(error).__name__})"


def _choice(component: object) -> str:
    return type(component).__module__.rpartition(".")[2]


def _shape_problems(spec: DataSpec, of_teacher: DataSpec) -> Iterator[str]:
    """Yield the differences of inputs or classes. A text may be shorter than the teacher's texts."""
    if spec.modality != of_teacher.modality:
        yield f"it reads {of_teacher.things}, and this run {spec.things}"
        return
    named = spec.class_names and of_teacher.class_names
    if spec.classes != of_teacher.classes or (named and spec.class_names != of_teacher.class_names):
        yield (
            f"its data has {of_teacher.classes} classes{_named(of_teacher)}, and this run's "
            f"{spec.classes}{_named(spec)}; they have to be the same, in the same order"
        )
    shorter = len(spec.shape) == 1 and spec.target in (None, "symbols") and spec.shape[0] <= of_teacher.shape[0]
    if spec.shape != of_teacher.shape and not shorter:
        yield f"its inputs have the shape {list(of_teacher.shape)}, and this run's {list(spec.shape)}"


def _named(spec: DataSpec) -> str:
    """Return the first names of the classes in brackets; empty for classes without names."""
    if not spec.class_names:
        return ""
    names = list(spec.class_names[:4])
    if len(spec.class_names) > 4:
        names.append("...")
    return f" ({', '.join(names)})"


def _token_problems(components: Components, teacher: Components) -> Iterator[str]:
    """Yield the tokenizers by which inputs or token ids mean something else to the teacher."""
    for key in TOKENIZERS:
        if components.config.get(key) is None and teacher.config.get(key) is None:
            continue
        tokenizer: Tokenizer = getattr(components, key)
        of_teacher: Tokenizer = getattr(teacher, key)
        if _meaning(components, key) == _meaning(teacher, key) or _reads_values(components, tokenizer, of_teacher):
            continue
        yield (
            f"its {key} is {_choice(of_teacher)} and this run's {_choice(tokenizer)}, or one with other options; "
            "inputs and token ids have to stand for the same"
        )


def _meaning(components: Components, key: str) -> Any:
    """Return the facts that decide the meaning of a tokenizer's token ids: its options, or the hash of its file."""
    node = components.config.get(key)
    if node is None:
        return None
    if node.get("sha256") is not None:
        return node["sha256"]
    return semantic({"tokenizer": node, "allow": components.config.get("allow")})


def _reads_values(components: Components, *tokenizers: Tokenizer) -> bool:
    """Return whether both tokenizers read the values of the data unchanged."""
    spec = components.data.spec
    if spec.modality not in VALUES or spec.vocabulary is not None or components.tokens().vocabulary is not None:
        return False
    return not any(t.reads_levels or t.reads_ids or t.gives_pairs for t in tokenizers)


def _data_notes(components: Components, teacher: Components) -> Iterator[str]:
    """Yield notes for the user on the teacher's training data."""
    data, of_teacher = semantic({"data": components.config["data"]}), semantic({"data": teacher.config["data"]})
    if data != of_teacher:
        yield (
            "the teacher was trained on other data, or on another split of it: it may have seen samples that this run "
            "is evaluated on"
        )


def _find(name: str, outputs: str) -> Source:
    try:
        return find_source(name, outputs=outputs)
    except UserError as error:
        raise _about_teacher(error) from error


def _about_teacher(error: UserError) -> UserError:
    """Return the error of a source of weights with the key that names a teacher."""
    return UserError(str(error).replace("init.from", KEY))


def _source(components: Components) -> Source:
    """Return the teacher's source. Raises UserError if it is missing, or differs from the recorded hash."""
    distillation = components.objective.distillation
    assert distillation is not None
    source = _find(distillation.teacher, str(components.config.get("outputs") or "outputs"))
    _check_hash(distillation.teacher, distillation.sha256, fingerprint(source))
    return source


def _check_hash(name: str, expected: str | None, actual: str) -> None:
    if expected not in (None, actual):
        raise UserError(
            f"{KEY}={name}: its config or weights are not those that the config names (sha256 {actual[:12]}..., "
            f"expected {str(expected)[:12]}...); restore it, or start anew without objective.teacher_sha256"
        )


def _components(source: Source, components: Components) -> Components:
    """Return the teacher's components. A library's model gets the data and the objective of the run."""
    if source.run is not None:
        return components_of(source.run, allow_of(components.config))
    assert source.library is not None
    try:
        config = library(source.library).config(source.path)
    except UserError as error:
        raise UserError(f"{KEY}={source}: {error}") from error
    # A library's model has no data of its own, and learns nothing: it predicts for the run's objective.
    for key in ("data", "objective", "allow"):
        if key in components.config:
            config = config | {key: components.config[key]}
    try:
        return Components(config)
    except ValueError as error:
        raise UserError(f"{KEY}={source}: {error}") from error


def _library_model(source: Source, teacher: Components) -> nn.Module:
    """Return a library's model with its weights, for inputs of the run's sizes. Raises UserError if they do not fit."""
    assert source.library is not None
    weights = library(source.library).weights(source.path)
    for text in _library_problems(source, teacher):
        raise UserError(f"{KEY}={source}: {text}")
    model = teacher.model(0)
    transfer_weights(model, weights, _transfer(source, teacher, model), target_layout=facts(teacher).layout)
    return model


def _library_problems(source: Source, teacher: Components) -> Iterator[str]:
    """Yield the weights of a library's model that do not fit the sizes of the run."""
    for text in _transfer(source, teacher, teacher.meta_model()).problems(None, strict=True):
        yield text.partition("; init.strict")[0]  # the options of init are not a teacher's


def _transfer(source: Source, teacher: Components, model: nn.Module) -> Transfer:
    stored = outline(source)
    layout = facts(teacher).layout
    return compare(model, stored.shapes, None, head=True, target_layout=layout, dtypes=stored.dtypes)
