"""`blockyard sweep`: answer the question of a sweep file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from blockyard.commands._signature import command
from blockyard.commands._types import (
    OUTPUTS,
    ConfigDirs,
    Flag,
    Keys,
    Outputs,
    TypedLine,
    Value,
    group_overrides,
    of_choices,
    sweep_files,
)
from blockyard.config.option_text import config_value
from blockyard.config.override_grammar import packages_typed
from blockyard.config.untrusted.placeholders import NeedsTorchError, require_torch
from blockyard.errors import UserError, did_you_mean, fold, printable
from blockyard.sweep.cells import ARM_LEVEL
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader
    from blockyard.report.load.document import ComparisonDocument
    from blockyard.report.stats.sensitivity import SweepDesign
    from blockyard.sweep.cells import Cell
    from blockyard.sweep.execution.estimate import Estimate
    from blockyard.sweep.execution.measured_run import MeasuredRuns
    from blockyard.sweep.execution.tables import PlanStatus
    from blockyard.sweep.executor.base import Executor
    from blockyard.sweep.plan.sweep_plan import SweepPlan
    from blockyard.sweep.spec.expectation import Claim


SIGNALS = 8  # metrics that a dry run lists
Executors = Annotated[str, Value("NAME", values=of_choices("executor"))]


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep is run.

    Options:
        dry_run: show the cells, which are refused and why, and the cost; start no run, and keep the measured times
        retry: also restart cells, or trials of a search, that have failed
        one: train one cell in this process, `--one arm=ARM seed=N [key=value ...]`; started by a W&B agent
        to_wandb: write the question as a W&B sweep file into wandb/ beside the file (for a shipped one, sweeps/wandb
            here), and run nothing
        no_compare: do not compare; an existing page is marked as out of date
        until_decided: one seed after another, until every comparison is decided; --seeds is then the most (20)
        confirm: ask an answered question again on fresh seeds, as a sweep of its own, NAME-confirm; the answer says
            whether it confirms the first
        on_end: program with arguments, run without a shell at the end, also after a failure: it reads the answer as
            JSON on its standard input, and has a minute
        executor: local (default), ray or slurm
        workers: cells that run in parallel
        seeds: N seeds from the file's first one on, usually 0; finished cells are kept, so that more seeds add cells
        arms: run the cells of these arms only, with `ladder` at all rungs; cells of the others stay as they are
        executor_options: options of the executor
    """

    dry_run: Flag[bool] = False
    retry: Flag[bool] = False
    one: Flag[bool] = False
    to_wandb: Flag[bool] = False
    no_compare: Flag[bool] = False
    until_decided: Flag[bool] = False
    confirm: Flag[bool] = False
    on_end: Flag[Annotated[str, Value("COMMAND")]] | None = None
    executor: Flag[Executors] | None = None
    workers: Flag[Annotated[int, Ge(1)]] | None = None
    seeds: Flag[Annotated[int, Ge(1)]] | None = None
    arms: Flag[Annotated[str, Value("A,B")]] | None = None
    executor_: Executors | None = None
    executor_options: Annotated[Mapping[str, Any], Keys("executor.", read=config_value)] | None = None

    @property
    def executor_name(self) -> str:
        """The executor that runs the cells. Raises UserError where two are named."""
        if self.executor and self.executor_ and self.executor != self.executor_:
            raise UserError(f"--executor {self.executor} and executor={self.executor_}: give one of them")
        return self.executor or self.executor_ or "local"

    @property
    def elsewhere(self) -> bool:
        """Return whether cells may run on other machines than this one."""
        return self.executor_name != "local"

    def build_executor(self, plan: SweepPlan | None = None) -> Executor:
        """Return a new executor; one serves a single use. Raises UserError.

        plan: whose cells it runs; one at a time on CPUs where a clock decides, unless the user sets their number
        """
        from blockyard.sweep.executor import build

        values = dict(self.executor_options or {})
        workers = self.workers
        if workers is None and values.get("workers") is None and plan is not None and not self.elsewhere:
            workers = self.undisturbed(plan)
        return build(self.executor_name, values, workers)

    def undisturbed(self, plan: SweepPlan) -> int | None:
        """Return how many cells may run beside each other on this machine: one, or one on each GPU.

        None where no clock decides.
        """
        from blockyard.sweep.execution.expected_steps import clock_of
        from blockyard.sweep.executor._slots import visible_gpus

        if clock_of(plan) is None:
            return None
        return max(1, len(visible_gpus()))

    def only(self, plan: SweepPlan) -> SweepPlan:
        """Return the plan with the cells of the arms that --arms names; all of them without it. Raises UserError."""
        if self.arms is None:
            return plan
        if plan.question.get("search"):
            raise UserError("--arms: a search gives every arm the same number of trials; leave it out")
        if plan.question.get("until"):
            raise UserError("--arms: a sweep that runs until it is decided chooses the arms itself; leave it out")
        chosen = [name.strip() for name in self.arms.split(",") if name.strip()]
        names = {arm.name: [arm.name] for arm in plan.arms}
        if not chosen:
            raise UserError(f"--arms: name one arm or more (arms: {fold(list(names))})")
        if plan.question.get("ladder"):  # an arm of the file stands for all its rungs
            for arm in plan.arms:
                names.setdefault(arm.levels[ARM_LEVEL], []).append(arm.name)
        for name in chosen:
            if name not in names:
                raise UserError(
                    f"--arms {name}: no such arm{did_you_mean(name, list(names))} (arms: {fold(list(names))})"
                )
        arms = {arm for name in chosen for arm in names[name]}
        return replace(plan, cells=tuple(cell for cell in plan.cells if plan.variants[cell.variant].arm in arms))

    def unused_by_one(self) -> list[str]:
        """Return the arguments that a single cell has no use for."""
        defaults = SweepOptions()
        names = [field.name for field in fields(self) if not field.name.startswith(("one", "executor"))]
        used = [name for name in names if getattr(self, name) != getattr(defaults, name)]
        flags = [f"--{name.replace('_', '-')}" for name in used]
        if self.elsewhere or self.executor_options:
            flags.append(f"executor={self.executor_name}")
        return flags


