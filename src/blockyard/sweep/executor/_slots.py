"""Who gets which GPU, and how many cells fit at once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any


def visible_gpus() -> list[str]:
    """The GPUs of this machine by the names that CUDA_VISIBLE_DEVICES takes."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() and name.strip() != "-1"]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wanted(config: dict[str, Any]) -> tuple[int, bool]:
    """How many devices a cell takes, and whether GPUs would do."""
    trainer = config.get("trainer") or {}
    return int(trainer.get("devices", 1)), trainer.get("accelerator", "auto") != "cpu"


@dataclass
class Places:
    """So many cells at once, and so many on each GPU.

    workers: processes at once; a cell of several devices takes as many
    gpus: names of GPUs; per_gpu: cells on each
    """

    workers: int
    gpus: list[str]
    per_gpu: int = 1
    used: int = 0
    load: dict[str, int] = field(default_factory=dict)

    def problem(self, config: dict[str, Any]) -> str | None:
        """Why a cell can never run here, or None."""
        devices, gpu = wanted(config)
        trainer = config.get("trainer") or {}
        if int(trainer.get("num_nodes", 1)) > 1:
            return f"trainer.num_nodes={trainer['num_nodes']}: this executor has one machine; take executor=slurm"
        if trainer.get("accelerator") == "gpu" and not self.gpus:
            return "trainer.accelerator=gpu: no GPU is handed out here; take trainer=cpu, or executor.gpus=auto"
        if gpu and self.gpus and devices > len(self.gpus):
            return f"trainer.devices={devices}: there are {len(self.gpus)} GPUs; take fewer devices"
        return None

    def take(self, config: dict[str, Any]) -> tuple[int, list[str]] | None:
        """Places and GPUs for a cell now, or None. One that wants more places than there are waits for all."""
        devices, gpu = wanted(config)
        places = min(devices, self.workers)
        if self.used + places > self.workers:
            return None
        chosen: list[str] = []
        if gpu and self.gpus:
            free = sorted((self.load.get(name, 0), index) for index, name in enumerate(self.gpus))
            chosen = [self.gpus[index] for load, index in free if load < self.per_gpu][:devices]
            if len(chosen) < devices:
                return None
        self.used += places
        for name in chosen:
            self.load[name] = self.load.get(name, 0) + 1
        return places, chosen

    def give(self, taken: tuple[int, list[str]]) -> None:
        """The inverse of `take`."""
        places, chosen = taken
        self.used -= places
        for name in chosen:
            self.load[name] -= 1
