"""`blockyard inspect`: looks, draws, says, and tells the run's logger."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import read_json, write_json
from blockyard.engine.loggers import run_logger
from blockyard.engine.loggers._wandb_run import bounded
from blockyard.errors import UserError
from blockyard.inspect.options import Options
from blockyard.runs.load import load
from blockyard.runs.redact import redact_text
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from blockyard.runs.load import Loaded

log = logging.getLogger("blockyard")

_LOGGER_SECONDS = 20.0


@dataclass
class Found:
    """What one kind of looking gave: numbers for the JSON, rows for the terminal, pictures, and a line of words."""

    numbers: dict[str, Any]
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    pictures: Iterable[Path]
    words: str


def inspect(
    run: str | os.PathLike[str],
    kinds: Sequence[str],
    options: Options,
    *,
    which: str = "best",
    out: str | os.PathLike[str] | None = None,
    log: bool = True,
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> dict[str, dict[str, Path]]:
    """Look at a run; the pictures of each kind by name. A table of each kind is printed.

    Raises UserError where the run, its data, a layer, a head or a token is not there, or where the
    kind is not for such a model; nothing is written then.
    """
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    folder = loaded.folder.path / "inspect" if out is None else Path(out).expanduser()
    made = {}
    for kind in kinds:
        pictures = _one(loaded, kind, options, folder)
        made[kind] = pictures
        if log:
            _tell(loaded, kind, pictures)
    return made


def _one(loaded: Loaded, kind: str, options: Options, folder: Path) -> dict[str, Path]:
    from blockyard.inspect import views

    try:
        found: Found = getattr(views, kind)(loaded, options, folder)
    except ValueError as error:  # of a user's making: a prompt that the model cannot read, a token that is not there
        raise UserError(str(error)) from error
    path = folder / f"{kind}.json"
    try:
        _sweep(path)
        pictures = [picture.resolve() for picture in found.pictures]
        facts = {
            "run": loaded.folder.name,
            "checkpoint": loaded.checkpoint.name,
            "step": loaded.step,
            "pictures": [picture.name for picture in pictures],
        }
        write_json(path, {**facts, **found.numbers}, indent=None)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}; out=FOLDER names another place") from error
    _say(loaded, kind, found, folder, pictures)
    return {f"inspect/{picture.stem}": picture for picture in pictures}


def _sweep(path: Path) -> None:
    """Remove the pictures that an earlier look of this kind left, so that none outlives its numbers."""
    try:
        names = read_json(path)["pictures"]
        for name in names:
            if Path(name).name == name and name.startswith(path.stem) and name.endswith(".png"):
                (path.parent / name).unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, TypeError):
        return  # there was none


def _say(loaded: Loaded, kind: str, found: Found, folder: Path, pictures: list[Path]) -> None:
    screen = console()
    shown = table(f"{kind} of {loaded.folder.name}, {loaded.checkpoint.name}, step {loaded.step:,}", *found.columns)
    for row in found.rows:
        shown.add_row(*row)
    screen.print(shown)
    screen.print(found.words)
    names = ", ".join(picture.name for picture in pictures)
    screen.print(f"{folder}: {names}, {kind}.json")
    sys.stdout.flush()


def _tell(loaded: Loaded, kind: str, pictures: dict[str, Path]) -> None:
    """The pictures to the run's logger; whatever it does, the look is done."""
    said: list[str | None] = []
    try:
        logger = run_logger(loaded.folder.config)
        logger.ready()
    except ValueError as error:
        log.warning("the logger was not told: %s", error)
        return
    failure = bounded(lambda: said.append(logger.pictures(loaded.folder, kind, pictures)), _LOGGER_SECONDS)
    if failure is not None:
        logger.abandon()
        log.warning("the logger was not told: %s; the pictures are in the folder", redact_text(failure)[:200])
    for words in filter(None, said):
        sys.stdout.write(f"{words}\n")
