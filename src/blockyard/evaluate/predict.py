"""Predictions of a finished run for new inputs: classes of texts, images and rows with probabilities, or values."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import Batch, Standardized
from blockyard.data.rows.new_inputs import ModalityReader, is_array
from blockyard.errors import UserError
from blockyard.evaluate.tagged import TaggedSentence, tag_inputs
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded, load, splits_of

BATCH = 64  # inputs in a forward pass


@dataclass(frozen=True)
class Predictions:
    """Predictions for n inputs.

    inputs: texts, or names of files and rows; names: V, of the classes or values
    probabilities: (n, V) of classes, or of labels of which several may be there; None for a run that predicts values
    values: (n, V) in the units of the data; None for a run that predicts classes
    several: whether the probabilities are of labels, each there or not
    tagged: the words of each input with their tags; None for a run that predicts one thing for a whole input
    """

    inputs: list[str]
    names: list[str]
    probabilities: Tensor | None = None
    values: Tensor | None = None
    several: bool = False
    tagged: list[TaggedSentence] | None = None

    @property
    def answers(self) -> list[str]:
        """The most probable class of each input, its labels from 0.5 on, or its text with spans in brackets.

        Empty for a run that predicts values.
        """
        if self.tagged is not None:
            return [sentence.text for sentence in self.tagged]
        if self.probabilities is None:
            return []
        if not self.several:
            return [self.names[index] for index in self.probabilities.argmax(1).tolist()]
        answers = []
        for row in (self.probabilities >= 0.5).tolist():
            answers.append(", ".join(name for name, there in zip(self.names, row, strict=True) if there))
        return answers


def predict(
    run: str | os.PathLike[str] | RunFolder,
    inputs: Sequence[str],
    *,
    column: str | None = None,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> tuple[Predictions, Loaded]:
    """Predict the class of each input, its labels, the tags of its words, or its values with objective=regress.

    Values are in the units of the data.

    inputs: as the run reads them; `data.rows.new_inputs` and the data module's `read_new` say which files
    column: of a table, that of the texts; default: the one that the run's data names, else `text`
    which: "best", "last" or "previous"

    Raises UserError where the run predicts nothing of this kind, an input cannot be read, or the run's data is missing,
    which says how images and numbers are normalized.
    """
    if not len(inputs):
        raise UserError("no input: inputs is an empty list")
    if isinstance(inputs, str):
        raise UserError(f"inputs is a list, such as [{inputs!r}]")
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    objective = loaded.objective
    if objective.target == "tags":
        tagged = tag_inputs(loaded, inputs, column)
        texts = [" ".join(sentence.forms) for sentence in tagged]
        return Predictions(texts, _class_names(loaded), tagged=tagged), loaded
    # An objective of values may also continue a series, or predict values of each token.
    of_sample = objective.takes == "sequence" and loaded.data.spec.modality != "series"
    if objective.target not in ("class", "labels") and not (objective.target == "values" and of_sample):
        choices = loaded.folder.facts().get("choices")
        choice = choices.get("objective") if isinstance(choices, dict) else "unknown"
        raise UserError(
            f"{loaded.folder.name} predicts no class or value of a whole sample, and no tags (objective="
            f"{choice}); `generate` writes texts and images, `forecast` continues series"
        )
    names, batches = read_new(loaded, inputs, column)
    outputs_of = _outputs(loaded, batches)
    if objective.target == "values":
        return Predictions(names, _value_names(loaded), values=_in_units(loaded, outputs_of)), loaded
    if objective.target == "labels":
        return Predictions(names, _class_names(loaded), probabilities=outputs_of.sigmoid(), several=True), loaded
    return Predictions(names, _class_names(loaded), probabilities=outputs_of.softmax(-1)), loaded


def read_new(loaded: Loaded, inputs: Sequence[str], column: str | None = None) -> tuple[list[str], Iterator[Batch]]:
    """Return new inputs by name, and batches of them without targets, as the run's data reads them.

    A run that reads a source alone, or through an encoder, gets the inputs as its source.

    column: of a table, the column of the texts; None is the column of the run's data
    Raises UserError where an input cannot be read, and for a run whose inputs no file can hold.
    """
    run, components = loaded.folder.name, loaded.components
    crosses = components.architecture.crosses
    reads_source = crosses or loaded.objective.reads == "source"
    ctx = loaded.model.ctx
    reader = ModalityReader(
        run=run,
        tokenizer=components.source_tokenizer if reads_source else loaded.tokenizer,
        source=reads_source,
        max_len=(ctx.source_tokens if crosses else ctx.tokens).max_len,
        column=column,
        test=lambda: test_split(loaded),
        data=loaded.data,
    )
    spec = reader.spec
    if column is not None and (spec.modality != "text" or spec.source is not None or spec.joined):
        raise UserError(f"column={column}: {run} reads {spec.things}, not tables of texts")
    if spec.source is None and any(map(is_array, inputs)):
        names, split = reader.arrays(inputs)
    else:
        names, split = loaded.data.read_new(inputs, reader)
    # A model of texts of one length knows no padding, so each of them is a batch.
    size = 1 if spec.modality == "text" and not spec.variable else BATCH

    def batches() -> Iterator[Batch]:
        for order in torch.arange(len(names)).split(size):
            batch = split.batch(order, None)
            yield replace(batch, target=None, lengths=batch.lengths if spec.variable else None)

    return names, batches()


def test_split(loaded: Loaded) -> Any:
    """Return the run's test split, which knows how values are standardized. Raises UserError without the data."""
    missing = loaded.data.missing()
    if missing:
        raise UserError(f"{loaded.data.spec.things} are standardized as the training split was: {missing}")
    return splits_of(loaded).test


def _class_names(loaded: Loaded) -> list[str]:
    """Return the names of the classes, or their numbers where the data has none."""
    return list(loaded.data.spec.class_names) or [str(index) for index in range(loaded.data.spec.classes or 0)]


def _value_names(loaded: Loaded) -> list[str]:
    """Return the columns of the targets of a table, or the numbers of the values."""
    columns = getattr(loaded.data, "target", None)
    count = math.prod(loaded.data.spec.values or (0,))
    if isinstance(columns, list | tuple) and len(columns) == count:
        return list(map(str, columns))
    return [f"value {index}" for index in range(count)]


def _in_units(loaded: Loaded, standardized: Tensor) -> Tensor:
    """Return values (n, V) in the units of the data. Raises UserError for data that does not say which they are."""
    split = test_split(loaded)
    if not isinstance(split, Standardized):
        raise UserError(f"{loaded.folder.name}: {type(split).__name__} does not say in which units its values are")
    shape = loaded.data.spec.values or ()
    mean = split.mean.double().expand(shape).flatten()  # (V,)
    std = split.std.double().expand(shape).flatten()  # (V,)
    return standardized * std + mean


def _outputs(loaded: Loaded, batches: Iterator[Batch]) -> Tensor:
    """Return the predictions of the model, (n, V)."""
    parts = []
    with torch.no_grad():
        for batch in batches:
            try:
                prediction = loaded.model(batch)  # (B, V)
            except ValueError as error:  # a model for sequences of one length
                raise UserError(f"{loaded.folder.name} does not read this: {error}") from error
            parts.append(prediction.double().flatten(1))
    return torch.cat(parts)
