"""blockyard compare PATH... [--baseline ARM] [--metric M] [--by KEY] [--markdown|--latex|--csv|--html FILE]

Judge arms against a baseline, seed by seed. PATH is a sweep (its name, file or folder), a run, a
folder of runs, a name or an id; several may be given. Where no sweep made the runs, the arms are
found from what their configs differ in; of a folder, the trials of a search are one arm, the best.

  --baseline ARM     what the others are compared with
  --metric M         test/accuracy, val/loss, step_seconds, ...; default the sweep's or the objective's
  --by KEY           one arm for each value of a config key: --by block, --by optimizer.lr
  --direction max    or min, for a metric that does not say which way is better
  --interesting D    the smallest difference that matters: for `a ~ b`, and for how many seeds would do;
                     default the sweep's margin
  --cost AXIS        what quality is weighed against: flops, parameters, step_seconds, seconds, peak_memory, ...
  --markdown [FILE]  also --latex, --csv, --runs (CSV, a row for each run); - or no FILE is the screen
  --html FILE        the page
  outputs=FOLDER     where names and ids are looked up

Examples:
  blockyard compare norm_placement
  blockyard compare outputs --by position --metric test/loss
  blockyard compare sweeps/glu.yaml --markdown glu.md --html glu.html
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.errors import UserError

VALUES = ("--baseline", "--metric", "--by", "--direction", "--interesting", "--cost")
FORMATS = {
    "--markdown": (".md", ".markdown", ".txt"),
    "--latex": (".tex",),
    "--csv": (".csv",),
    "--runs": (".csv",),
    "--html": (".html", ".htm"),
}


@dataclass
class CompareArgs:
    """A command line, read. files: format -> where it goes, "-" for the screen."""

    paths: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    outputs: str = "outputs"


def run(arguments: Sequence[str]) -> int:
    """Print the table, or write what was asked for."""
    asked = read(arguments)
    from blockyard.report.comparison import compare

    values = asked.values
    comparison = compare(
        asked.paths,
        baseline=values.get("--baseline"),
        metric=values.get("--metric"),
        by=values.get("--by"),
        direction=values.get("--direction"),
        margin=_number(values.get("--interesting")),
        cost_axis=values.get("--cost", "flops"),
        outputs=asked.outputs,
        changes="--html" in asked.files,  # nothing else shows them
    )
    data = comparison.as_dict()
    for name, where in asked.files.items():
        _give(name, where, data)
    if not asked.files:
        from blockyard.report.render.terminal import show

        show(data)
    return 0


def read(arguments: Sequence[str]) -> CompareArgs:
    """Sort a command line. Raises UserError on a flag that nobody reads or one without its word."""
    asked, rest = CompareArgs(), list(arguments)
    while rest:
        word = rest.pop(0)
        name, _, joined = word.partition("=")
        if name == "outputs" and joined:
            asked.outputs = joined
        elif not word.startswith("-"):
            asked.paths.append(word)
        elif name in VALUES:
            if not joined and not rest:
                raise UserError(f"{name}: the word after it is missing")
            asked.values[name] = joined or rest.pop(0)
        elif name in FORMATS:
            # What comes next is the file where it looks like one; else it is a path of runs.
            file = bool(rest) and (rest[0] == "-" or rest[0].lower().endswith(FORMATS[name]))
            asked.files[name] = joined or (rest.pop(0) if file else "")
        else:
            from blockyard.errors import near

            hint = "".join(f"; did you mean {found}?" for found in near(name, (*VALUES, *FORMATS))[:1])
            raise UserError(f"{name}: there is no such flag{hint} (flags: {', '.join((*VALUES, *FORMATS))}, --help)")
    return asked


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UserError(f"--interesting {text}: takes a number above 0, in the metric's unit")
    return value


def _give(name: str, where: str, data: dict[str, Any]) -> None:
    if name == "--html" and not where:
        raise UserError("--html: names no file; --html report.html, or --html - for the screen")
    text = _writer(name)(data)
    if where in ("", "-"):
        sys.stdout.write(text)
        return
    from blockyard.atomic_files import write_text

    try:
        write_text(Path(where).expanduser(), text)
    except OSError as error:
        raise UserError(f"{where} cannot be written: {error.strerror or error}") from error
    sys.stderr.write(f"{where}\n")


def _writer(name: str) -> Callable[[dict[str, Any]], str]:
    if name == "--html":
        from blockyard.report.page import render

        return render
    if name == "--markdown":
        from blockyard.report.render.markdown import markdown

        return markdown
    if name == "--latex":
        from blockyard.report.render.latex import latex

        return latex
    from blockyard.report.render import csv

    return csv.csv if name == "--csv" else csv.runs
