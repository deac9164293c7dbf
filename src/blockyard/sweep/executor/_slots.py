"""Assigns worker slots and GPUs of one machine to cells."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from blockyard.config.tree import Node


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine by their names in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = map(str.strip, visible.split(","))
        return [name for name in names if name not in ("", "-1")]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def requested_devices(config: Node) -> tuple[int, bool]:
    """Return how many devices a cell uses, and whether they may be GPUs."""
    trainer = config.get("trainer") or {}
    return int(trainer.get("devices", 1)), trainer.get("accelerator", "auto") != "cpu"


@dataclass
class DeviceSlots:
    """A fixed number of worker slots, and a fixed number of cells on each GPU.

    workers: processes in parallel; a cell of several devices takes one slot for each
    gpus: names of the GPUs
    per_gpu: cells that share one GPU
    used: slots in use
    load: cells on each GPU
    """

    workers: int
    gpus: list[str]
    per_gpu: int = 1
    used: int = 0
    load: dict[str, int] = field(default_factory=dict)

    def problem(self, config: Node) -> str | None:
        """Return why a cell can never run here, or None."""
        devices, gpu = requested_devices(config)
        trainer = config.get("trainer") or {}
        if int(trainer.get("num_nodes", 1)) > 1:
            return f"trainer.num_nodes={trainer['num_nodes']}: this executor has one machine; use executor=slurm"
        if trainer.get("accelerator") == "gpu" and not self.gpus:
            return "trainer.accelerator=gpu: this executor has no GPU; use trainer=cpu, or executor.gpus=auto"
        if gpu and self.gpus and devices > len(self.gpus):
            return f"trainer.devices={devices}: there are {len(self.gpus)} GPUs; use fewer devices"
        return None

    def acquire(self, config: Node) -> tuple[int, list[str]] | None:
        """Take slots and GPUs for a cell and return them, or None while too few are free.

        A cell that needs more slots than there are waits until all are free.
        """
        devices, gpu = requested_devices(config)
        slots = min(devices, self.workers)
        if self.used + slots > self.workers:
            return None
        chosen: list[str] = []
        if gpu and self.gpus:
            free = [name for name in self.gpus if self.load.get(name, 0) < self.per_gpu]
            free.sort(key=lambda name: self.load.get(name, 0))  # a stable sort: equal ones in their order
            chosen = free[:devices]
            if len(chosen) < devices:
                return None
        self.used += slots
        for name in chosen:
            self.load[name] = self.load.get(name, 0) + 1
        return slots, chosen

    def release(self, acquired: tuple[int, list[str]]) -> None:
        """Release the slots and GPUs of `acquire`."""
        slots, chosen = acquired
        self.used -= slots
        for name in chosen:
            self.load[name] -= 1
