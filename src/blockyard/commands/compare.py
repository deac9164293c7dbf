"""blockyard compare PATH... [--baseline ARM] [--metric M] [--by KEY] [--markdown|--latex|--csv|--html FILE]

Compare arms with a baseline, paired by seed. PATH is a sweep (its name, file or folder), a run, a folder of runs, a
name or an id; several may be given. Runs that no sweep made are grouped into arms by what their configs differ in;
the trials of a search in a folder count as one arm, the best. Runs of different tasks, that is of other data or another
objective, are compared task by task, the one with the most runs first; a file of the second task is FILE-2.

  --baseline ARM     what the other arms are compared with
  --metric M         test/accuracy, val/loss, step_seconds, ...; default: the sweep's or the objective's
  --by KEY           one arm for each value of a config key: --by block, --by optimizer.lr
  --direction max    or min, for a metric that does not say which direction is better
  --margin D         the smallest difference that matters, in the metric's unit: for `a ~ b`, and for how many seeds
                     would suffice; default: the sweep's margin
  --over WHAT        for what verdicts hold: seeds, samples or both, by the scores of single test samples; default: the
                     sweep's, else seeds
  --ladder FACTOR    the factor of a grid whose levels are sizes: laws of loss against compute, and how many times the
                     compute the baseline needs for the loss of each arm; a sweep with `ladder` needs no option
  --floors own       an E of its own for the law E + A / C^a of each arm, not one for all (shared; default: the sweep's)
  --cost-axis AXIS   what quality is weighed against: flops, parameters, step_seconds, seconds, peak_memory, ...;
                     default: the first of flops, parameters and cache_bytes_per_token in which arms differ by more
                     than 5 %
  --markdown [FILE]  also --latex, --csv, --runs (CSV, one row a run); without FILE, or with -, to standard output
  --html FILE        write the page
  outputs=FOLDER     where names and ids are looked up

Examples:
  blockyard compare norm_placement
  blockyard compare outputs --by position --metric test/loss
  blockyard compare sweeps/glu.yaml --markdown glu.md --html glu.html
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockyard.commands._args import Args, Parser, flag_type
from blockyard.config.option_text import number
from blockyard.errors import UserError, printable

if TYPE_CHECKING:
    from blockyard.report.comparison import Comparison


FORMATS = {
    "--markdown": (".md", ".markdown", ".txt"),
    "--latex": (".tex",),
    "--csv": (".csv",),
    "--runs": (".csv",),
    "--html": (".html", ".htm"),
}
KEYS = ("outputs",)


@dataclass
class CompareArgs(Args):
    """The command line of `blockyard compare`; its overrides are the paths.

    markdown, latex, csv, runs, html: the file to write, "" or "-" for standard output, None for none
    """

    baseline: str | None = None
    metric: str | None = None
    by: str | None = None
    direction: str | None = None
    margin: float | None = None
    over: str | None = None
    ladder: str | None = None
    floors: str | None = None
    cost_axis: str | None = None
    markdown: str | None = None
    latex: str | None = None
    csv: str | None = None
    runs: str | None = None
    html: str | None = None

    def files(self) -> dict[str, str]:
        """The formats to write, with the file of each."""
        files = {flag: getattr(self, flag.removeprefix("--")) for flag in FORMATS}
        return {flag: file for flag, file in files.items() if file is not None}


def run(arguments: Sequence[str]) -> int:
    """Print the table, or write the formats that are named."""
    args = parser().read(_with_files(arguments), CompareArgs)
    files = args.files()
    named = [file for file in files.values() if file not in ("", "-")]
    if twice := [flag for flag, file in files.items() if named.count(file) > 1]:
        raise UserError(f"{' and '.join(twice)} name one file, {files[twice[0]]}; give each its own")
    outputs = args.pop("outputs", "outputs") or "outputs"
    from blockyard.report.comparison import compare
    from blockyard.report.load.resolve import load_selection
    from blockyard.report.render.terminal import show

    def of_task(task: int) -> Comparison:
        return compare(
            args.overrides,
            baseline=args.baseline,
            metric=args.metric,
            by=args.by,
            direction=args.direction,
            margin=args.margin,
            over=args.over,
            ladder=args.ladder,
            floors=args.floors,
            cost_axis=args.cost_axis,
            outputs=outputs,
            changes="--html" in files,  # only the page shows them
            task=task,
        )

    def count() -> int:
        return len(load_selection(args.overrides, outputs=outputs, by=args.by).tasks)

    for index, data in enumerate(_each_task(of_task, count), start=1):
        for flag, file in files.items():
            _write(flag, file, data, index)
        if not files:
            sys.stdout.write("\n" if index > 1 else "")
            show(data)
    return 0


def _each_task(of_task: Callable[[int], Comparison], count: Callable[[], int]) -> Iterator[Comparison]:
    """Yield the comparison of each task of the selected runs.

    A task in which a flag means nothing, such as a metric that it lacks, is left out with a message, unless all do.
    """
    problems: list[UserError] = []
    try:
        first = of_task(0)
        tasks = len(first.tasks)
        yield first
    except UserError as error:
        problems.append(error)
        tasks = count()
    for task in range(1, tasks):
        try:
            yield of_task(task)
        except UserError as error:
            problems.append(error)
    if len(problems) >= max(tasks, 1):
        raise problems[0]
    for problem in problems:
        sys.stderr.write(printable(f"a task is left out: {problem}\n"))


def parser() -> Parser:
    """The flags of the command."""
    flags = Parser("compare")
    for flag in ("--baseline", "--metric", "--by", "--direction", "--over", "--ladder", "--floors"):
        flags.add_argument(flag)
    flags.add_argument("--margin", type=flag_type(number(exclusive=True)))
    flags.add_argument("--cost-axis")
    for flag in FORMATS:
        flags.add_argument(flag)
    return flags


def _with_files(arguments: Sequence[str]) -> list[str]:
    """The arguments with each format's file joined to its flag (`--csv=runs.csv`).

    The argument after a format is its file where it looks like one; otherwise it is a path of runs.
    """
    joined: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument in FORMATS:
            is_file = bool(rest) and (rest[0] == "-" or rest[0].lower().endswith(FORMATS[argument]))
            argument = f"{argument}={rest.pop(0) if is_file else ''}"
        joined.append(argument)
    return joined


def _write(flag: str, file: str, data: Comparison, index: int) -> None:
    """Write one format. index: of the task, from 1; files of the second and later ones are FILE-2, FILE-3, ..."""
    if flag == "--html" and not file:
        raise UserError("--html: a file is missing; --html report.html, or --html - for standard output")
    if file in ("", "-"):
        sys.stdout.write(_writer(flag)(data))
        return
    from blockyard.atomic_files import write_text
    from blockyard.config.untrusted.local_path import local_path
    from blockyard.report.page import write

    path = local_path(file, flag)
    path = path if index == 1 else path.with_name(f"{path.stem}-{index}{path.suffix}")
    try:
        if flag == "--html":
            write(data.as_dict(), path)
        else:
            write_text(path, _writer(flag)(data))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    sys.stderr.write(f"{path if index > 1 else file}\n")


def _writer(flag: str) -> Callable[[Comparison], str]:
    if flag == "--html":
        from blockyard.report.page import render

        return lambda data: render(data.as_dict())
    if flag == "--markdown":
        from blockyard.report.render.markdown import markdown

        return markdown
    if flag == "--latex":
        from blockyard.report.render.latex import latex

        return latex
    from blockyard.report.render import csv

    return csv.csv if flag == "--csv" else csv.runs
