"""Figures beside the numbers of a result: one file of `inspect/figures/` for each kind of result, found on the disk."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockyard.runs.load import Loaded

FIGURES = Path(__file__).parents[1] / "inspect" / "figures"


def draw(kind: str, loaded: Loaded, result: object, subject: str, path: Path) -> list[Path]:
    """Draw a result beside its numbers, and return the files; none for a kind of result without figures.

    kind: the file of `inspect/figures/`; subject: of the title, after the run and its weights
    path: the file with the numbers, whose name without suffix the figure has
    """
    if not (FIGURES / f"{kind}.py").is_file():
        return []
    files: list[Path] = import_module(f"blockyard.inspect.figures.{kind}").draw(loaded, result, subject, path)
    return files
