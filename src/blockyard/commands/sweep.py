"""blockyard sweep FILE [--dry-run] [--retry] [--executor NAME] [--workers N] [key=value ...]

Answer a question: plan every cell (arm x setting x seed) of a sweep file, run those that are missing,
compare, and write the page. FILE is a path, or the name of a file in sweeps/. The same command later,
after a crash, a kill, an added seed or arm, fills only the holes.

  --dry-run        show the grid, what is refused and why, and the cost; write nothing
  --retry          also start the cells, or the trials of a search, again that have failed
  --executor NAME  local (default), ray or slurm; options as executor.KEY=VALUE
  --workers N      cells at once
  --no-compare     run only; a page of before is marked as of then
  --one arm=ARM seed=N [key=value ...]
                   train one cell in this process; what an agent of W&B starts
  --to-wandb       write the question as a W&B sweep file into sweeps/wandb/, and run nothing
  --config-dir DIR a folder of your own choices, beside the shipped ones
  outputs=DIR      where runs and the sweep's own folder (sweeps/NAME below it) lie
  key=value        added to the base of the file, for all arms

exit codes: 0 every cell is done, 1 some failed, 2 bad input (nothing was started), 130 Ctrl-C, 143 SIGTERM

Examples:
  blockyard sweep quickstart --dry-run
  blockyard sweep quickstart --workers 2
  blockyard sweep sweeps/norm_placement.yaml trainer.max_epochs=5 outputs=short
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blockyard.commands._sweep_args import SweepArgs, parse
from blockyard.errors import UserError

if TYPE_CHECKING:
    from blockyard.sweep.executor.base import Executor
    from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan


def run(arguments: Sequence[str]) -> int:
    """Plan, then show, run and compare."""
    from blockyard.errors import refuse
    from blockyard.sweep.spec.question import BadQuestion

    asked = parse(arguments)
    if "--one" in asked.flags:
        return _one(asked, ["blockyard", "sweep", *arguments])
    executor = asked.build()
    from blockyard.sweep.plan.history import refuse_other_question
    from blockyard.sweep.plan.planner import make_plan

    try:
        plan = make_plan(
            asked.file,
            outputs=asked.outputs,
            config_dirs=asked.config_dirs,
            overrides=asked.base,
            command=["blockyard", "sweep", *arguments],
            elsewhere=asked.elsewhere,
        )
    except BadQuestion as bad:
        return refuse(bad.problems)
    if "--to-wandb" in asked.flags:
        from blockyard.sweep.wandb_file import write

        sys.stdout.write(f"{write(plan)}\n")
        return 0
    refuse_other_question(plan)
    _show(plan, executor, "--retry" in asked.flags)
    return 0 if "--dry-run" in asked.flags else _work(plan, asked)


def _one(asked: SweepArgs, command: list[str]) -> int:
    """One cell, named by the words."""
    from blockyard.errors import refuse
    from blockyard.sweep.execution.single_cell import run_cell
    from blockyard.sweep.spec.question import BadQuestion

    try:
        return run_cell(asked.file, asked.base, outputs=asked.outputs, config_dirs=asked.config_dirs, command=command)
    except BadQuestion as bad:
        return refuse(bad.problems)


def _show(plan: SweepPlan, executor: Executor, retry: bool) -> None:
    from blockyard.sweep.execution.estimate import estimate
    from blockyard.sweep.execution.plan_table import PlanStatus, print_plan
    from blockyard.sweep.search.search_runner import parallel_trials

    stand = PlanStatus.read(plan)
    print_plan(stand, retry=retry)
    search = plan.question.get("search")
    if not search:
        sys.stdout.write(f"{estimate(plan, stand.remaining(retry=retry), parallel=executor.parallel)}\n")
        return
    places = parallel_trials(executor, search)
    told = estimate(plan, _trials(plan), parallel=places if executor.parallel or places < executor.capacity else None)
    sys.stdout.write(f"at most {told}\n")


def _trials(plan: SweepPlan) -> list[Cell]:
    """As many runs as a search may make, each like its arm."""
    from blockyard.sweep.plan.sweep_plan import Cell

    runs = int(plan.question["search"]["trials"]) + len(plan.question["seeds"])
    return [Cell(key, number, f"trial/{key}-{number}") for key in plan.variants for number in range(runs)]


def _work(plan: SweepPlan, asked: SweepArgs) -> int:
    from blockyard.report import stale
    from blockyard.sweep.execution.runner import run_plan
    from blockyard.sweep.plan import history

    for line in history.store_plan(plan):
        _say(line)
    stale.mark(plan.folder)
    plan, code = _searched(plan, asked)
    if code:
        return code
    code = run_plan(plan, asked.build(), retry="--retry" in asked.flags, say=_say)
    if code == 0 and _without_setting(plan):
        code = 1
    if code in (130, 143) or "--no-compare" in asked.flags:
        return code
    try:
        _compare(plan, _say)
    except UserError as error:  # exit code 2 would say that nothing was started
        sys.stderr.write(f"blockyard: the cells ended, but cannot be compared: {error}\n")
        return 1
    return code


def _searched(plan: SweepPlan, asked: SweepArgs) -> tuple[SweepPlan, int]:
    """The plan with the best setting of each arm, where the file searches; 130 or 143 where it was told to stop."""
    if not plan.question.get("search"):
        return plan, 0
    from blockyard.sweep.execution.stop_signals import StopSignals
    from blockyard.sweep.search import search_runner

    executor = asked.build()
    executor.home = plan.folder
    with StopSignals() as signals:
        with executor:
            found = search_runner.run_search(
                plan,
                executor,
                retry="--retry" in asked.flags,
                elsewhere=asked.elsewhere,
                say=_say,
                stopped=lambda: signals.signum is not None,
            )
        if signals.code:
            _say("stopped; what ran is saved, the same command goes on")
        return found, signals.code


def _without_setting(plan: SweepPlan) -> bool:
    """Whether a search found no setting for an arm, because all its trials failed."""
    arms = (plan.facts.get("search") or {}).get("arms") or {}
    return any(found["chosen"] is None for found in arms.values())


def _compare(plan: SweepPlan, say: Callable[[str], None]) -> None:
    """The answer: on the screen, as data, and as a page."""
    from blockyard.atomic_files import write_json
    from blockyard.report.comparison import compare
    from blockyard.report.page import write
    from blockyard.report.render.terminal import show
    from blockyard.report.stale import DATA, PAGE
    from blockyard.report.wandb.summary_run import mirror

    found = compare(plan).as_dict()
    write_json(plan.folder / DATA, found)
    show(found)
    say(f"page: {write(found, plan.folder / PAGE)}")
    if said := mirror(found, plan):
        say(said)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
