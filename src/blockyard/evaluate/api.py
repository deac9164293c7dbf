"""`blockyard eval`: a run's metrics on one split, computed again from its checkpoint.

The same pass over the data as at the end of training (`evaluate.loop`), in the precision and on the kind of device
recorded there, so that on the same machine the values are equal.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load, splits_of

if TYPE_CHECKING:
    from blockyard.contracts import Model, Split
    from blockyard.evaluate.written import Written
    from blockyard.runs.load import Loaded
    from blockyard.runs.predictions_file import SamplePredictions


Result = TypeVar("Result")

log = logging.getLogger("blockyard")

SPLITS = ("test", "validation", "train")
PARTS = {"test": "test", "validation": "val", "train": "train"}  # as they are named in metrics
_LIMIT = {"test": "limit_test", "validation": "limit_val"}


class PassSettings(TypedDict):
    """The settings of a pass over a split. limit: the largest number of batches, or None."""

    batch_size: int
    device: str
    precision: str
    limit: int | None


def as_recorded(loaded: Loaded, split: str, function: Callable[[Model, Split, PassSettings], Result]) -> Result:
    """Call `function` with the model, a split and the settings that the run recorded, and return its result.

    The run's number of threads is used during the call, and its kind of device, where the model does not stay.

    Raises UserError where the data are missing.
    """
    # An unfinished run has no summary, but its precision and threads are in run.json.
    facts = loaded.folder.facts()
    summary = {key: facts[key] for key in ("precision", "data") if key in facts} | loaded.folder.summary()
    if "threads" not in summary and isinstance(facts.get("threads"), dict):
        summary["threads"] = facts["threads"].get("threads")
    options = loaded.components.node("trainer")
    before = next(loaded.model.parameters()).device
    threads = _use_threads(summary.get("threads"))
    try:
        splits = splits_of(loaded)
        fingerprint = loaded.data.fingerprint()
        recorded = (summary.get("data") or {}).get("fingerprint")
        if recorded and recorded != fingerprint:
            log.warning(
                "the data differs from what the run was trained on (%s, now %s)", recorded[:12], fingerprint[:12]
            )
        device = _device(summary, options.accelerator)
        settings: PassSettings = {
            "batch_size": loaded.data.eval_batch_size,
            "device": device,
            "precision": _precision(summary, options.precision),
            "limit": getattr(options, _LIMIT[split]) if split in _LIMIT else None,
        }
        return function(loaded.model.to(device), getattr(splits, split), settings)
    finally:
        loaded.model.to(before)
        _use_threads(threads)


def _precision(summary: Mapping[str, Any], configured: str | int) -> str:
    recorded = summary.get("precision")
    if isinstance(recorded, dict) and recorded.get("precision"):
        return str(recorded["precision"])
    return "32" if configured == "auto" else str(configured)


def _device(summary: Mapping[str, Any], accelerator: str) -> str:
    import torch

    recorded = summary.get("device")
    wants_gpu = recorded != "cpu" if recorded else accelerator != "cpu"
    if wants_gpu and torch.cuda.is_available():
        return "cuda"
    if recorded and recorded != "cpu":
        log.warning("the run was on %s, this is the CPU: values may differ in the last digits", recorded)
    return "cpu"


def _use_threads(threads: int | None) -> int:
    """Set the run's number of threads, on which the order of additions depends; return the number before."""
    import torch

    before = torch.get_num_threads()
    if threads and threads != before:
        torch.set_num_threads(int(threads))
    return before


def check_split(split: str) -> None:
    """Raise UserError for a split that no data have."""
    if split not in SPLITS:
        raise UserError(f"split={split!r}: expected one of {', '.join(SPLITS)}")


def evaluate(
    run: str | os.PathLike[str] | RunFolder,
    *,
    split: str = "test",
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    metrics: Any = None,
    loops: Sequence[int] = (),
) -> dict[str, float]:
    """Compute the metrics of a run's objective on a split, named as in its metrics.csv: `test/accuracy`.

    run: a path, a name, an id or the beginning of one, or `last`; which: "best", "last" or "previous"
    metrics: further metrics by name, in place of the run's own (`objective.metrics`)
    loops: numbers of times through the loop of `model.order`, each with its metrics, `test/accuracy@4loops`
    Raises UserError for a model without such a loop, and where the run, its checkpoint or its data are missing.
    """
    from blockyard.evaluate.loop import evaluate as measure
    from blockyard.model._block_stack import loops as loops_of
    from blockyard.model._block_stack import loops_problem

    check_split(split)
    loaded = load(run, which=which, outputs=outputs, allow=allow, metrics=metrics)

    problem = loops_problem(loaded.model) if loops else None
    if problem:
        raise UserError(f"loops={list(loops)}: {problem}")

    def measured(model: Model, samples: Split, settings: PassSettings) -> dict[str, float]:
        slices = loaded.data.spec.slices
        if not loops:
            return measure(model, samples, loaded.objective, slices=slices, **settings)
        values: dict[str, float] = {}
        for times in loops:
            with loops_of(model, times):
                result = measure(model, samples, loaded.objective, slices=slices, **settings)
            values |= {f"{name}@{times}loops": value for name, value in result.items()}
        return values

    return {f"{PARTS[split]}/{name}": value for name, value in as_recorded(loaded, split, measured).items()}


