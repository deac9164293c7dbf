"""What a planner leaves for the next one about its jobs, and how submitit's refusals are told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, write_json
from blockyard.errors import UserError

JOBS = "jobs.json"  # run -> job


def known(folder: Path) -> dict[str, str]:
    """The jobs that cells were given before, by their runs."""
    try:
        return dict(read_json(folder / JOBS))
    except (OSError, ValueError, TypeError):
        return {}


def remember(folder: Path, jobs: dict[str, str]) -> None:
    """Add jobs. Raises OSError."""
    write_json(folder / JOBS, known(folder) | jobs)


def pair(word: str) -> tuple[str, Any]:
    """A word of sbatch, `key=value` or a bare flag."""
    key, sign, value = word.removeprefix("--").partition("=")
    return key, value if sign else True


@contextlib.contextmanager
def said(key: str) -> Iterator[None]:
    """What submitit refuses, as a message for the user."""
    try:
        yield
    except UserError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        hint = "; executor.cluster=local runs the same jobs here" if "srun" in str(error) else ""
        raise UserError(f"{key}: submitit refuses: {' '.join(str(error).split())[:300]}{hint}") from error
