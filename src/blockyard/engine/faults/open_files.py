"""The limit of open files, which processes that load data need many of."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from blockyard.errors import UserError

_PER_WORKER = 6  # pipes and semaphores of its queues, and the batch in transfer
_SPARE = 24  # checkpoints, the metrics, a connection of the logger


def check_open_files(workers: int) -> None:
    """Raise UserError if this process may not open the files that `workers` processes for its data need."""
    folder = Path("/proc/self/fd")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if not workers or limit == resource.RLIM_INFINITY or not folder.exists():
        return
    needed = len(os.listdir(folder)) + workers * _PER_WORKER + _SPARE
    if needed > limit:
        raise UserError(
            f"trainer.num_workers={workers} needs about {needed} open files, and this process may open {limit}; "
            f"raise the limit (ulimit -n {needed}), or use trainer.num_workers=0"
        )
