"""Reads the pickles of submitit's jobs as plain data: a sweep's folder may come from a stranger.

A pickle can name any function, which is called as the pickle is read. Only the classes of this package's jobs are
looked up. Any other name is refused.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_bytes

_MAX_BYTES = 100_000_000
_CLASSES = frozenset(
    {
        ("blockyard.sweep.cells", "Outcome"),
        ("blockyard.sweep.cells", "Task"),
        ("blockyard.sweep.executor._slurm_queue", "CellJob"),
        ("submitit.core.utils", "DelayedSubmission"),
    }
)


def read_pickle(path: Path) -> Any:
    """Return the content of a job's pickle. Raises OSError, or pickle.UnpicklingError for any other fault."""
    try:
        return _Plain(io.BytesIO(read_bytes(path, _MAX_BYTES))).load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise any exception
        raise pickle.UnpicklingError(f"{path} cannot be read: {error or type(error).__name__}") from error


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class of a job. Raises UnpicklingError for any other name, before its module is imported."""
        if (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no job of blockyard does")
        return super().find_class(module, name)
