"""`blockyard eval`: evaluate a run, in six ways."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from blockyard.atomic_files import write_json
from blockyard.commands._figures import draw
from blockyard.commands._signature import command
from blockyard.commands._types import (
    OUTPUTS,
    Allow,
    Keys,
    Moved,
    Outputs,
    Run,
    Switch,
    Value,
    Which,
    find_run,
)
from blockyard.config.option_text import config_value, integer, number
from blockyard.errors import UserError, printable

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder


def _factors(text: str) -> list[int]:
    return _whole_numbers(text, least=2)


def _counts(text: str) -> list[int]:
    return _whole_numbers(text, least=1)


def _whole_numbers(text: str, least: int) -> list[int]:
    reader = integer(least)
    try:
        return [reader(part.strip()) for part in text.strip("[]() ").split(",")]
    except ValueError:
        raise ValueError(f"a list of whole numbers >= {least}, such as [2,4,8]") from None


def _sizes(text: str) -> list[float]:
    reader = number(0, exclusive=True)
    try:
        return [reader(part.strip()) for part in text.strip("[]() ").split(",")]
    except ValueError:
        raise ValueError("a list of numbers above 0, such as [0.5,1,2]") from None


@dataclass(frozen=True)
class EvaluatedSplit:
    """The weights of a run that are evaluated, the split, and the packages that the config may name.

    Options:
        split: the data
        moved: read the data from another place than in training; a warning says so where their content is not that of
            the run
    """

    run: Run
    split: Literal["test", "validation", "train"] = "test"
    which: Which = "best"
    outputs: Outputs = OUTPUTS
    allow: Allow = ()
    moved: Moved | None = None

    def folder(self) -> RunFolder:
        """Return the run. Raises UserError where there is none of the name."""
        return find_run(self.run, self.outputs, self.moved)

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the functions of `blockyard.evaluate`."""
        return {"split": self.split, "which": self.which, "outputs": self.outputs, "allow": self.allow}


@command()
def evaluate(
    *, evaluated: EvaluatedSplit, metrics: Annotated[Any, Value("[NAME]", config_value)] | None = None
) -> None:
    """Compute the metrics of a run's model on one split, from its checkpoint.

    Files about other weights than those of the run's summary, and about other data, have names of their own, such as
    predictions-SPLIT-last.npz and written-SPLIT-data-1f3a5c7e.jsonl, and the summary stays as it is.

    Options:
        metrics: further metrics of torchmetrics by name or of your own, as `objective.metrics` takes them

    Examples:
        blockyard eval run=last split=validation
        blockyard eval run=last write=true beam=4
        blockyard eval run=last split=validation predictions=true
        blockyard eval run=last metrics=[F1Score,CalibrationError]
        blockyard eval run=last extrapolate=[2,4] position.scaling=yarn
        blockyard eval run=looped loops=[1,2,4,8]
    """
    folder = evaluated.folder()
    from blockyard.evaluate import api

    _print_metrics(api.evaluate(folder, metrics=metrics, **evaluated.settings()))


@command(key="loops")
def evaluate_loops(*, evaluated: EvaluatedSplit, loops: Annotated[Sequence[int], Value("[1,2,4]", _counts)]) -> None:
    """With loops, evaluate a model whose `model.order` is a loop, such as [0,1,2,1,2,3].

    Weights for each visit, as most choices of `residual` have, cannot be used more or less often.

    Options:
        loops: other numbers of times through the loop than in training
    """
    folder = evaluated.folder()
    from blockyard.evaluate import api

    _print_metrics(api.evaluate(folder, loops=loops, **evaluated.settings()))


@command(key="predictions")
def evaluate_samples(*, evaluated: EvaluatedSplit, predictions: Switch = False) -> None:
    """With predictions, also write the prediction for each sample to predictions-SPLIT.npz in the run's folder.

    Every run does so for the test split at its end: this is for runs of older versions, and for other splits. The page
    of `compare` shows the predictions of the test split.

    Options:
        predictions: write them
    """
    assert predictions
    folder = evaluated.folder()
    from blockyard.evaluate import api
    from blockyard.runs.predictions_file import write_predictions
    from blockyard.runs.result_files import result_stem

    metrics, kept, loaded = api.evaluate_samples(folder, **evaluated.settings())
    _print_metrics(metrics)
    path = loaded.folder.path / f"{result_stem(loaded, 'predictions', kept.meta['part'])}.npz"
    try:
        write_predictions(path, kept)
    except OSError as error:
        raise UserError(f"the predictions cannot be written into {loaded.folder.path}: {error}") from None
    sys.stderr.write(f"{path}\n")


@command(key="extrapolate")
def evaluate_lengths(
    *,
    evaluated: EvaluatedSplit,
    extrapolate: Annotated[Sequence[int], Value("[2,4,8]", _factors)],
    position: Annotated[Mapping[str, Any], Keys("position.", read=config_value)] | None = None,
) -> None:
    """With extrapolate, evaluate a decoder on longer sequences than in training, with the same text (or task).

    Prints a table and writes extrapolation-SPLIT.json and .svg into the run's folder.

    Options:
        extrapolate: how many times longer the sequences are
        position: options of the position scheme that leave the weights as they are, changed for this; such a curve gets
            a name of its own
    """
    folder = evaluated.folder()
    options = dict(position or {})
    from blockyard.evaluate.length_extrapolation import evaluate_longer, table, write
    from blockyard.runs.result_files import result_stem

    curve, loaded = evaluate_longer(folder, extrapolate, position=options, **evaluated.settings())
    sys.stdout.write(table(curve.plain()))
    try:
        stem = result_stem(loaded, "extrapolation", curve.part)
        paths = write(loaded.folder.path, curve.plain(), loaded.weights, options, stem)
    except OSError as error:
        raise UserError(f"the curve cannot be written into {loaded.folder.path}: {error}") from None
    sys.stderr.write(f"{' and '.join(str(path) for path in paths)}\n")
    if all(length.refused for length in curve.lengths[1:]):
        raise UserError(
            f"extrapolate={list(extrapolate)}: the model can read none of these lengths; the table gives the reasons"
        )


