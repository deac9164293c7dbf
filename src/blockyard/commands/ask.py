"""`blockyard ask`: from a file to the sweep file that the time decides."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le

from blockyard.commands._signature import command
from blockyard.commands._types import OUTPUTS, ConfigDirs, Flag, Outputs, TypedLine, Value, run_overrides

MOST_HOURS = 1000


@command()
def ask(
    file: Annotated[str, Value("FILE")],
    question: Annotated[str, Value("QUESTION")] = "",
    *overrides: Annotated[str, Value("key=value", values=run_overrides, everything="overrides")],
    arms: Annotated[str, Value("A,B")] | None = None,
    hours: Annotated[float, Gt(0), Le(MOST_HOURS)] = 1.0,
    out: Annotated[str, Value("FILE.yaml")] | None = None,
    run: Flag[bool] = False,
    outputs: Outputs = OUTPUTS,
    config_dirs: ConfigDirs = (),
    typed: TypedLine = (),
) -> int:
    """Write the sweep file that answers a question about a file of your own within a number of hours.

    It looks at the file and its target, measures the time of a step, a learning rate and the noise of two seeds by
    short runs, and chooses what the hours can decide: steps, seeds, and the smallest difference that matters. The sweep
    file has each choice as an override, with the reason beside it: read it, change it, run it. What it can and cannot
    show is printed, and how far simple models come. A table of more than 256 MiB is sampled.

    Options:
        file: a table, an array, series, running text, molecules, or a folder of images or recordings
        question: one sentence, which becomes the claim
        overrides: of the config, which are then not chosen: data.label=COLUMN, model.dim=128
        arms: choices of one family, or FAMILY=CHOICE each, the first one is the baseline; without them a question is
            asked that suits the data
        hours: of the sweep on this machine
        out: the sweep file; by default the name of FILE, here
        run: run the sweep

    Examples:
        blockyard ask reviews.tsv "does rotary beat learned" arms=rope,learned hours=0.5
        blockyard ask houses.csv data.target=[price] --run
    """
    from blockyard.ask.answer import FileQuestion, answer
    from blockyard.config.untrusted.local_path import local_path

    path = local_path(file, "FILE")
    sweep_file = Path(out or _default_out(path))
    line = shlex.join(["blockyard", "ask", *typed])
    typed_question = FileQuestion(path, question.strip(), arms, overrides, hours, sweep_file, line, config_dirs)
    with _Progress() as progress:
        result = answer(typed_question, progress.show)
    for sentence in result.sentences:
        sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()
    if not run:
        return 0
    from blockyard.commands.sweep import sweep

    return sweep(str(result.path), outputs=outputs, config_dirs=config_dirs, typed=(str(result.path),))


def _default_out(path: Path) -> str:
    """Return the name of the sweep file of a data file: that of the file, as far as a sweep may be called so."""
    name = path.name.removesuffix(".gz")
    stem = re.sub(r"[^\w-]+", "_", name.partition(".")[0]).strip("_-")
    return f"{stem or 'question'}.yaml"


class _Progress:
    """A line on standard error that says what is measured; on a terminal it is replaced by the next one."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        return self

    def show(self, text: str) -> None:
        """Show what is measured now."""
        start, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        sys.stderr.write(f"{start}measuring: {text}{end}")
        sys.stderr.flush()

    def __exit__(self, *error: object) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