@command()
def sweep(
    file: Annotated[str, Value("SWEEP_FILE", values=sweep_files)],
    *overrides: Annotated[str, Value("key=value", values=group_overrides, everything="overrides")],
    options: SweepOptions = SweepOptions(),
    outputs: Outputs = OUTPUTS,
    config_dirs: ConfigDirs = (),
    typed: TypedLine = (),
) -> int:
    """Answer the question of a sweep file: plan every cell (arm x setting x seed), and run what is missing.

    Then compare the arms, and write the page. Run the same command again after a crash, or after adding a seed or an
    arm: only missing cells are run.

    exit codes: 0 every cell is done, 1 some failed, 2 invalid input (nothing was started), 130 Ctrl-C, 143 SIGTERM

    Options:
        file: a path, or the name of a file in sweeps/
        overrides: added to the base of the file, for all arms
        outputs: where runs and the sweep's own folder (sweeps/NAME below it) lie

    Examples:
        blockyard sweep quickstart --dry-run
        blockyard sweep quickstart --workers 2 --seeds 10
        blockyard sweep sweeps/norm_placement.yaml trainer.max_epochs=5 outputs=short
    """
    from blockyard.report.home.on_end import arguments_of, run_on_end
    from blockyard.sweep.spec.locate import find_sweep

    elsewhere = options.elsewhere
    unused = options.unused_by_one()
    if options.one and unused:
        raise UserError(f"--one trains one cell here; leave out {', '.join(unused)}")
    path = find_sweep(file)
    folders = _folders_of(path, overrides, config_dirs)
    line = ["blockyard", "sweep", *typed]
    if options.one:
        from blockyard.sweep.execution.single_cell import run_cell

        require_torch()
        return run_cell(path, list(overrides), outputs=outputs, config_dirs=folders, command=line)
    if options.confirm and options.to_wandb:
        raise UserError("--confirm: W&B's agents write no answer that could confirm one; leave out --to-wandb")
    at_end = None
    if options.on_end is not None:
        at_end = arguments_of(options.on_end)
        if options.to_wandb:
            raise UserError("--on-end: --to-wandb runs nothing that could end; leave one of them out")
    first = _first_answer(path, outputs) if options.confirm else None
    with suppress(NeedsTorchError):  # only PyTorch counts GPUs; many a plan is refused, or shown, without the number
        options.build_executor()  # its options are checked before anything is read
    whole_plan = options.dry_run and options.arms is None and not options.confirm
    if whole_plan and not elsewhere and not options.to_wandb:
        status = _finished(path, overrides, outputs, folders, options)
        if status is not None:
            show_finished(status, options)
            return 0
    from blockyard.engine.data_reader import MOST_BYTES, DataReader
    from blockyard.report.confirmation import confirmed_facts, fresh_seed
    from blockyard.sweep.plan.history import refuse_other_question
    from blockyard.sweep.plan.planner import make_plan

    data = None
    if options.dry_run and not options.to_wandb:
        data = DataReader(MOST_BYTES)
    elif not options.to_wandb:
        data = DataReader(None)
    plan = make_plan(
        path,
        outputs=outputs,
        config_dirs=folders,
        overrides=list(overrides),
        command=line,
        elsewhere=elsewhere,
        seeds=options.seeds,
        until_decided=options.until_decided,
        fresh_from=fresh_seed(first) if first else None,
        data=data,
    )
    if first:
        confirms = confirmed_facts(plan, first)
        note = f"asks {confirms['sweep']} again on fresh seeds, which is {confirms['verdict']}"
        notes = [note, *plan.facts.get("notes", ())]
        plan = replace(plan, facts={**plan.facts, "confirms": confirms, "notes": notes})
    if options.to_wandb and plan.question.get("until"):
        raise UserError("--to-wandb: W&B's agents run a fixed grid; write `seeds: 5` in place of `until: decided`")
    if options.to_wandb:
        from blockyard.sweep.plan.wandb_file import write

        sys.stdout.write(f"{write(plan)}\n")
        return 0
    refuse_no_law(plan)
    refuse_other_question(plan)
    announced = show_sweep(plan, options.build_executor(plan), options, data)
    if data is not None:
        data.release()
    if options.dry_run:
        return 0
    start = time.monotonic()
    code = _work(plan, options, announced)
    if code == 0:  # a sweep that stopped or failed did less than was announced
        say_time(plan, announced, time.monotonic() - start, _say)
    if at_end is not None:
        run_on_end(at_end, plan.folder, code, _say)
    return code


