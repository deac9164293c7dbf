"""Measures what a question costs: the time of a step, a learning rate, and the noise of two seeds of short runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.ask.draft import SweepDraft
from blockyard.ask.subject import Setting
from blockyard.config.tree import Node
from blockyard.contracts import Splits
from blockyard.engine.baselines import compute_baselines
from blockyard.engine.data_reader import DataReader
from blockyard.errors import UserError
from blockyard.runs.metric_name import MetricName
from blockyard.sweep.cell.states import read_state
from blockyard.sweep.execution.runner import run_plan
from blockyard.sweep.execution.step_times import MeasuredRun
from blockyard.sweep.executor import build
from blockyard.sweep.plan.planner import make_plan

if TYPE_CHECKING:
    from blockyard.bench.rates import RateTest
    from blockyard.sweep.plan.sweep_plan import SweepPlan

SHARE = 0.05  # of the hours that the short runs take
LEAST_SECONDS = 8.0  # of the short runs
FEWEST_STEPS = 20
SEEDS = 2
RATE_STEPS = 100
RATE_FACTOR = 300.0  # the range test goes from the rate of the config over this factor to the rate times it
TEST_BATCHES = 1  # of the short runs, whose scores are those on validation: no choice may depend on test
TOO_NEAR = 3.0  # times the learning rate, at which a range test must not diverge
FAR = 10.0  # the same, of the rate that is chosen in its place
BESIDE = 1.5  # about how much longer a step takes beside other runs, before it is measured
STEPS_PER_EPOCH = 10
SMALLEST_BATCH = 4
Say = Callable[[str], object]


@dataclass(frozen=True)
class Prepared:
    """A question whose data has been read. plan: of two seeds; splits: of the baseline"""

    draft: SweepDraft
    plan: SweepPlan
    reader: DataReader
    splits: Splits

    @property
    def config(self) -> Node:
        """The config of the baseline."""
        return self.plan.variants[self.draft.baseline].config


@dataclass(frozen=True)
class RunBesideOthers:
    """The time of a run beside others. slower: times that of a run that is alone; more: seconds of its start and end"""

    slower: float
    more: float

    @classmethod
    def of(cls, step_seconds: float, seconds: float, run: MeasuredRun, alone: float) -> RunBesideOthers:
        """Return the time by a run that took so many seconds; alone: those that its parts take where it is alone."""
        slower = max(1.0, step_seconds / run.step)
        return cls(slower, max(0.0, seconds - slower * alone))


@dataclass(frozen=True)
class Measurement:
    """The measured costs and noise of a question.

    run: parts of the time of a run that is alone
    beside: by arm, what a run takes beside as many others as run in parallel
    metric: of the sweep, on test
    steps: of each short run
    scores: of the short runs on validation, by arm
    baselines: value of the metric on validation of each simple baseline
    """

    metric: str
    direction: str
    run: MeasuredRun
    config: Node
    splits: Splits
    parallel: int
    beside: Mapping[str, RunBesideOthers]
    steps: int
    scores: Mapping[str, Sequence[float]]
    baselines: Mapping[str, float]

    def seconds_of(self, steps: int) -> list[float]:
        """Return the seconds of a run of each arm with so many steps."""
        alone = replace(self.run, total=steps).seconds(self.config, self.splits)
        return [beside.slower * alone + beside.more for beside in self.beside.values()]


def prepare(draft: SweepDraft, folder: Path, config_dirs: Sequence[str], reader: DataReader) -> Prepared:
    """Return a draft with its data read. Raises UserError with every problem of the config, the arms and the data."""
    plan = _plan(draft, folder, config_dirs, reader)
    if plan.refused:
        problems = [problem for refused in plan.refused for problem in refused.problems()]
        raise UserError("\n  - ".join(problems))
    config = plan.variants[draft.baseline].config
    facts = reader.read(config)
    if facts.problem:
        raise UserError(facts.problem)
    _, splits = reader.splits(config)
    return Prepared(draft, plan, reader, splits)


def smaller_batch(prepared: Prepared) -> Setting | None:
    """Return a smaller batch where the data have too few samples for that of the recipe."""
    batch_size = int(prepared.config["data"]["batch_size"])
    most = len(prepared.splits.train) // STEPS_PER_EPOCH
    if batch_size <= max(most, SMALLEST_BATCH):
        return None
    smaller = max(SMALLEST_BATCH, 2 ** int(math.log2(max(1, most))))
    reason = f"{STEPS_PER_EPOCH} steps an epoch or more with {len(prepared.splits.train):,} training samples"
    return Setting("data.batch_size", smaller, f"{reason}, where {batch_size} are the recipe's")


def parallel_runs() -> int:
    """Return how many runs the sweep has in parallel on this machine."""
    return build("local", {}, None).parallel or 1


def first_steps(prepared: Prepared, say: Say) -> MeasuredRun:
    """Return the times of the baseline's first steps, in a run that is alone. Raises UserError without any."""
    from blockyard.sweep.execution.first_steps import import_as_cells_do, measure

    say("the time of a step")
    began = time.monotonic()
    import_as_cells_do()
    imports = time.monotonic() - began
    variant = prepared.plan.variants[prepared.draft.baseline]
    run = measure(variant.config, variant.choices, build("local", {}, None).threads)
    if run is None:
        raise UserError(
            f"the first steps of the arm {variant.arm} cannot be measured: several devices, or a refused run"
        )
    return replace(run, imports=imports)


