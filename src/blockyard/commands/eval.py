"""blockyard eval run=RUN [split=test|validation|train] [which=best|last|previous|best@ema] [outputs=FOLDER]
       [allow=[PACKAGE]] [extrapolate=[2,4,8] [position.OPTION=VALUE ...]]
       [write=true [beam=4 [length_penalty=0.6]] [judge=RUN]] [resolution=[0.5,1,2]] [loops=[1,2,4]]
       [predictions=true] [metrics=[NAME]] [data.root=FOLDER] [data.path=FILE]

Compute the metrics of a run's model on one split, from its checkpoint.

With extrapolate, evaluate a decoder on sequences so many times longer than in training, with the same text (or task)
at every length: prints a table and writes extrapolation-SPLIT.json and .svg into the run's folder. Options of the
position scheme that leave the weights as they are may be changed for it; such a curve gets a name of its own.

With write, decode every source of a sequence-to-sequence run, greedily or by beam search (codes of images and sounds
are sampled where no beam is set): prints exact match, BLEU, chrF and the error rates of characters and words, adds
them to the run's summary, and writes the texts to written-SPLIT.jsonl in its folder. Of the test split, the
baselines of the run are printed beside them: a copy of the source, and the text of the nearest training source. A
beam search prefers shorter texts with a length_penalty below 1, the power of the length that log probabilities are
divided by. Of sounds it also draws written-SPLIT.png: the spectrograms of the first four with what the model
attended to, where CTC hears each label, the reference and what was written; the page of `compare` shows that of the
test split. Where images are written, each is sampled once, a judge that belongs to the data reads it as a text, and
the readings are scored, beside those of the true images (@truth) and of the same after the tokenizer (@codes), which
a model cannot surpass; drawn-SPLIT.png shows the first twelve. Where sounds are written, judge=RUN names the run of
objective=ctc that hears them as texts, whose error rate of characters is scored likewise; spoken-SPLIT.png has the
spectrograms of the first four, and spoken-SPLIT-1.wav and so on their sound. Of a run that tags words, each sentence
with its spans in brackets is written, as the run itself did for the test split at its end.

With resolution, evaluate a classifier of images on the same images in other sizes, so many times as high and wide as in
training: prints a table and writes resolution-SPLIT.json and .png into the run's folder; the page of `compare` shows
the picture of the test split.

With loops, evaluate a model whose `model.order` is a loop, such as [0,1,2,1,2,3], with other numbers of times through
it than in training. Weights for each visit, as most choices of `residual` have, cannot be used more or less often.

With predictions, also write the prediction for each sample to predictions-SPLIT.npz in the run's folder, as every run
does for the test split at its end: for runs of older versions, and for other splits. The page of `compare` shows
those of the test split.

Files about other weights than those of the run's summary, and about other data, have names of their own, such as
predictions-SPLIT-last.npz and written-SPLIT-data-1f3a5c7e.jsonl, and the summary stays as it is.

With metrics, further metrics of torchmetrics by name or of your own, as `objective.metrics` takes them.

With data.root, data.path or data.splits, the data are read from another place than in training; a warning says so where
their content is not that of the run.

Examples:
  blockyard eval run=last split=validation
  blockyard eval run=last write=true beam=4
  blockyard eval run=last split=validation predictions=true
  blockyard eval run=last metrics=[F1Score,CalibrationError]
  blockyard eval run=last extrapolate=[2,4] position.scaling=yarn
  blockyard eval run=looped loops=[1,2,4,8]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from blockyard.atomic_files import write_json
from blockyard.commands._args import Args, checkpoint, read, run_of
from blockyard.commands._figures import draw
from blockyard.config.option_text import boolean, config_value, integer, non_empty, number, one_of, read_option
from blockyard.errors import UserError, printable

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder

KEYS = (
    *("run", "split", "which", "outputs", "allow", "extrapolate", "write", "beam", "length_penalty", "judge"),
    *("resolution", "loops"),
    *("predictions", "metrics", "data.root", "data.path", "data.splits"),
)


class RunSelection(TypedDict):
    """Which weights of a run are evaluated on which split, and what the config may name."""

    split: str
    which: str
    outputs: str
    allow: list[str]


def run(arguments: Sequence[str]) -> int:
    """Print one line a metric, or one line a length of the sequences."""
    args = read("eval", arguments)
    name = args.pop("run")
    settings: RunSelection = {
        "split": args.pop("split", "test", one_of("test", "validation", "train")),
        "which": args.pop("which", "best", checkpoint),
        "outputs": args.pop("outputs", "outputs"),
        "allow": args.pop_allow(),
    }
    factors = args.pop("extrapolate", None, partial(_whole_numbers, least=2))
    position = {} if factors is None else _position(args)
    sizes = args.pop("resolution", None, _sizes)
    write, beam = args.pop("write", False, boolean), args.pop("beam", None, integer(1))
    penalty = args.pop("length_penalty", None, number(0))
    judge = args.pop("judge", None, non_empty)
    samples = args.pop("predictions", False, boolean)
    loops = args.pop("loops", None, partial(_whole_numbers, least=1))
    metrics, moved = args.pop("metrics", None, config_value), args.pop_moved()
    args.check_empty("eval", KEYS)
    if beam is not None and not write:
        raise UserError(f"beam={beam} has an effect with write=true only; add it, or leave beam out")
    if penalty is not None and beam is None:
        raise UserError(
            f"length_penalty={penalty:g} has an effect with beam=N only; add it, or leave length_penalty out"
        )
    if judge is not None and not write:
        raise UserError(f"judge={judge} has an effect with write=true only; add it, or leave judge out")
    kinds = {
        "write=true": write,
        "extrapolate=": factors is not None,
        "resolution=": sizes is not None,
        "predictions=true": samples,
        "metrics=": metrics is not None,
        "loops=": loops is not None,
    }
    chosen = [kind for kind, requested in kinds.items() if requested]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)} exclude each other; leave all but one out")
    name = run_of(name, "eval", settings["outputs"], moved)
    if factors is not None:
        return _extrapolate(name, factors, position, settings)
    if write:
        return _write(name, beam, 1.0 if penalty is None else penalty, judge, settings)
    if sizes is not None:
        return _resolution(name, sizes, settings)
    if samples:
        return _samples(name, settings)
    from blockyard.evaluate.api import evaluate

    for metric, value in evaluate(name, metrics=metrics, loops=loops or (), **settings).items():
        sys.stdout.write(f"{metric:<24} {value:.6g}\n")
    return 0


def _samples(name: str | RunFolder, settings: RunSelection) -> int:
    from blockyard.evaluate.api import evaluate_samples
    from blockyard.runs.predictions_file import write_predictions
    from blockyard.runs.result_files import result_stem

    metrics, predictions, loaded = evaluate_samples(name, **settings)
    for metric, value in metrics.items():
        sys.stdout.write(f"{metric:<24} {value:.6g}\n")
    path = loaded.folder.path / f"{result_stem(loaded, 'predictions', predictions.meta['part'])}.npz"
    try:
        write_predictions(path, predictions)
    except OSError as error:
        raise UserError(f"the predictions cannot be written into {loaded.folder.path}: {error}") from None
    sys.stderr.write(f"{path}\n")
    return 0


def _extrapolate(name: str | RunFolder, factors: list[int], position: dict[str, Any], settings: RunSelection) -> int:
    from blockyard.evaluate.length_extrapolation import evaluate_longer, table, write
    from blockyard.runs.result_files import result_stem

    curve, loaded = evaluate_longer(name, factors, position=position, **settings)
    sys.stdout.write(table(curve.plain()))
    try:
        stem = result_stem(loaded, "extrapolation", curve.part)
        paths = write(loaded.folder.path, curve.plain(), loaded.weights, position, stem)
    except OSError as error:
        raise UserError(f"the curve cannot be written into {loaded.folder.path}: {error}") from None
    sys.stderr.write(f"{' and '.join(str(path) for path in paths)}\n")
    if all(length.refused for length in curve.lengths[1:]):
        raise UserError(f"extrapolate={factors}: the model can read none of these lengths; the table gives the reasons")
    return 0


def _write(name: str | RunFolder, beam: int | None, penalty: float, judge: str | None, settings: RunSelection) -> int:
    from blockyard.evaluate.api import evaluate_written
    from blockyard.evaluate.written import write

    written, loaded = evaluate_written(name, beam=beam, length_penalty=penalty, judge=judge, **settings)
    for metric, value in written.metrics().items():
        sys.stdout.write(f"{metric:<31} {value:.6g}\n")
    for baseline, values in written.of_baselines(loaded.folder.summary().get("baselines", {})).items():
        text = "  ".join(f"{metric} {value:.4g}" for metric, value in values.items())
        sys.stdout.write(printable(f"baseline {baseline}: {text}\n"))
    try:
        path, added = write(loaded, written)
        figures = draw("written", loaded, written, f"the {written.part} split", path)
    except OSError as error:
        raise UserError(f"the texts cannot be written into {loaded.folder.path}: {error}") from None
    sys.stderr.write(
        f"{path}{'' if added else '; not in the summary, which is about other weights or data, or a whole split'}\n"
    )
    sys.stderr.write("".join(f"{figure}\n" for figure in figures))
    return 0


def _resolution(name: str | RunFolder, factors: list[float], settings: RunSelection) -> int:
    from blockyard.evaluate.resolution import evaluate_resolutions, table
    from blockyard.runs.result_files import result_stem

    resolutions, loaded = evaluate_resolutions(name, factors, **settings)
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
        raise UserError(f"resolution={factors}: the model can read none of these sizes; the table gives the reasons")
    return 0


def _sizes(text: str) -> list[float]:
    reader = number(0, exclusive=True)
    try:
        return [reader(part.strip()) for part in text.strip("[]() ").split(",")]
    except ValueError:
        raise ValueError("a list of numbers above 0, such as [0.5,1,2]") from None


def _whole_numbers(text: str, least: int) -> list[int]:
    reader = integer(least)
    try:
        return [reader(part.strip()) for part in text.strip("[]() ").split(",")]
    except ValueError:
        raise ValueError(f"a list of whole numbers >= {least}, such as [2,4,8]") from None


def _position(args: Args) -> dict[str, Any]:
    """The values of `position.OPTION=VALUE`, removed from the overrides."""
    values = args.pop_prefix("position.")
    return {key: read_option(f"position.{key}", text, config_value) for key, text in values.items()}