def _first_answer(path: Path, outputs: str) -> ComparisonDocument:
    """Return the answer that a confirmation asks for again. Raises UserError without one that is decided."""
    from blockyard.config.untrusted.local_path import outputs_folder
    from blockyard.report.confirmation import first_answer
    from blockyard.report.home.stale import DATA
    from blockyard.sweep.plan.sweep_plan import FOLDER

    return first_answer(Path(outputs_folder(outputs)) / FOLDER / path.stem / DATA, path.stem)


def _finished(
    path: Path, overrides: Sequence[str], outputs: str, folders: Sequence[str], options: SweepOptions
) -> PlanStatus | None:
    """Return the state of a stored plan in which nothing is left to run; None where the sweep must be planned."""
    from blockyard.config.untrusted.local_path import outputs_folder
    from blockyard.sweep.execution.tables import PlanStatus
    from blockyard.sweep.plan.cell_composer import CellComposer
    from blockyard.sweep.plan.finished import stored_plan
    from blockyard.sweep.spec.question import BadQuestionError, read

    try:
        question = read(path, options.seeds, options.until_decided)
    except BadQuestionError:
        return None  # planning reports it with the problems of the base
    folder = str(outputs_folder(outputs))
    composer = CellComposer(folders, outputs=folder)
    plan = stored_plan(question, [*question.base, *overrides], folder, composer)
    if plan is None:
        return None
    status = PlanStatus.read(plan)
    if status.remaining(retry=options.retry):
        return None
    return status