def rate_setting(prepared: Prepared, run: MeasuredRun, hours: float, say: Say) -> Setting | None:
    """Return the learning rate: the recipe's, unless a range test diverges at that or a little above it.

    None where the optimizer has no rate, or the arms vary the optimizer.
    """
    lr = prepared.config["optimizer"].get("lr")
    if lr is None or "optimizer" in prepared.draft.varied:
        return None
    if RATE_STEPS * run.step > SHARE * hours * 3600:
        return Setting("optimizer.lr", lr, f"the recipe's; {RATE_STEPS} steps of a range test would take too long")
    say("learning rates")
    test = _rate_test(prepared.config, lr)
    if test is None:
        return Setting("optimizer.lr", lr, "the recipe's; this config has no range test")
    if test.diverged is None:
        return Setting("optimizer.lr", lr, f"the recipe's; in a range test no rate up to {test.rates[-1]:.1g} diverges")
    diverged = f"a range test diverges at {test.diverged:.1g}"
    if lr * TOO_NEAR < test.diverged:
        return Setting("optimizer.lr", lr, f"the recipe's; {diverged}")
    lower = float(f"{test.diverged / FAR:.1g}")
    return Setting("optimizer.lr", lower, f"{diverged}, to which the recipe's {lr:g} is too near")


def _rate_test(config: Node, lr: float) -> RateTest | None:
    from blockyard.bench.rates import rate_tests
    from blockyard.engine.lightning.patches import silence_libraries
    from blockyard.engine.plain_trainer import lightning_pair

    silence_libraries()
    with suppress(UserError):
        module, data = lightning_pair(config)
        tests = rate_tests(module, data, (), lowest=lr / RATE_FACTOR, highest=lr * RATE_FACTOR, steps=RATE_STEPS)
        return next(tests)
    return None


def measure_noise(
    prepared: Prepared, run: MeasuredRun, hours: float, folder: Path, config_dirs: Sequence[str], say: Say
) -> Measurement:
    """Train two seeds of each arm for a part of the steps, as many at a time as the sweep does.

    Raises UserError where one of them fails.
    """
    executor = build("local", {}, None)
    num_runs = SEEDS * len(prepared.draft.arms)
    parallel = min(executor.parallel or 1, num_runs)
    seconds = max(LEAST_SECONDS, SHARE * hours * 3600) / math.ceil(num_runs / parallel)
    steps = min(run.total, max(FEWEST_STEPS, int(seconds / (BESIDE * run.step))))
    short = [Setting("logger", "none"), Setting("trainer.max_steps", steps), Setting("trainer.eval_every", steps)]
    short.append(Setting("trainer.limit_test", TEST_BATCHES))
    # The short runs are nobody's results: a logger that the user typed is for the sweep.
    typed = [override for override in prepared.draft.typed if not override.lstrip("+").startswith("logger")]
    draft = replace(prepared.draft.with_settings(short), typed=tuple(typed))
    plan = _plan(draft, folder, config_dirs, prepared.reader)
    done = 0

    def count(_line: str) -> None:  # a line for each run, then those of the summary
        nonlocal done
        done += 1
        if done <= num_runs:
            say(f"noise: {done} of {num_runs} runs of {steps:,} steps have ended")

    say(f"noise: {num_runs} runs of {steps:,} steps, {SEEDS} seeds of each arm")
    code = run_plan(plan, executor, say=count, live=False)
    if code in (130, 143):
        raise KeyboardInterrupt
    metric = plan.facts["metric"]
    scores: dict[str, list[float]] = {}
    costs: dict[str, list[RunBesideOthers]] = {}
    for cell in plan.cells:
        variant = plan.variants[cell.variant]
        state = read_state(plan.path(cell), plan.metric_names)
        value = state.metrics.get(metric["validation"], math.nan)
        if state.state != "done" or not math.isfinite(value):
            reason = state.reason or f"{metric['validation']} is not finite"
            raise UserError(f"a short run of the arm {variant.arm} failed: {reason}")
        scores.setdefault(variant.arm, []).append(value)
        alone = replace(run, total=steps).seconds(variant.config, prepared.splits)
        step_seconds = state.metrics.get("step_seconds", run.step)
        costs.setdefault(variant.arm, []).append(RunBesideOthers.of(step_seconds, state.seconds or alone, run, alone))
    return Measurement(
        metric=metric["name"],
        direction=metric["direction"],
        run=run,
        config=prepared.config,
        splits=prepared.splits,
        parallel=executor.parallel or 1,
        beside={arm: max(times, key=lambda cost: cost.slower) for arm, times in costs.items()},
        steps=steps,
        scores=scores,
        baselines=_simple_models(prepared, metric["validation"], folder, say),
    )


def _simple_models(prepared: Prepared, metric: str, folder: Path, say: Say) -> dict[str, float]:
    """Return the value of a metric on validation of each simple baseline that has it."""
    say("simple models")
    components, splits = prepared.reader.splits(prepared.config)
    entries = compute_baselines(prepared.config, components, splits._replace(test=splits.validation), folder)
    name = str(MetricName.parse(metric).on(""))
    values = {}
    for baseline, entry in entries.items():
        value = entry.get("values", {}).get(name, math.nan)
        if math.isfinite(value):
            values[baseline] = value
    return values


def _plan(draft: SweepDraft, folder: Path, config_dirs: Sequence[str], reader: DataReader) -> SweepPlan:
    """Return the plan of a draft whose runs lie in a folder of their own."""
    file = folder / "question.yaml"
    file.write_text(draft.text(), encoding="utf-8")
    return make_plan(file, outputs=str(folder / "outputs"), config_dirs=config_dirs, data=reader)
