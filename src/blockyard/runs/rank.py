"""The rank of this process in its run: the only place that reads it from the environment."""

from __future__ import annotations

import os

from blockyard.config.tree import Node
from blockyard.errors import UserError, shortened

# Of the variables that launchers set: numbers that this file, Lightning or torch reads.
_NUMBERS = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
)


def rank_of(devices: int) -> int:
    """Return the global rank of this process; rank 0 writes.

    torchrun sets RANK, SLURM's srun SLURM_PROCID; Lightning's launcher, and users who start each machine by hand, set
    NODE_RANK and LOCAL_RANK. A single SLURM task counts as a plain process.
    """
    rank = _number("RANK")
    if rank is None and (_number("SLURM_NTASKS") or 1) > 1:
        rank = _number("SLURM_PROCID")
    if rank is not None:
        return rank
    return (_number("NODE_RANK") or 0) * devices + (_number("LOCAL_RANK") or 0)


def local_rank_of() -> int:
    """Return the rank of this process on its machine."""
    local = _number("LOCAL_RANK")
    if local is None and (_number("SLURM_NTASKS") or 1) > 1:
        local = _number("SLURM_LOCALID")
    return local or 0


def rank_in(config: Node) -> int:
    """Return `rank_of` with the devices of a run's config."""
    trainer = config.get("trainer")
    devices = trainer.get("devices", 1) if isinstance(trainer, dict) else 1
    return rank_of(devices if isinstance(devices, int) else 1)


def started_by_run() -> bool:
    """Return whether the main process of the run has started this one, rather than torchrun, srun or a user."""
    return "RANK" not in os.environ and "SLURM_PROCID" not in os.environ and bool(_number("LOCAL_RANK"))


def restarted() -> bool:
    """Return whether torchrun started this process again after a failure (`--max-restarts`)."""
    return bool(_number("TORCHELASTIC_RESTART_COUNT"))


def check_environment() -> None:
    """Refuse launchers' variables that hold no number, and torchrun's restarts where they cannot work.

    On several nodes each restart needs a store of its own.
    Where the store is shared, torch keeps the keys of an attempt apart by the number of restarts. An agent counts the
    failures of its own processes only, so after a failure on one node the nodes differ in that number: they read the
    addresses of processes that are gone, and wait for each other until the time limit.

    Raises UserError.
    """
    for name in _NUMBERS:
        _number(name)
    several = (_number("GROUP_WORLD_SIZE") or 1) > 1
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if several and shared and (restarts := _number("TORCHELASTIC_MAX_RESTARTS")):
        raise UserError(
            f"torchrun --max-restarts={restarts} on several nodes needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the "
            "environment of torchrun: with the shared store, restarted processes do not find each other"
        )


def _number(name: str) -> int | None:
    """Return the number in a variable of the environment, or None without it. Raises UserError for other texts."""
    text = os.environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise UserError(
            f"the environment has {name}={shortened(text)}, which is not a number: launchers such as torchrun and srun "
            f"set it; to start one process, remove it (unset {name})"
        )
    return int(text)