def show_finished(status: PlanStatus, options: SweepOptions) -> None:
    """Print the cells of a sweep in which nothing is left to run."""
    from blockyard.report.stats.sensitivity import sensitivity
    from blockyard.sweep.execution.estimate import Estimate
    from blockyard.sweep.execution.tables import print_plan

    print_plan(status, retry=options.retry)
    design, _ = _design(status.plan, status, None)
    for line in sensitivity(design, status.plan.question.get("baseline")):
        sys.stdout.write(f"{line}\n")
    _print_signals(status.plan, status)
    sys.stdout.write(f"{Estimate(0)}\n")


def _folders_of(file: Path, overrides: Sequence[str], config_dirs: Sequence[str]) -> list[str]:
    """Return the config folders of the command line and of a sweep file.

    Raises UserError for packages that the file needs and that are not allowed.
    """
    from blockyard.sweep.spec.question import command_keys

    folders, packages = command_keys(file)
    allowed = packages_typed(overrides)
    missing = [package for package in packages if package not in allowed]
    if missing:
        raise UserError(
            f"{file} uses components of {', '.join(missing)}; if you trust it, add allow=[{','.join(missing)}] "
            "here or to blockyard.yaml"
        )
    return [*config_dirs, *(folder for folder in folders if folder not in config_dirs)]


def show_sweep(plan: SweepPlan, executor: Executor, options: SweepOptions, data: DataReader | None = None) -> Estimate:
    """Print the cells and their cost, and return the cost; the cost of a search is an upper bound.

    data: has read the data of the cells. A dry run may measure the first steps of a cell, which takes a few seconds,
        and keeps what it has measured in the sweep's folder, from which the sweep reads it
    """
    from blockyard.report.stats.sensitivity import no_room, sensitivity
    from blockyard.sweep.execution.estimate import estimate
    from blockyard.sweep.execution.measured_run import MeasuredRuns
    from blockyard.sweep.execution.tables import PlanStatus, print_plan
    from blockyard.sweep.search.search_runner import parallel_trials

    measured = None
    if not options.elsewhere:  # another machine has another speed
        measured = MeasuredRuns(plan, executor.threads, data if options.dry_run else None)
    selected = options.only(plan)
    status = PlanStatus.read(plan)
    print_plan(status, retry=options.retry)
    design, claims = _design(plan, status, data)
    lines = [*sensitivity(design, plan.question.get("baseline")), *_expected(plan, executor, options, measured, data)]
    for line in lines:
        sys.stdout.write(f"{line}\n")
    if options.dry_run:
        _print_signals(plan, status)
    too_wide = no_room(design, claims, plan.facts["metric"]["direction"])
    if too_wide and status.remaining(retry=options.retry):
        reason = f"margin: {'; '.join(too_wide)}; choose a smaller margin, a harder task, or `>=`"
        if options.dry_run:
            raise UserError(reason)
        sys.stdout.write(f"warning: {reason}\n")
    search = plan.question.get("search")
    if not search:
        selected_status = status
        label = ""
        if selected is not plan:
            selected_status = PlanStatus.read(selected)
            label = f"--arms {options.arms}: "
        due = selected_status.remaining(retry=options.retry)
        cost = estimate(selected, due, parallel=executor.parallel, data=data, measured=measured)
        sys.stdout.write(f"{label}{cost}\n")
        if status.reason == "open" and plan.question.get("until"):
            most = _at_most(plan, status.remaining(retry=options.retry))
            cost = estimate(plan, most, parallel=executor.parallel, data=data, measured=measured)
            sys.stdout.write(f"if nothing is decided before the last seed, at most {cost}\n")
        return cost
    slots = parallel_trials(executor, search)
    parallel = slots if executor.parallel or slots < executor.capacity else None
    cost = estimate(plan, _trials(plan), parallel=parallel, data=data, measured=measured)
    sys.stdout.write(f"at most {cost}\n")
    return cost


