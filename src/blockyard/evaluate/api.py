"""`blockyard eval`: a run's metrics on one split, computed again from its checkpoint.

The same pass over the data as at the end of training (`evaluate.loop`), in the precision and on the kind of device
recorded there, so that on the same machine the values are equal.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from blockyard.errors import UserError
from blockyard.evaluate.as_recorded import PARTS, as_recorded, check_split
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load

if TYPE_CHECKING:
    from torch import nn

    from blockyard.contracts import Split
    from blockyard.evaluate.written import Written
    from blockyard.runs.load import Loaded
    from blockyard.runs.predictions_file import SamplePredictions


def evaluate(
    run: str | os.PathLike[str] | RunFolder,
    *,
    split: str = "test",
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    metrics: Any = None,
) -> dict[str, float]:
    """The metrics of a run's objective on a split, named as in its metrics.csv: `test/accuracy`.

    run: a path, a name, an id or the beginning of one, or `last`; which: "best", "last" or "previous"
    metrics: further metrics by name, in place of the run's own (`objective.metrics`)
    Raises UserError where the run, its checkpoint or its data are missing.
    """
    from blockyard.evaluate.loop import evaluate as measure

    check_split(split)
    loaded = load(run, which=which, outputs=outputs, allow=allow, metrics=metrics)

    def measured(model: nn.Module, samples: Split, settings: dict[str, Any]) -> dict[str, float]:
        return measure(model, samples, loaded.objective, slices=loaded.data.spec.slices, **settings)

    return {f"{PARTS[split]}/{name}": value for name, value in as_recorded(loaded, split, measured).items()}


def evaluate_samples(
    run: str | os.PathLike[str] | RunFolder,
    *,
    split: str = "test",
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> tuple[dict[str, float], SamplePredictions, Loaded]:
    """The metrics as of `evaluate`, and the prediction for each sample of the split, as the run's last test keeps them.

    Raises UserError as `evaluate` does, and for an objective that has no one prediction for a sample.
    """
    from blockyard.evaluate.loop import evaluate as measure
    from blockyard.evaluate.loop import samples_of_pass
    from blockyard.evaluate.sample_predictions import SampleRecorder

    check_split(split)
    loaded = load(run, which=which, outputs=outputs, allow=allow)

    def metrics(
        model: nn.Module, samples: Split, settings: dict[str, Any]
    ) -> tuple[dict[str, float], SamplePredictions]:
        total = samples_of_pass(samples, settings["batch_size"], settings["limit"])
        recorder = SampleRecorder(loaded.objective, samples, loaded.data.spec, total=total)
        values = measure(model, samples, loaded.objective, slices=loaded.data.spec.slices, observe=recorder, **settings)
        predictions = recorder.result(
            part=PARTS[split],
            weights=loaded.weights,
            step=loaded.step,
            fingerprint=loaded.data.fingerprint(),
        )
        if predictions is None:
            raise UserError(f"{loaded.folder.name}: {recorder.reason}")
        return values, predictions

    values, predictions = as_recorded(loaded, split, metrics)
    return {f"{PARTS[split]}/{name}": value for name, value in values.items()}, predictions, loaded


def evaluate_written(
    run: str | os.PathLike[str] | RunFolder,
    *,
    beam: int | None = None,
    split: str = "test",
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> tuple[Written, Loaded]:
    """What a run writes for every source of a split, with a decoder or at once, with its scores.

    beam: hypotheses of a beam search; None decodes greedily
    Raises UserError as `evaluate` does, and for a run that writes no text from a source.
    """
    from blockyard.contracts import TextPairs, TextTokenizer, Transcriber
    from blockyard.evaluate.written import write_split

    check_split(split)
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    spec = loaded.model.ctx.data
    writes = spec.joined or (spec.source is not None and loaded.objective.needs_source)
    writes = writes or isinstance(loaded.objective, Transcriber)
    if not writes or not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(
            f"{loaded.folder.name} has no source to write a text from; write=true is for runs that write one, such as "
            "experiment=translate_dates, and for objective=ctc. "
            "`blockyard generate` continues a prompt with a decoder of text"
        )
    tokenizer = loaded.tokenizer

    def write(model: nn.Module, samples: Split, settings: dict[str, Any]) -> Written:
        if not isinstance(samples, TextPairs):
            raise UserError(
                f"{type(loaded.data).__name__} gives no texts (`TextPairs`) to compare what is written with"
            )
        objective = loaded.objective if isinstance(loaded.objective, Transcriber) else None
        return write_split(model, samples, tokenizer, part=PARTS[split], beam=beam, objective=objective, **settings)

    return as_recorded(loaded, split, write), loaded