@command(key="write")
def evaluate_written(
    *,
    evaluated: EvaluatedSplit,
    write: Switch = False,
    beam: Annotated[int, Ge(1)] | None = None,
    length_penalty: Annotated[float, Ge(0)] | None = None,
    judge: Annotated[Run, Value("RUN")] | None = None,
) -> None:
    """With write, decode every source of a sequence-to-sequence run.

    Prints exact match, BLEU, chrF and the error rates of characters and words, adds them to the run's summary, and
    writes the texts to written-SPLIT.jsonl in its folder. For the test split, the baselines of the run are printed
    beside them: a copy of the source, and the text of the nearest training source.

    For sounds it also draws written-SPLIT.png: the spectrograms of the first four with what the model attended to,
    where CTC hears each label, the reference and what was written; the page of `compare` shows that of the test split.
    Where images are written, each is sampled once, a judge that belongs to the data reads it as a text, and the
    readings are scored, beside those of the true images (@truth) and of the same after the tokenizer (@codes), which a
    model cannot surpass; drawn-SPLIT.png shows the first twelve. Where sounds are written, the error rate of characters
    of what the judge hears is scored likewise; spoken-SPLIT.png has the spectrograms of the first four, and
    spoken-SPLIT-1.wav and so on their sound. For a run that tags words, each sentence with its spans in brackets is
    written, as the run itself did for the test split at its end.

    Options:
        write: decode greedily, or by beam search; codes of images and sounds are sampled where no beam is set
        beam: hypotheses of the beam search
        length_penalty: the power of the length that log probabilities are divided by, 1 by default; a beam search
            prefers shorter texts with less
        judge: the run of objective=ctc that hears written sounds as texts
    """
    assert write
    if length_penalty is not None and beam is None:
        raise UserError(
            f"length_penalty={length_penalty:g} has an effect with beam=N only; add it, or leave length_penalty out"
        )
    penalty = 1.0 if length_penalty is None else length_penalty
    folder = evaluated.folder()
    from blockyard.evaluate import api
    from blockyard.evaluate.written import write as write_texts

    written, loaded = api.evaluate_written(
        folder, beam=beam, length_penalty=penalty, judge=judge, **evaluated.settings()
    )
    for metric, value in written.metrics().items():
        sys.stdout.write(f"{metric:<31} {value:.6g}\n")
    for baseline, values in written.of_baselines(loaded.folder.summary().get("baselines", {})).items():
        text = "  ".join(f"{metric} {value:.4g}" for metric, value in values.items())
        sys.stdout.write(printable(f"baseline {baseline}: {text}\n"))
    try:
        path, added = write_texts(loaded, written)
        figures = draw("written", loaded, written, f"the {written.part} split", path)
    except OSError as error:
        raise UserError(f"the texts cannot be written into {loaded.folder.path}: {error}") from None
    note = ""
    if not added:
        note = "; not in the summary, which is about other weights or data, or a whole split"
    sys.stderr.write("".join(f"{line}\n" for line in (f"{path}{note}", *figures)))


@command(key="resolution")
def evaluate_sizes(
    *, evaluated: EvaluatedSplit, resolution: Annotated[Sequence[float], Value("[0.5,1,2]", _sizes)]
) -> None:
    """With resolution, evaluate a classifier of images on the same images in other sizes.

    Prints a table and writes resolution-SPLIT.json and .png into the run's folder; the page of `compare` shows the
    picture of the test split.

    Options:
        resolution: how many times as high and wide as in training the images are
    """
    folder = evaluated.folder()
    from blockyard.evaluate.resolution import evaluate_resolutions, table
    from blockyard.runs.result_files import result_stem

    resolutions, loaded = evaluate_resolutions(folder, resolution, **evaluated.settings())
    sys.stdout.write(table(resolutions))
    stem = result_stem(loaded, "resolution", resolutions.part)
    path = loaded.folder.path / f"{stem}.json"
    try:
        write_json(path, {**resolutions.plain(), "weights": loaded.weights})
        figures = draw("resolution", loaded, resolutions, "the same images in other sizes", path)
    except OSError as error:
        raise UserError(f"the table cannot be written into {loaded.folder.path}: {error}") from None
    sys.stderr.write(f"{' and '.join(map(str, [path, *figures]))}\n")
    if all(size.refused for size in resolutions.sizes if size.factor != 1) and len(resolutions.sizes) > 1:
        raise UserError(
            f"resolution={list(resolution)}: the model can read none of these sizes; the table gives the reasons"
        )


def _print_metrics(metrics: Mapping[str, float]) -> None:
    for metric, value in metrics.items():
        sys.stdout.write(f"{metric:<24} {value:.6g}\n")