def _expected(
    plan: SweepPlan,
    executor: Executor,
    options: SweepOptions,
    measured: MeasuredRuns | None,
    data: DataReader | None,
) -> Iterator[str]:
    """Yield how cells run where a clock decides, and the steps of arms that end by time or FLOPs."""
    from blockyard.sweep.execution.expected_steps import clock_of, expected_steps

    clock = clock_of(plan)
    most = options.undisturbed(plan)
    if clock is not None and options.elsewhere:
        yield f"note: {clock} is read off a clock: cells that share a machine, or its GPU, slow each other down"
    elif most is not None and executor.capacity > most:
        yield (
            f"note: {clock} is read off a clock, and {executor.capacity} cells at a time slow each other down: arms "
            f"are then compared by what ran beside them; --workers {most}, without cells_per_gpu and "
            "cells_per_process, leaves each alone"
        )
    elif most == 1:
        yield f"note: {clock} is read off a clock, so cells run one at a time (--workers N: N beside each other)"
    yield from expected_steps(plan, measured, data)


def _design(plan: SweepPlan, status: PlanStatus, data: DataReader | None) -> tuple[SweepDesign, list[Claim]]:
    """Return the parts of the sweep by which it can show differences, and the claims of its expectation."""
    from blockyard.report.stats.sensitivity import SweepDesign
    from blockyard.sweep.spec.expectation import parse
    from blockyard.sweep.stopping.decisions import comparisons
    from blockyard.sweep.stopping.rule import StoppingRule

    question = plan.question
    metric = plan.facts["metric"]["name"]
    values: dict[str, dict[int, float]] = {}
    for cell in status.due:
        value = status.states[cell.run].metrics.get(metric)
        if value is not None and cell.variant == status.chosen.get(plan.variants[cell.variant].arm):
            values.setdefault(plan.variants[cell.variant].arm, {})[cell.seed] = value
    test_samples = None
    resplit = None
    sizes = _sizes(plan, data)
    if sizes is not None:
        train_samples, test_samples = sizes
        if question.get("resplit"):
            resplit = test_samples / train_samples
    expect = question.get("expect")
    clauses = comparisons(expect, _compared(plan), question.get("baseline"))
    design = SweepDesign(
        metric,
        len(question["seeds"]),
        sum(clause.sign in (None, ">") for clause in clauses),
        StoppingRule.of(question["until"]) if question.get("until") else None,
        question.get("margin"),
        test_samples,
        values,
        resplit=resplit,
    )
    return design, parse(expect, _compared(plan)) if expect else []


def _print_signals(plan: SweepPlan, status: PlanStatus) -> None:
    """Print which metrics tell the arms apart, by the cells that have finished; nothing where too few have."""
    from blockyard.report.stats.signal_noise import signal_rows

    chosen = plan.facts["metric"]["name"]
    signals = signal_rows(_measured(plan, status))
    if not signals:
        return
    shown = signals[:SIGNALS]
    shown += [row for row in signals[SIGNALS:] if row.metric == chosen]
    seeds = min(row.seeds for row in signals)
    sys.stdout.write(
        "metrics by signal (difference between arms) over noise (standard deviation of the paired differences), on "
        f"{seeds} seeds, where arms that do not differ have a ratio of about {seeds**-0.5:.2g}:\n"
    )
    screen = table(None, "metric", "signal", "noise", "ratio")
    for row in shown:
        name = f"{row.metric} (metric)" if row.metric == chosen else row.metric
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        screen.add_row(name, f"{row.signal:.3g}", f"{row.noise:.3g}", ratio)
    console().print(screen)
    if len(signals) > len(shown):
        sys.stdout.write(f"and {len(signals) - len(shown)} more, with lower ratios\n")
    sys.stdout.write("a metric that is chosen by these cells needs new seeds\n")


