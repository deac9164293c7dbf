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
from blockyard.weights.transfer import load as put

KEY = "objective.teacher"
# Modalities whose inputs are values that every tokenizer without token ids reads as they are.
VALUES = ("image", "series", "vector", "audio")


class Teacher:
    """A trained model that predicts and is not trained. It is not an `nn.Module`, so that no module holds its weights.

    model: in evaluation mode, without gradients; name: as the config has it
    sha256: of its config and weights; notes: what the user should know, a sentence each
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
        """As run.json holds it."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return {"from": self.name, "sha256": self.sha256, "parameters": parameters, "notes": list(self.notes)}

    @staticmethod
    def resolved(node: Node, outputs: str) -> Node:
        """The node of an objective with the path of its teacher and its hash, as a run's config keeps it.

        Raises UserError where the teacher cannot be read, or is not the one that `teacher_sha256` names.
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
        """Yield why a model cannot learn from its teacher, a sentence each. Computes nothing.

        Where there is no reason, the tokenizers of the components know the token ids of the teacher.
        """
        distillation = components.objective.distillation
        assert distillation is not None
        if components.node("trainer").context:
            yield "the teacher reads whole sequences, and trainer.strategy=context cuts them; use ddp or one device"
            return
        try:
            source = _source(components)
            teacher = _components(source, components)
            different = list(_task_problems(components, teacher))
            if not different:
                prepare_tokenizers(components)
                different = list(_size_problems(components, teacher))
            yield from different
            if not different and source.run is None:
                yield from _library_problems(source, teacher)
        except UserError as error:
            yield str(error).removeprefix(f"{KEY}: ").removeprefix(f"{KEY}=")


def fingerprint(source: Source) -> str:
    """The SHA-256 of what a teacher computes: its config, its weights and what its tokenizer learned."""
    if source.run is not None:
        what = source.run.identity
    elif source.library is not None:
        what = hashlib.sha256((source.path / LIBRARY_CONFIG).read_bytes()).hexdigest()
    else:
        raise UserError(
            f"{KEY}={source.path}: weights alone do not say what model they are of; name a run, or "
            "hf:FOLDER or timm:FOLDER with its config.json"
        )
    try:
        return hashlib.sha256(f"{what} {outline(source).sha256}".encode()).hexdigest()
    except UserError as error:
        raise _about_teacher(error) from error


def prepare_tokenizers(components: Components) -> None:
    """Let tokenizers know the token ids of the teacher, before data is read. Raises UserError where they differ."""
    source = _source(components)
    for text in _token_problems(components, _components(source, components)):
        raise UserError(f"{KEY}={source}: {text}")
    for key, path in source.tokenizer_states().items():
        tokenizer: Tokenizer = getattr(components, key)
        learned, own = read_json(path), tokenizer.state()
        if own not in ({}, learned):
            raise UserError(
                f"{KEY}={source}: its token ids stand for others than those of init.from; start from a run with the "
                "teacher's tokenizer, or leave init.from out"
            )
        tokenizer.load_state(learned)


def load_teacher(components: Components) -> Teacher | None:
    """The teacher of a run, with its weights; None where the objective names none.

    Raises UserError where it is not there any more, is another one than the config names, or predicts something else.
    """
    distillation = components.objective.distillation
    if distillation is None:
        return None
    source = _source(components)
    teacher = _components(source, components)
    for text in (*_task_problems(components, teacher), *_size_problems(components, teacher)):
        raise UserError(f"{KEY}={source}: {text}")
    model = load(source.run, allow=allow_of(components.config)).model if source.run else _of_library(source, teacher)
    note = () if source.run is None else tuple(_data_notes(components, teacher))
    return Teacher(model, distillation.teacher, fingerprint(source), note)


def flops(components: Components) -> int:
    """The FLOPs of the teacher's forward pass of one full sample of the run's data."""
    teacher = _components(_source(components), components)
    compiled = bool(getattr(components.node("trainer"), "compile", False))
    return flops_by_module(teacher.meta_model(), components.context(), compiled=compiled)[""]


def _task_problems(components: Components, teacher: Components) -> Iterator[str]:
    """Yield why predictions of a teacher cannot be targets of a run, whatever the sizes of both.

    components: of the run
    """
    own, theirs = components.objective, teacher.objective
    if type(own) is not type(theirs):
        yield (
            f"it was trained for objective={_choice(theirs)}, and this run is for {_choice(own)}; both have to predict "
            "the same"
        )
        return
    if own.own_position != theirs.own_position:
        yield "it has another objective.shift: its predictions stand at other positions"
        return
    if own.needs_causal not in (None, teacher.context().causal):
        yield f"it is {'causal' if teacher.context().causal else 'bidirectional'}, and objective={_choice(own)} is not"
        return
    yield from _token_problems(components, teacher)


def _size_problems(components: Components, teacher: Components) -> Iterator[str]:
    """Yield why a teacher cannot read the inputs of a run, or predicts other classes or token ids."""
    if different := list(_shape_problems(components.data.spec, teacher.data.spec)):
        yield from different
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


def _shape_problems(own: DataSpec, theirs: DataSpec) -> Iterator[str]:
    """Yield what of the inputs or the classes differs; a text may be shorter than those of the teacher."""
    if own.modality != theirs.modality:
        yield f"it reads {theirs.things}, and this run {own.things}"
        return
    named = own.class_names and theirs.class_names
    if own.classes != theirs.classes or (named and own.class_names != theirs.class_names):
        yield (
            f"its data has {theirs.classes} classes{_named(theirs)}, and this run's {own.classes}{_named(own)}; they "
            "have to be the same, in the same order"
        )
    shorter = len(own.shape) == 1 and own.target in (None, "symbols") and own.shape[0] <= theirs.shape[0]
    if own.shape != theirs.shape and not shorter:
        yield f"its inputs have the shape {list(theirs.shape)}, and this run's {list(own.shape)}"


def _named(spec: DataSpec) -> str:
    names = spec.class_names
    return f" ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})" if names else ""


def _token_problems(components: Components, teacher: Components) -> Iterator[str]:
    """Yield why what the model reads would stand for something else to the teacher."""
    for key in TOKENIZERS:
        own, theirs = components.config.get(key), teacher.config.get(key)
        if own is None and theirs is None:
            continue
        ours: Tokenizer = getattr(components, key)
        others: Tokenizer = getattr(teacher, key)
        if _meaning(components, own) == _meaning(teacher, theirs) or _reads_values(components, ours, others):
            continue
        yield (
            f"its {key} is {_choice(others)} and this run's {_choice(ours)}, or one with other options; inputs and "
            "token ids have to stand for the same"
        )


def _meaning(components: Components, node: Node | None) -> Any:
    """What decides what the token ids of a tokenizer stand for: its options, or the content of its file."""
    if node is None:
        return None
    if node.get("sha256") is not None:
        return node["sha256"]
    return semantic({"tokenizer": node, "allow": components.config.get("allow")})


def _reads_values(components: Components, *tokenizers: Tokenizer) -> bool:
    """Whether both tokenizers read the values of the data as they are."""
    spec = components.data.spec
    plain = all(not each.reads_levels and not each.reads_ids and not each.gives_pairs for each in tokenizers)
    return spec.modality in VALUES and spec.vocabulary is None and plain and components.tokens().vocabulary is None


def _data_notes(components: Components, teacher: Components) -> Iterator[str]:
    """Yield what the user should know of the data that the teacher was trained on."""
    here, there = (semantic({"data": each.config["data"]}) for each in (components, teacher))
    if here != there:
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
    """The same error of a source of weights, about the key that names a teacher."""
    return UserError(str(error).replace("init.from", KEY))


def _source(components: Components) -> Source:
    """Where the teacher lies. Raises UserError where it is not there, or another one than the config names."""
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
    """The teacher's components; those of a library's model with the data and the objective of the run."""
    if source.run is not None:
        return components_of(source.run, allow_of(components.config))
    assert source.library is not None
    try:
        config = library(source.library).config(source.path)
    except UserError as error:
        raise UserError(f"{KEY}={source}: {error}") from error
    config = config | {
        key: components.config[key] for key in ("data", "objective", "allow") if key in components.config
    }
    try:
        return Components(config)
    except ValueError as error:
        raise UserError(f"{KEY}={source}: {error}") from error


def _of_library(source: Source, teacher: Components) -> nn.Module:
    """A library's model with its weights, for inputs of the run's sizes. Raises UserError where they do not fit."""
    assert source.library is not None
    weights = library(source.library).weights(source.path)
    for text in _library_problems(source, teacher):
        raise UserError(f"{KEY}={source}: {text}")
    model = teacher.model(0)
    put(model, weights, _transfer(source, teacher, model), ours=facts(teacher).layout)
    return model


def _library_problems(source: Source, teacher: Components) -> Iterator[str]:
    """Yield which weights of a library's model do not fit the sizes of the run."""
    for text in _transfer(source, teacher, teacher.meta_model()).problems(None, strict=True):
        yield text.partition("; init.strict")[0]


def _transfer(source: Source, teacher: Components, model: nn.Module) -> Transfer:
    stored = outline(source)
    return compare(model, stored.shapes, None, head=True, ours=facts(teacher).layout, dtypes=stored.dtypes)
