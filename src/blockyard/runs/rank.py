"""Which of a run's processes this is: the only place that asks the environment."""

from __future__ import annotations

import os
from typing import Any


def rank_of(devices: int) -> int:
    """Number of this process over all machines; 0 for the one that writes.

    torchrun sets RANK, SLURM's srun SLURM_PROCID; Lightning's own launch, and a user who starts the
    machines by hand, NODE_RANK and LOCAL_RANK. A single task of SLURM is a process like any other.
    """
    given = _number("RANK")
    if given is None and (_number("SLURM_NTASKS") or 1) > 1:
        given = _number("SLURM_PROCID")
    return (_number("NODE_RANK") or 0) * devices + (_number("LOCAL_RANK") or 0) if given is None else given


def local_rank_of() -> int:
    """Number of this process on its machine."""
    local = _number("LOCAL_RANK")
    if local is None and (_number("SLURM_NTASKS") or 1) > 1:
        local = _number("SLURM_LOCALID")
    return local or 0


def rank_in(config: dict[str, Any]) -> int:
    """`rank_of` with the devices of a run's config."""
    trainer = config.get("trainer")
    devices = trainer.get("devices", 1) if isinstance(trainer, dict) else 1
    return rank_of(devices if isinstance(devices, int) else 1)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None