def _measured(plan: SweepPlan, status: PlanStatus) -> dict[str, dict[str, dict[int, float]]]:
    """Return the metrics on validation and test of the finished cells: metric -> arm -> seed -> value.

    Of each metric on validation the mean of the last five evaluations is added, where a run has so many. Arms that
    repeat another one are left out.
    """
    from blockyard.runs.last_evaluations import last_means

    values: dict[str, dict[str, dict[int, float]]] = {}
    for cell in status.due:
        variant = plan.variants[cell.variant]
        metrics = status.states[cell.run].metrics
        if not metrics or variant.config.get("repeat") or cell.variant != status.chosen.get(variant.arm):
            continue
        evaluated = [name for name in metrics if name.startswith("val/")]
        means = last_means(plan.path(cell), [f"{name}@last5" for name in evaluated if "@" not in name])
        for name, value in (metrics | means).items():
            if name.startswith(("val/", "test/")):
                values.setdefault(name, {}).setdefault(variant.arm, {})[cell.seed] = value
    return values


def _compared(plan: SweepPlan) -> list[str]:
    """Return the arms that may be compared; of a ladder without `expect`, not the baseline at its other rungs."""
    base = plan.question.get("baseline")
    levels = {arm.name: arm.levels for arm in plan.arms}
    if base is None or plan.question.get("expect") or not plan.question.get("ladder"):
        return list(levels)
    names = []
    for name, arm_levels in levels.items():
        if name == base or arm_levels[ARM_LEVEL] != levels[base][ARM_LEVEL]:
            names.append(name)
    return names


def refuse_no_law(plan: SweepPlan) -> None:
    """Raise UserError where a ladder's metric can have no law in compute."""
    from blockyard.report.arms.size_ladder import is_loss

    metric = plan.facts["metric"]
    if plan.question.get("ladder") and not is_loss(metric["name"], metric["direction"]):
        raise UserError(
            f"ladder: {metric['name']} is not a loss, and a law in compute is fitted to losses; write metric: test/loss"
        )


def _sizes(plan: SweepPlan, data: DataReader | None) -> tuple[int, int] | None:
    """Return the samples of the training and the test split of the first arm; None where nothing has read them."""
    from blockyard.sweep.plan.finished import split_sizes

    variant = next(iter(plan.variants.values()), None)
    if data is None:
        return split_sizes(plan)
    if variant is None or data.read(variant.config).train_samples is None:
        return None
    splits = data.splits(variant.config)[1]
    return len(splits.train), len(splits.test)


def _at_most(plan: SweepPlan, due: Sequence[Cell]) -> list[Cell]:
    """Return the cells that are due and the cells of later seeds, with one setting for each arm."""
    from blockyard.sweep.search.tune import tuning_seeds
    from blockyard.sweep.stopping.due import seeded_arms

    first = {variant.arm: variant.key for variant in reversed(plan.variants.values())}
    tried: set[int] = set()
    if plan.question.get("tune"):
        tried = set(tuning_seeds(plan))
    last = max((cell.seed for cell in due), default=-1)
    cells = list(due)
    seeded = seeded_arms(plan)
    for cell in plan.cells:
        arm = plan.variants[cell.variant].arm
        if cell.seed > last and cell.seed not in tried and arm in seeded and first[arm] == cell.variant:
            cells.append(cell)
    return cells


def say_time(plan: SweepPlan, announced: Estimate, seconds: float, say: Callable[[str], None]) -> None:
    """Record and print the time that was announced and the seconds that the sweep took."""
    from blockyard.sweep.execution.time_taken import record_time

    at_most = bool(plan.question.get("search") or plan.question.get("until"))
    try:
        line = record_time(plan.folder, announced, seconds, at_most=at_most)
    except OSError as error:  # the answer is written; this record alone is missing
        line = f"the time that the sweep took cannot be recorded in {plan.folder}: {error.strerror or error}"
    if line:
        say(line)


