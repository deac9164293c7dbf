"""Logs the devices of a run with the training metrics: share of their peak, memory, utilization.

Source: Chowdhery et al. 2022, PaLM (arXiv 2204.02311), appendix B, for model FLOPs utilization (MFU)
Reference: lightning.fabric.utilities.throughput.Throughput, which waits for the device at every step

    device/mfu               FLOPs of the steps since the last reading, over their seconds and the peak of all devices
    device/peak_memory_gib   most memory that torch has allocated on the device since the run began, in GiB
    device/reserved_gib      memory that torch holds on the device, with what it keeps to allocate again, in GiB
    device/utilization       share of the last second or less in which a kernel ran, as the driver tells it

FLOPs are counted by `engine.cost_card`, not those of activations that are computed twice to save memory. Seconds are
those of training, without evaluation and saving. Memory and utilization are of the main process's device.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from blockyard.contracts import NonNegative
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.errors import first_line

if TYPE_CHECKING:
    import torch

log = logging.getLogger("blockyard")

MFU = "device/mfu"
PREFIX = "device/"  # of metrics that differ between two runs of one config


class DeviceStats(RunCallback):
    """Adds columns `device/...` to rows of training metrics: on a GPU, and where `trainer.peak_flops` is stated.

    They are read where a row is logged, when the device has been waited for anyway.

    Options:
        seconds: least time of training between two readings; a driver tells the mean over up to a second
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only observes

    def __init__(self, *, seconds: NonNegative = 1.0) -> None:
        self.seconds = seconds
        self._last: tuple[float, int] | None = None  # seconds and samples at the last reading
        self._has_utilization = True

    def on_run_start(self, state: RunState) -> None:
        """Forget a process before: its first step here compiles and fills caches."""
        self._last = None

    def metrics(self, state: RunState) -> dict[str, float]:
        """Return the share of the peak since the last reading, and memory and utilization now."""
        seconds, samples = state.seconds, state.seen[0]
        if self._last is None:
            self._last = (seconds, samples)
            return {}
        elapsed = seconds - self._last[0]
        if elapsed < self.seconds:
            return {}
        columns = {}
        if state.flops_per_sample is not None and state.peak_flops is not None and elapsed:
            flops = (samples - self._last[1]) * state.flops_per_sample
            columns[MFU] = flops / elapsed / state.peak_flops
        self._last = (seconds, samples)
        device = state.learner.device
        if device.type == "cuda":
            columns |= self._of_gpu(device)
        return columns

    def _of_gpu(self, device: torch.device) -> dict[str, float]:
        import torch

        columns = {
            f"{PREFIX}peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30,
            f"{PREFIX}reserved_gib": torch.cuda.memory_reserved(device) / 2**30,
        }
        if self._has_utilization:
            try:
                columns[f"{PREFIX}utilization"] = torch.cuda.utilization(device) / 100
            except Exception as error:  # no nvidia-ml-py here, or a part of a device (MIG), or another driver
                self._has_utilization = False
                log.info("%sutilization is left out: %s", PREFIX, first_line(error))
        return columns
