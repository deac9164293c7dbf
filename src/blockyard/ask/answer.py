"""From a file and a question to the sweep file that the hours decide, and what it can and cannot show."""

from __future__ import annotations

import math
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blockyard.ask.arms import default_arms, read_arms
from blockyard.ask.choose import Length, Resolution, choose_length, refuse_blind, resolution, seeds_to_decide
from blockyard.ask.draft import Draft, Seeds
from blockyard.ask.measure import (
    Measurement,
    Prepared,
    Say,
    first_steps,
    measure_noise,
    parallel_runs,
    prepare,
    rate_setting,
    smaller_batch,
)
from blockyard.ask.recipe import recipe_settings
from blockyard.ask.subject import Setting, Subject, look
from blockyard.atomic_files import write_text
from blockyard.config.compose import compose
from blockyard.engine.data_reader import DataReader
from blockyard.errors import UserError
from blockyard.report.stats.metric_range import SHARE, best_value, metric_range
from blockyard.report.stats.sensitivity import samples_noise
from blockyard.sweep.execution.estimate import format_duration
from blockyard.sweep.execution.step_times import MeasuredRun

# The way on where a small model from nothing stays below a simple one, by the kind of data.
WAYS_ON = {
    "text": "a model that was trained on other texts before, init.from=hf:NAME",
    "image": "a model that was trained on other images before, init.from=timm:NAME",
    "vector": "more samples; on a few columns a simple model may be all that is needed",
}
WAY_ON = "pre-training on more data of the kind, then init.from=RUN"
HALF = 0.5  # of the steps, from which on the short runs show where the whole ones end
_NAMES = 12  # columns of the names of lines
_WIDTH = 110  # columns of the comments at the top of the file


@dataclass(frozen=True)
class Answer:
    """A sweep file that was written. path: of it; sentences: what it can and cannot show, a line each"""

    path: Path
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """What the user asks.

    file: of the data
    claim: the words of the question, or ""
    arms: as typed, or None
    overrides: typed ones, which are not chosen
    hours: of the sweep
    out: of the sweep file
    command: as it was typed
    """

    file: Path
    claim: str
    arms: str | None
    overrides: Sequence[str]
    hours: float
    out: Path
    command: str
    config_dirs: Sequence[str] = ()

    @property
    def typed(self) -> dict[str, str]:
        """The typed overrides by their keys."""
        return dict(override.lstrip("+").partition("=")[::2] for override in self.overrides)


def answer(question: Question, say: Say) -> Answer:
    """Write the sweep file of a question. Raises UserError, with nothing written, where there is none.

    say: shows what is measured now
    """
    refuse_existing(question.out)
    arms = None
    if question.arms is not None:
        arms = read_arms(question.arms)
    with tempfile.TemporaryDirectory(prefix="blockyard-ask-") as temporary:
        folder = Path(temporary)
        say(f"reading {question.file}")
        subject = look(question.file, question.typed, folder)
        draft = draft_of(question, subject, arms)
        reader = DataReader(None)
        prepared = prepare(draft, folder, question.config_dirs, reader)
        batch = smaller_batch(prepared)
        if batch is not None and batch.key not in question.typed:
            prepared = prepare(draft.with_settings([batch]), folder, question.config_dirs, reader)
        run = first_steps(prepared, say)
        alone = _alone(prepared, run)
        # Hours that are too short for undisturbed runs are so for all: nothing more is measured.
        choose_length(alone, run.total, parallel_runs(), question.hours)
        if "optimizer.lr" not in question.typed:
            rate = rate_setting(prepared, run, question.hours, say)
            prepared = replace(prepared, draft=prepared.draft.with_settings([rate]))
        measurement = measure_noise(prepared, run, question.hours, folder, question.config_dirs, say)
        return _write(question, subject, prepared.draft, measurement)


def refuse_existing(path: Path) -> None:
    """Raise UserError where a file that is to be written is there already, or its folder is not."""
    if path.exists():
        raise UserError(f"{path} exists already and is not overwritten; out=FILE.yaml names another one")
    if not path.parent.is_dir():
        raise UserError(f"out={path}: no folder {path.parent}")
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"out={path}: a sweep file ends in .yaml")


