"""Numbers: which precision, and on a CPU the faster one by measurement.

The flag of a CPU does not say whether bf16 is faster: casts cost more than they save in a narrow
model. So `auto` times both once per model shape, batch shape, machine and torch version.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import platform
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from blockyard.contracts import Batch, Objective
from blockyard.engine.randomness import undisturbed

log = logging.getLogger("blockyard")

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_CHOICES = ("32", "bf16-mixed")
_BUDGET = 2.0  # seconds spent timing, beyond two steps of each
_WORTH = 0.9  # bf16 is taken where a step costs at most this share of one in fp32


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context in which a forward pass of this precision runs."""
    dtype = _DTYPES.get(str(precision))
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def faster_on_cpu(model: nn.Module, objective: Objective, batch: Batch) -> dict[str, Any]:
    """Which of fp32 and bf16 autocast trains `model` faster here, with both median step seconds.

    Neither the model's weights nor any random stream change. The answer is read from the cache
    where this shape was timed before. A dictionary of precision, seconds, cached.
    """
    path = _cache_folder() / f"{_key(model, batch)}.json"
    known = _read(path)
    if known is not None:
        return known | {"cached": True}
    with undisturbed():
        seconds = _time_both(copy.deepcopy(model), objective, batch)
    found = {"precision": _faster(seconds), "seconds": seconds}
    _write(path, found)
    return found | {"cached": False}


def _faster(seconds: dict[str, float]) -> str:
    # A tie goes to the one that rounds less.
    return "bf16-mixed" if seconds["bf16-mixed"] < _WORTH * seconds["32"] else "32"


def _time_both(model: nn.Module, objective: Objective, batch: Batch) -> dict[str, float]:
    batch = objective.prepare(batch)
    model.train()
    times: dict[str, list[float]] = {name: [] for name in _CHOICES}
    started = time.perf_counter()
    # In turns, so that a busy moment of the machine hits both.
    for round_ in range(12):
        if round_ >= 2 and time.perf_counter() - started > _BUDGET:
            break
        for name in _CHOICES:
            before = time.perf_counter()
            with autocast(torch.device("cpu"), name):
                loss = objective.loss(model(batch.inputs, batch.lengths, batch.segment), batch.target)
            loss.backward()
            times[name].append(time.perf_counter() - before)
            model.zero_grad(set_to_none=True)
    # The first of each pays for allocations.
    return {name: sorted(found[1:])[len(found[1:]) // 2] for name, found in times.items()}


def _key(model: nn.Module, batch: Batch) -> str:
    facts = [
        [[name, list(p.shape)] for name, p in model.named_parameters()],
        [str(module) for module in model.children()],
        [None if t is None else [list(t.shape), str(t.dtype)] for t in batch.tensors()],
        _cpu(),
        torch.__version__,
        torch.get_num_threads(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cache_folder() -> Path:
    given = os.environ.get("BLOCKYARD_CACHE")
    if given:
        return Path(given) / "precision"
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "blockyard" / "precision"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    good = (
        isinstance(found, dict)
        and found.get("precision") in _CHOICES
        and set(found.get("seconds", ())) == set(_CHOICES)
    )
    return found if good else None


def _write(path: Path, found: dict[str, Any]) -> None:
    from blockyard.runs.files import write_json

    try:
        write_json(path, found)
    except OSError as error:
        log.info("the timing of precisions is not cached: %s", error)
