"""Run `blockyard inspect`: compute, write figures and numbers, print a table, and send the figures to the logger."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.atomic_files import read_json, write_json
from blockyard.config.untrusted.local_path import local_path
from blockyard.engine.loggers import RunLogger, run_loggers
from blockyard.engine.loggers._wandb import bounded
from blockyard.errors import UserError
from blockyard.inspect.options import Options
from blockyard.inspect.panels import draw
from blockyard.inspect.result import InspectionResult
from blockyard.runs.load import load
from blockyard.runs.redact import redact_text
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder
    from blockyard.runs.load import Loaded

log = logging.getLogger("blockyard")

_LOGGER_SECONDS = 20.0


def inspect(
    run: str | os.PathLike[str] | RunFolder,
    kinds: Sequence[str],
    options: Options,
    *,
    which: str = "best",
    out: str | os.PathLike[str] | None = None,
    log: bool | None = None,
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> dict[str, dict[str, Path]]:
    """Inspect a run, print a table of each kind, and return the figures of each kind by name.

    log: send the figures to the loggers of the run's config; None does so for a run in `outputs`, since the config of a
        run from elsewhere may name another account or folder
    Raises UserError for a missing run, dataset, layer, head or token, and for a kind that does not apply to the
    model; that kind then writes nothing.
    """
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    is_local = loaded.folder.path.resolve().is_relative_to(Path(outputs).resolve())
    if log is None and not is_local and not _has_no_logger(loaded.folder.config.get("logger")):
        sys.stderr.write(
            f"the figures are not sent to the run's logger, since the run is not in {outputs}; log=true sends them\n"
        )
    folder = loaded.folder.path / "inspect" if out is None else local_path(out, "out")
    figures = {}
    for kind in kinds:
        figures[kind] = _inspect_kind(loaded, kind, options, folder)
        if log or (log is None and is_local):
            _log_figures(loaded, kind, figures[kind])
    return figures


def _inspect_kind(loaded: Loaded, kind: str, options: Options, folder: Path) -> dict[str, Path]:
    try:
        result: InspectionResult = import_module(f"blockyard.inspect.kinds.{kind}").inspect(loaded, options)
    except ValueError as error:  # the user's input: a prompt that cannot be encoded, a token that does not exist
        raise UserError(str(error)) from error
    path = folder / f"{kind}.json"
    try:
        # Before the first new figure: a kind may draw fewer pages than last time.
        _remove_previous_figures(path)
        figures = [figure.resolve() for figure in draw(result.pages, folder)]
        header = {
            "run": loaded.folder.name,
            "checkpoint": loaded.weights,
            "step": loaded.step,
            "pictures": [figure.name for figure in figures],
        }
        write_json(path, {**header, **result.numbers}, indent=None)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; out=FOLDER sets another folder") from error
    _print_result(loaded, kind, result, folder, figures)
    return {f"inspect/{figure.stem}": figure for figure in figures}


def _remove_previous_figures(path: Path) -> None:
    """Remove the figures that the JSON at `path` lists, so that no figure outlives its numbers."""
    try:
        for name in read_json(path)["pictures"]:
            if Path(name).name == name and name.startswith(path.stem) and name.endswith(".png"):
                (path.parent / name).unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, TypeError):
        return  # no earlier inspection, or not a file of ours


def _print_result(loaded: Loaded, kind: str, result: InspectionResult, folder: Path, figures: list[Path]) -> None:
    screen = console()
    title = f"{kind} of {loaded.folder.name}, {loaded.weights}, step {loaded.step:,}"
    printed = table(title, *result.columns)
    for row in result.rows:
        printed.add_row(*(row[name] or "" for name in result.columns))
    screen.print(printed)
    screen.print(result.summary)
    screen.print(f"{folder}: {', '.join(figure.name for figure in figures)}, {kind}.json")
    sys.stdout.flush()


def _has_no_logger(node: object) -> bool:
    """Return whether a logger's config is empty, or of `logger=none`."""
    return not node or (isinstance(node, dict) and str(node.get("_target_")).endswith(".NoLogger"))


def _log_figures(loaded: Loaded, kind: str, figures: dict[str, Path]) -> None:
    """Send the figures to the run's loggers; their failure is a warning, and the inspection stays complete."""
    try:
        loggers = run_loggers(loaded.folder.config)
    except ValueError as error:
        log.warning("figures not sent to the logger: %s", error)
        return
    for logger in loggers:
        _log_to(logger, loaded, kind, figures)


def _log_to(logger: RunLogger, loaded: Loaded, kind: str, figures: dict[str, Path]) -> None:
    messages: list[str | None] = []
    try:
        logger.ready()
    except ValueError as error:
        log.warning("figures not sent to the logger: %s", error)
        return
    # A logger may wait for a network without an end, and the figures are on the disk already.
    failure = bounded(lambda: messages.append(logger.pictures(loaded.folder, kind, figures)), _LOGGER_SECONDS)
    if failure is not None:
        logger.abandon()
        log.warning("figures not sent to the logger: %s; they are in the folder", redact_text(failure)[:200])
    for message in filter(None, messages):
        sys.stdout.write(f"{message}\n")
