"""Which process a trial belongs to: a lock in the sweep's folder that ends with the process."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.runs.lock import RunLock, held
from blockyard.sweep.search.optuna_store import OWNER

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class Owner:
    """The searching process, as the attribute `owner` of its trials names it. folder: of the sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"{OWNER}-{os.getpid()}-{secrets.token_hex(4)}"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold a lock that ends with this process, which tells others whose trials to take over."""
        lock = RunLock(self.folder / self.name).acquire()
        try:
            yield
        finally:
            lock.path.unlink(missing_ok=True)
            lock.release()

    def may_run(self, trial: FrozenTrial) -> bool:
        """Whether a trial is this process's, or that of one that has ended."""
        owner = str(trial.user_attrs.get("owner"))
        return owner == self.name or not held(self.folder / owner)