def evaluate_samples(
    run: str | os.PathLike[str] | RunFolder,
    *,
    split: str = "test",
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> tuple[dict[str, float], SamplePredictions, Loaded]:
    """Compute metrics as `evaluate` does, and the prediction for each sample, as the run's last test keeps them.

    Raises UserError as `evaluate` does, and for an objective that has no one prediction for a sample.
    """
    from blockyard.evaluate.loop import evaluate as measure
    from blockyard.evaluate.loop import samples_of_pass
    from blockyard.evaluate.sample_predictions import SampleRecorder

    check_split(split)
    loaded = load(run, which=which, outputs=outputs, allow=allow)

    def metrics(model: Model, samples: Split, settings: PassSettings) -> tuple[dict[str, float], SamplePredictions]:
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
    length_penalty: float = 1.0,
    split: str = "test",
    judge: str | None = None,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> tuple[Written, Loaded]:
    """Write the target of every source of a split, with a decoder or at once, and score the texts.

    Of a run that tags words, the texts are the sentences with their predicted tags.

    beam: hypotheses of a beam search; None decodes greedily, or of codes of images and sounds draws a sample
    length_penalty: divide the log probability of a hypothesis by its length to this power
    judge: a run of objective=ctc that hears the sounds that this one writes
    Raises UserError as `evaluate` does, and for a run that writes no text from a source and tags none.
    """
    from blockyard.contracts import CodeTokenizer, ReadsOutputs, TextPairs, TextTokenizer, Transcriber
    from blockyard.contracts.objective import writes_from_source
    from blockyard.evaluate.loop import evaluate as measure
    from blockyard.evaluate.tagged import TagRecorder
    from blockyard.evaluate.writable import refusal
    from blockyard.evaluate.written import HeardSplit, write_split
    from blockyard.generate.request import check_has_end

    check_split(split)
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    hears = _judge_of(loaded, judge, outputs=outputs, allow=allow)
    spec = loaded.model.ctx.data

    def tag(model: Model, samples: Split, settings: PassSettings) -> Written:
        recorder = TagRecorder.of(loaded.objective, samples)
        if recorder is None:
            raise UserError(f"{type(loaded.data).__name__} gives no words (`TaggedSplit`) to show with their tags")
        measure(model, samples, loaded.objective, observe=recorder, **settings)
        return recorder.result(PARTS[split])

    if loaded.objective.target == "tags":
        if beam is not None:
            raise UserError(f"beam={beam}: {loaded.folder.name} tags words and writes no text; leave beam out")
        return as_recorded(loaded, split, tag), loaded
    readable = isinstance(loaded.tokenizer, TextTokenizer | CodeTokenizer)
    if not readable or not writes_from_source(spec, loaded.objective):
        raise UserError(
            f"{loaded.folder.name} has no source to write a text from; write=true is for runs that write one, such as "
            "experiment=translate_dates, for objective=ctc and objective=tag, and for runs that write codes, such as "
            "experiment=canvas_drawings. "
            "`blockyard generate` continues a prompt with a decoder of text"
        )
    tokenizer = loaded.tokenizer
    assert isinstance(tokenizer, TextTokenizer | CodeTokenizer)

    def write(model: Model, samples: Split, settings: PassSettings) -> Written:
        if hears is not None:
            samples = HeardSplit(samples, hears)
        if reason := refusal(samples, tokenizer):
            raise UserError(f"{loaded.folder.name}: {reason}")
        assert isinstance(samples, TextPairs | ReadsOutputs)
        objective = loaded.objective if isinstance(loaded.objective, Transcriber) else None
        if objective is not None and length_penalty != 1:
            raise UserError(
                f"length_penalty={length_penalty:g}: {loaded.folder.name} writes all tokens together; leave it out"
            )
        if length_penalty != 1:
            check_has_end(loaded, length_penalty)
        search: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty}
        return write_split(model, samples, tokenizer, part=PARTS[split], objective=objective, **search, **settings)

    return as_recorded(loaded, split, write), loaded


def _judge_of(loaded: Loaded, judge: str | None, **settings: Any) -> Loaded | None:
    """Return the run that transcribes the written sounds; None where texts are written. Raises UserError without it."""
    from blockyard.contracts import SoundTokenizer
    from blockyard.generate.judge import check_hears

    name = loaded.folder.name
    if not isinstance(loaded.tokenizer, SoundTokenizer):
        if judge is not None:
            raise UserError(f"judge={judge} hears sounds, and {name} writes none; leave it out")
        return None
    if judge is None:
        raise UserError(
            f"{name} writes sounds, which a run of objective=ctc has to hear: train one, such as `blockyard train "
            "experiment=tones_ctc`, and add judge=RUN"
        )
    hears = load(judge, **settings)
    check_hears(hears, loaded.tokenizer.rate)
    return hears
