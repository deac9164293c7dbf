"""Tests end processes, not the power: what was written is with the kernel, and nothing waits for the disk.

A tiny run syncs 44 files and folders, which on a disk takes as long as its computation. The whole battery
(`make battery`) syncs as users do, and `tests/runs/test_synced.py` holds that a file is synced before it is renamed.
"""

from __future__ import annotations

import os

_SKIPPED = "BLOCKYARD_TESTS_SKIP_SYNC"  # for the server that commands are forked from


def skip_sync() -> None:
    """Let this process and those that are forked from it check a file instead of syncing it."""
    os.environ[_SKIPPED] = "1"
    os.fsync = os.fdatasync = _checked


def skip_sync_if_asked() -> None:
    """Do so in a process whose environment says that another one did."""
    if _SKIPPED in os.environ:
        skip_sync()


def _checked(file: int) -> None:
    os.fstat(file)  # a closed one is still an error