def draft_of(question: Question, subject: Subject, arms: Mapping[str, Sequence[str]] | None) -> Draft:
    """Return the sweep file before anything is measured: by what the data is read, the recipe, and the arms."""
    settings = [setting for setting in subject.settings if setting.key not in question.typed]
    overrides = [*(setting.override for setting in settings), *question.overrides]
    composed = compose(overrides, question.config_dirs)
    recipe = composed.recipe.name if composed.recipe else "image_class"
    claim = question.claim
    if arms is None:
        default_claim, arms = default_arms(recipe, composed.choices)
        claim = claim or default_claim
    claim = claim or f"{' and '.join(arms)} differ on {question.file.name}"
    varied = {key.lstrip("+~").partition(".")[0] for key in question.typed}
    for arm in arms.values():
        varied |= {override.partition("=")[0].partition(".")[0] for override in arm}
    settings += recipe_settings(composed, varied - {"data"})
    return Draft(claim, tuple(settings), arms, recipe=recipe, typed=tuple(question.overrides))


def _alone(prepared: Prepared, run: MeasuredRun) -> Callable[[int], list[float]]:
    """Return a function of a number of steps: the seconds of a run of each arm that is alone, as of the baseline."""

    def seconds_of(steps: int) -> list[float]:
        seconds = replace(run, total=steps).seconds(prepared.config, prepared.splits)
        return [seconds] * len(prepared.draft.arms)

    return seconds_of


def _write(question: Question, subject: Subject, draft: Draft, measurement: Measurement) -> Answer:
    """Choose the rest, and write the sweep file, and the sample of a large table beside it."""
    metric = measurement.metric
    total = measurement.run.total
    length = choose_length(measurement.seconds_of, total, measurement.parallel, question.hours)
    result = resolution(
        metric, list(measurement.scores.values()), seeds=length.seeds, test_samples=len(measurement.splits.test)
    )
    refuse_blind(metric, result, _span(measurement), question.hours, length.seeds)
    settings = []
    if length.steps < total and not {"trainer.max_steps", "trainer.max_epochs"} & set(question.typed):
        reason = f"as many as the hours have room for; the recipe's are {total:,}"
        settings.append(Setting("trainer.max_steps", length.steps, reason))
    sample = subject.sample
    if sample is not None:
        sampled = question.out.parent / sample.path.name
        refuse_existing_sample(sampled)
        settings.append(
            Setting("data.path", str(sampled), f"{sample.num_rows:,} of {sample.of_rows:,} rows, drawn evenly")
        )
    sentences = _sentences(question, subject, draft, measurement, length, result)
    seeds = Seeds(length.seeds, "as many as the hours have room for; it ends when every comparison is decided")
    final = replace(
        draft.with_settings(settings),
        seeds=seeds,
        margin=result.margin,
        margin_reason=f"arms that differ by less count as equal, which {length.seeds} seeds can tell",
        header=_header(question, draft.claim, sentences),
    )
    if sample is not None:
        shutil.move(sample.path, sampled)
    write_text(question.out, final.text())
    run_it = f"blockyard sweep {question.out}"
    return Answer(question.out, tuple(_folded([*sentences, ("file", f"{question.out}; {run_it} runs it")])))


def refuse_existing_sample(path: Path) -> None:
    """Raise UserError where the sample of a table would overwrite a file."""
    if path.exists():
        raise UserError(f"{path}, the sample of the table, exists already and is not overwritten; move it")


def _span(measurement: Measurement) -> float:
    """Return the distance from the worst simple model, or from 0, to the best value of the metric or of the runs."""
    scores = [score for arm in measurement.scores.values() for score in arm]
    sign = 1.0 if measurement.direction == "max" else -1.0
    end = best_value(measurement.metric, measurement.direction, scores)
    if end is None:
        end = max(scores, key=lambda score: sign * score)
    worst = min((*measurement.baselines.values(), *scores), key=lambda score: sign * score)
    return abs(end - worst)


