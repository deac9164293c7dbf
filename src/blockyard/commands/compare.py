"""`blockyard compare`: compare arms with a baseline, paired by seed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

from annotated_types import Gt

from blockyard.commands._signature import command
from blockyard.commands._types import OUTPUTS, Flag, FlagForm, Outputs, Value, planned_sweeps
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


def _form(flag: str) -> FlagForm:
    """Return the form of a flag whose file may follow; another argument is a path of runs."""
    return FlagForm(bare="", follows=lambda text: text == "-" or text.lower().endswith(FORMATS[flag]))


@command()
def compare(
    *paths: Annotated[str, Value("PATH", values=planned_sweeps, everything="overrides")],
    baseline: Flag[Annotated[str, Value("ARM")]] | None = None,
    metric: Flag[Annotated[str, Value("M")]] | None = None,
    by: Flag[Annotated[str, Value("KEY,...")]] | None = None,
    direction: Flag[Annotated[str, Value("max|min")]] | None = None,
    margin: Flag[Annotated[float, Gt(0), Value("D")]] | None = None,
    over: Flag[Annotated[str, Value("WHAT")]] | None = None,
    ladder: Flag[Annotated[str, Value("FACTOR")]] | None = None,
    floors: Flag[Annotated[str, Value("shared|own")]] | None = None,
    cost_axis: Flag[Annotated[str, Value("AXIS")]] | None = None,
    markdown: Annotated[str, _form("--markdown"), Value("FILE")] | None = None,
    latex: Annotated[str, _form("--latex"), Value("FILE")] | None = None,
    csv: Annotated[str, _form("--csv"), Value("FILE")] | None = None,
    runs: Annotated[str, _form("--runs"), Value("FILE")] | None = None,
    html: Annotated[str, _form("--html"), Value("FILE")] | None = None,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Compare arms with a baseline, paired by seed.

    Runs that no sweep made are grouped into arms by what their configs differ in; the trials of a search in a folder
    count as one arm, the best. Runs of different tasks, with other data or another objective, are compared task by
    task, the task with the most runs first; a file of the second task is FILE-2.

    Options:
        paths: a sweep (its name, file or folder), a run, a folder of runs, a name or an id
        baseline: the arm that the others are compared with
        metric: test/accuracy, val/loss, step_seconds, ...; by default the sweep's or the objective's
        by: one arm for each value of a config key, or of several together: --by block,optimizer.lr
        direction: of a metric that does not say which direction is better
        margin: the smallest difference that matters, in the metric's unit: for `a ~ b`, and for how many seeds would
            suffice; by default the sweep's margin
        over: for what verdicts hold: seeds, samples or both, by the scores of single test samples; by default the
            sweep's, else seeds
        ladder: the factor of a grid whose levels are sizes: laws of loss against compute, and how many times the
            compute the baseline needs for the loss of each arm; a sweep with `ladder` needs no option
        floors: own gives the law E + A / C^a of each arm an E of its own, not one for all; by default the sweep's
        cost_axis: what quality is weighed against: flops, parameters, step_seconds, seconds, peak_memory, ...; by
            default the first of flops, parameters and cache_bytes_per_token in which arms differ by more than 5 %
        markdown: write a table in Markdown; without FILE, or with -, to standard output
        latex: write a table in LaTeX
        csv: write the arms as CSV
        runs: write CSV with one row a run
        html: write the page
        outputs: where names and ids are looked up

    Examples:
        blockyard compare norm_placement
        blockyard compare outputs --by position --metric test/loss
        blockyard compare sweeps/glu.yaml --markdown glu.md --html glu.html
    """
    formats = {"--markdown": markdown, "--latex": latex, "--csv": csv, "--runs": runs, "--html": html}
    files = {flag: file for flag, file in formats.items() if file is not None}
    named = [file for file in files.values() if file not in ("", "-")]
    twice = [flag for flag, file in files.items() if named.count(file) > 1]
    if twice:
        raise UserError(f"{' and '.join(twice)} name one file, {files[twice[0]]}; give each its own")
    from blockyard.report import comparison
    from blockyard.report.load.resolve import load_selection
    from blockyard.report.render.terminal import show

    def of_task(task: int) -> Comparison:
        return comparison.compare(
            list(paths),
            baseline=baseline,
            metric=metric,
            by=by,
            direction=direction,
            margin=margin,
            over=over,
            ladder=ladder,
            floors=floors,
            cost_axis=cost_axis,
            outputs=outputs,
            changes="--html" in files,  # only the page shows them
            task=task,
        )

    def count() -> int:
        return len(load_selection(list(paths), outputs=outputs, by=by).tasks)

    for index, data in enumerate(_each_task(of_task, count), start=1):
        for flag, file in files.items():
            _write(flag, file, data, index)
        if not files:
            if index > 1:
                sys.stdout.write("\n")
            show(data)


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


def _write(flag: str, file: str, data: Comparison, index: int) -> None:
    """Write a comparison in the format of a flag.

    index: the number of the task, from 1; files of the second and later tasks are FILE-2, FILE-3, ...
    """
    if flag == "--html" and not file:
        raise UserError("--html: a file is missing; --html report.html, or --html - for standard output")
    if file in ("", "-"):
        sys.stdout.write(_writer(flag)(data))
        return
    from blockyard.atomic_files import write_text
    from blockyard.config.untrusted.local_path import local_path
    from blockyard.report.page import write

    path = local_path(file, flag)
    shown = file
    if index > 1:
        path = path.with_name(f"{path.stem}-{index}{path.suffix}")
        shown = str(path)
    try:
        if flag == "--html":
            write(data.as_dict(), path)
        else:
            write_text(path, _writer(flag)(data))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    sys.stderr.write(f"{shown}\n")


def _writer(flag: str) -> Callable[[Comparison], str]:
    """Return the function that writes a comparison in the format of a flag."""
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

    if flag == "--csv":
        return csv.csv
    return csv.runs
