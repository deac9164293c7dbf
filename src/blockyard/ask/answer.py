"""From a file and a question to the sweep file that the hours decide, and what it can and cannot show."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from blockyard.ask.arms import default_arms, read_arms
from blockyard.ask.choose import MOST_SEEDS, USED, SweepLength, choose_length, refuse_blind, resolution
from blockyard.ask.draft import Seeds, SweepDraft
from blockyard.ask.look import look
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
from blockyard.ask.model_sizes import larger_models, smaller_model
from blockyard.ask.recipe import recipe_settings
from blockyard.ask.sentences import Findings, folded
from blockyard.ask.subject import FileContents, Setting
from blockyard.atomic_files import write_text
from blockyard.config.compose import compose
from blockyard.config.run_length import LENGTHS
from blockyard.engine.data_reader import DataReader
from blockyard.errors import UserError
from blockyard.report.stats.metric_range import best_value
from blockyard.sweep.execution.step_times import MeasuredRun


@dataclass(frozen=True)
class WrittenSweep:
    """A sweep file that was written. path: of it; sentences: what it can and cannot show, a line each"""

    path: Path
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class FileQuestion:
    """The question of the user.

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


def answer(question: FileQuestion, say: Say) -> WrittenSweep:
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
        prepared, run = _fitting_model(question, prepared, folder, say)
        prepared, run = _larger_model(question, prepared, run, folder, say)
        if "optimizer.lr" not in question.typed:
            rate = rate_setting(prepared, run, question.hours, say)
            if rate is not None:
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


def draft_of(question: FileQuestion, subject: FileContents, arms: Mapping[str, Sequence[str]] | None) -> SweepDraft:
    """Return the sweep file before anything is measured: by what the data is read, the recipe, and the arms."""
    settings = []
    for setting in subject.settings:
        if setting.key in ("data.path", "data.root") and subject.sample is None:
            setting = replace(setting, value=_readable_path(Path(setting.value), question.out))
        if setting.key not in question.typed:
            settings.append(setting)
    overrides = [*(setting.override for setting in settings), *question.overrides]
    composed = compose(overrides, question.config_dirs)
    recipe = composed.recipe.name if composed.recipe else "image_class"
    claim = question.claim
    if arms is None:
        default_claim, arms = default_arms(recipe, composed.choices)
        claim = claim or default_claim
    claim = claim or f"{' and '.join(arms)} differ on {question.file.name}"
    draft = SweepDraft(claim, tuple(settings), arms, recipe=recipe, typed=tuple(question.overrides))
    typed_families = {key.lstrip("~").partition(".")[0] for key in question.typed}
    return draft.with_settings(recipe_settings(composed, (draft.varied | typed_families) - {"data"}))


def _fitting_model(question: FileQuestion, prepared: Prepared, folder: Path, say: Say) -> tuple[Prepared, MeasuredRun]:
    """Return the question with the first of ever smaller models whose runs fit into the hours, and its first steps.

    Raises UserError for hours that are too short for the smallest model too.
    """
    while True:
        run = first_steps(prepared, say)
        try:
            _length(question, _alone(prepared, run), run.total)
            return prepared, run
        except UserError:
            settings = smaller_model(prepared, question.typed)
            if not settings:
                raise
        say(f"a smaller model, {' '.join(setting.override for setting in settings)}")
        draft = prepared.draft.with_settings(settings)
        prepared = prepare(draft, folder, question.config_dirs, prepared.reader)


def _larger_model(
    question: FileQuestion, prepared: Prepared, run: MeasuredRun, folder: Path, say: Say
) -> tuple[Prepared, MeasuredRun]:
    """Return the question with the first of ever smaller larger models whose whole runs fit, and its first steps.

    The model stays where the hours have no room for one of twice the size, see `model_sizes`.
    """
    length = _length(question, _alone(prepared, run), run.total)
    if length.seeds < MOST_SEEDS:
        return prepared, run
    room = USED * question.hours * 3600 / length.seconds
    for settings in larger_models(prepared, question.typed, question.config_dirs, room):
        say(f"a larger model, {' '.join(setting.override for setting in settings)}")
        with suppress(UserError):  # then the model stays as it is
            larger = prepare(prepared.draft.with_settings(settings), folder, question.config_dirs, prepared.reader)
            measured = first_steps(larger, say)
            length = _length(question, _alone(larger, measured), measured.total)
            if length.steps == measured.total:
                return larger, measured
    return prepared, run