def _header(question: Question, claim: str, sentences: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the comments at the top of the file."""
    lines = [
        ("command", f"blockyard sweep {question.out.name}"),
        ("written by", f"{question.command}; everything below can be changed"),
    ]
    return (claim, "", *_folded([*lines, *sentences]))


def _folded(sentences: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines with the names of sentences in the first columns."""
    lines = []
    for name, text in sentences:
        first, *others = textwrap.wrap(text, _WIDTH - _NAMES, break_on_hyphens=False)
        lines.append(f"{name:<{_NAMES}}{first}")
        lines += [" " * _NAMES + line for line in others]
    return lines


def _sentences(
    question: Question,
    subject: Subject,
    draft: Draft,
    measurement: Measurement,
    length: Length,
    result: Resolution,
) -> list[tuple[str, str]]:
    """Return what was found out, by the name of each line."""
    splits = measurement.splits
    metric = measurement.metric
    sizes = (
        f"{len(splits.train):,} training, {len(splits.validation):,} validation and {len(splits.test):,} test samples"
    )
    data = f"{subject.summary}; {sizes}"
    if subject.sample is not None:
        sample = subject.sample
        data = f"a sample of {sample.num_rows:,} of {sample.of_rows:,} rows, since the table is large: {data}"
    others = " and ".join(list(draft.arms)[1:])
    lines = [("data", data), ("compares", f"{others} with {draft.baseline}, by {metric}")]
    lines.append(
        (
            "can show",
            f"differences of {result.smallest:.2g} in {metric} or more, with {length.seeds} seeds of each arm at most; "
            f"arms that differ by less than {result.margin:g} count as equal",
        )
    )
    lines.append(("so far", _so_far(draft, measurement, length, result)))
    lines.append(("cannot", _cannot(measurement, result)))
    if measurement.baselines:
        lines.append(("simple", _simple(measurement)))
    if warning := _warning(draft.recipe, measurement, length):
        lines.append(("warning", warning))
    runs = length.seeds * len(draft.arms)
    lines.append(
        (
            "time",
            f"about {format_duration(length.seconds)} of {format_duration(3600 * question.hours)} for {runs} runs of "
            f"{length.steps:,} steps at most, {measurement.parallel} in parallel",
        )
    )
    return lines


def _so_far(draft: Draft, measurement: Measurement, length: Length, result: Resolution) -> str:
    """Return how many seeds would decide about each arm if it went on to differ as in the short runs."""
    sign = 1.0 if measurement.direction == "max" else -1.0
    means = {arm: math.fsum(scores) / len(scores) for arm, scores in measurement.scores.items()}
    parts = []
    for arm, mean in means.items():
        if arm == draft.baseline:
            continue
        gain = sign * (mean - means[draft.baseline])
        better = "better" if gain > 0 else "worse"
        count = seeds_to_decide(result, gain, len(means) - 1, length.seeds)
        seeds = f"{length.seeds} seeds do not decide" if count is None else f"{count} seeds decide"
        parts.append(f"if {arm} stays {better} by {abs(gain):.2g}, {seeds}")
    return f"after {measurement.steps:,} steps of two seeds: {'; '.join(parts)}"


def _cannot(measurement: Measurement, result: Resolution) -> str:
    """Return what the sweep cannot show, and why."""
    size = len(measurement.splits.test)
    reasons = [f"two runs that differ in their seed alone differ by about {result.deviation:.2g}"]
    scores = [score for arm in measurement.scores.values() for score in arm]
    if metric_range(measurement.metric, scores) == SHARE and size:
        level = math.fsum(scores) / len(scores)
        noise = samples_noise(level, size)
        reasons.append(
            f"one of {size:,} test samples is {1 / size:.2g}, and other test samples would move a difference"
        )
        reasons[-1] += f" by up to {noise:.2g}" if noise else ""
    return f"smaller differences: {'; '.join(reasons)}. Nor does it say anything of other data, sizes or longer runs"


def _simple(measurement: Measurement) -> str:
    """Return the values of the simple models, the best first, and those of the arms so far."""
    sign = 1.0 if measurement.direction == "max" else -1.0
    ordered = sorted(measurement.baselines.items(), key=lambda item: -sign * item[1])
    models = ", ".join(f"{name} {value:.3g}" for name, value in ordered)
    arms = ", ".join(f"{arm} {math.fsum(scores) / len(scores):.3g}" for arm, scores in measurement.scores.items())
    return f"{models}; the arms after {measurement.steps:,} steps: {arms}"


def _warning(recipe: str, measurement: Measurement, length: Length) -> str | None:
    """Return a sentence where the arms are not expected to beat the best simple model; None where they do already."""
    if not measurement.baselines:
        return None
    sign = 1.0 if measurement.direction == "max" else -1.0
    name, value = max(measurement.baselines.items(), key=lambda item: sign * item[1])
    means = [math.fsum(scores) / len(scores) for scores in measurement.scores.values()]
    best = max(means, key=lambda mean: sign * mean)
    if sign * (best - value) > 0:
        return None
    seen = measurement.steps / length.steps
    if seen >= HALF:
        expected = f"is better than the arms ({best:.3g} after {seen:.0%} of the steps), and may stay so"
    else:
        expected = (
            f"is better than what the arms have so far ({best:.3g} after {seen:.0%} of the steps), and may stay so"
        )
    return f"{name} ({value:.3g}) {expected}; if it does, the way on is {WAYS_ON.get(recipe.partition('_')[0], WAY_ON)}"