def _trials(plan: SweepPlan) -> list[Cell]:
    """Return as many cells as a search may run, each like its arm."""
    from blockyard.sweep.cells import Cell

    tried = plan.search.get("seeds", 1)
    runs = plan.search["trials"] * tried + len(plan.question["seeds"]) - tried
    return [Cell(key, number, f"trial/{key}-{number}") for key in plan.variants for number in range(runs)]


def _work(plan: SweepPlan, options: SweepOptions, announced: Estimate) -> int:
    """Store the plan, run the missing cells, compare the arms, and return the exit code."""
    from blockyard.report.home import stale
    from blockyard.runs.lock import exclusive
    from blockyard.sweep.execution.runner import run_plan
    from blockyard.sweep.plan import history

    try:
        plan, messages = history.store_plan(plan)
        for line in messages:
            _say(line)
        with exclusive(plan.folder):
            stale.mark(plan.folder)
    except OSError as error:
        raise UserError(f"cannot write {plan.folder}: {error.strerror or error}; choose outputs=DIR") from error
    plan, code = _search(plan, options)
    if code:
        return code
    # The cost of a search is an upper bound of its trials, and with `until` the number of seeds is not known before.
    is_bound = plan.question.get("search") or plan.question.get("until")
    cost = None if is_bound else announced
    code = run_plan(options.only(plan), options.build_executor(plan), retry=options.retry, say=_say, announced=cost)
    search = plan.facts.get("search")
    if code == 0 and search is not None and any(arm["chosen"] is None for arm in search["arms"].values()):
        code = 1  # all trials of an arm failed, so it has no setting
    if code in (130, 143) or options.no_compare:
        return code
    try:
        _compare(plan, _say)
    except (UserError, OSError) as error:  # exit code 2 would mean that nothing was started
        sys.stderr.write(printable(f"blockyard: the cells have run, but cannot be compared: {error}\n"))
        return 1
    return code


def _search(plan: SweepPlan, options: SweepOptions) -> tuple[SweepPlan, int]:
    """Return the plan, after a search with the best setting of each arm, and an exit code.

    The code is 0 if nothing went wrong, 130 or 143 if the search was stopped.
    """
    if not plan.question.get("search"):
        return plan, 0
    from blockyard.sweep.cell.trial_store import StorageFailedError, storage_failures
    from blockyard.sweep.execution.runner import StopSignals
    from blockyard.sweep.search import search_runner

    executor = options.build_executor(plan)
    executor.home = plan.folder
    with StopSignals() as signals:
        try:
            with executor, storage_failures(plan.folder):
                plan = search_runner.run_search(
                    plan,
                    executor,
                    retry=options.retry,
                    elsewhere=options.elsewhere,
                    say=_say,
                    stopped=lambda: signals.signum is not None,
                )
        except StorageFailedError as error:  # trials may have run, so not exit code 2
            sys.stderr.write(printable(f"blockyard: {error}; the same command continues when the cause is gone\n"))
            return plan, 1
        if signals.code:
            _say("stopped; finished runs are kept, and the same command continues")
        return plan, signals.code


def _compare(plan: SweepPlan, say: Callable[[str], None]) -> None:
    """Write the comparison: to the terminal, as data, and as a page."""
    from blockyard.atomic_files import write_json
    from blockyard.report.comparison import compare
    from blockyard.report.home.stale import DATA, PAGE
    from blockyard.report.page import write
    from blockyard.report.render.terminal import show
    from blockyard.report.services import mirror
    from blockyard.runs.lock import exclusive

    comparison = compare(plan)
    with exclusive(plan.folder):
        write_json(plan.folder / DATA, comparison.as_dict())
        page = write(comparison.as_dict(), plan.folder / PAGE)
    show(comparison)
    say(f"page: {page}")
    for message in mirror(comparison, plan):
        say(message)


def _say(text: str) -> None:
    """Print a line now, so that a log that is followed shows it."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:  # a full disk below `> log`: the cells go on, and the end of the command tells
        pass