def _alone(prepared: Prepared, run: MeasuredRun) -> Callable[[int], list[float]]:
    """Return a function of a number of steps: the seconds of a run of each arm that is alone, as of the baseline."""

    def seconds_of(steps: int) -> list[float]:
        seconds = replace(run, total=steps).seconds(prepared.config, prepared.splits)
        return [seconds] * len(prepared.draft.arms)

    return seconds_of


def _write(question: FileQuestion, subject: FileContents, draft: SweepDraft, measurement: Measurement) -> WrittenSweep:
    """Choose the rest, and write the sweep file, and the sample of a large table beside it."""
    length = _length(question, measurement.seconds_of, measurement.run.total)
    scores = list(measurement.scores.values())
    result = resolution(measurement.metric, scores, seeds=length.seeds, test_samples=len(measurement.splits.test))
    refuse_blind(measurement.metric, result, _span(measurement), question.hours, length.seeds)
    settings = []
    if length.steps < measurement.run.total:
        reason = f"as many as the hours have room for; the recipe's are {measurement.run.total:,}"
        settings.append(Setting("trainer.max_steps", length.steps, reason))
    sample = subject.sample
    if sample is not None:
        sampled = question.out.parent / sample.path.name
        _refuse_existing_sample(sampled)
        reason = f"{sample.num_rows:,} of {sample.of_rows:,} rows, drawn evenly"
        settings.append(Setting("data.path", _readable_path(sampled, question.out), reason))
    lines = list(Findings(subject, draft, measurement, length, result, question.hours).lines())
    written_by = f"{question.command}; everything below can be changed"
    header = [("command", f"blockyard sweep {question.out.name}"), ("written by", written_by), *lines]
    final = replace(
        draft.with_settings(settings),
        seeds=Seeds(length.seeds, "as many as the hours have room for; it ends when every comparison is decided"),
        margin=result.margin,
        margin_reason=f"arms that differ by less count as equal, which {length.seeds} seeds can tell",
        header=(draft.claim, "", *folded(header)),
    )
    if sample is not None:
        shutil.move(sample.path, sampled)
    write_text(question.out, final.text())
    run_it = f"{question.out}; blockyard sweep {question.out} runs it"
    return WrittenSweep(question.out, tuple(folded([*lines, ("file", run_it)])))


def _length(question: FileQuestion, seconds_of: Callable[[int], Sequence[float]], total: int) -> SweepLength:
    """Return the steps and the seeds; the steps are as many as the recipe has where the user typed their number."""
    is_typed = any(key in question.typed for key in LENGTHS)
    return choose_length(seconds_of, total, parallel_runs(), question.hours, shortest=total if is_typed else None)


def _refuse_existing_sample(path: Path) -> None:
    """Raise UserError where the sample of a table would overwrite a file."""
    if path.exists():
        raise UserError(f"{path}, the sample of the table, exists already and is not overwritten; move it")


def _readable_path(path: Path, out: Path) -> str:
    """Return the path of a file as a sweep file names it: relative where that lies in the working folder."""
    if out.absolute().parent == Path.cwd():
        return str(path)
    return str(path.absolute())


def _span(measurement: Measurement) -> float:
    """Return the distance from the worst simple model, or from 0, to the best value of the metric or of the runs."""
    scores = [score for arm in measurement.scores.values() for score in arm]
    sign = 1.0 if measurement.direction == "max" else -1.0
    end = best_value(measurement.metric, measurement.direction, scores)
    if end is None:
        end = max(scores, key=lambda score: sign * score)
    worst = min((*measurement.baselines.values(), *scores), key=lambda score: sign * score)
    return abs(end - worst)
