"""Timing a training step in several ways, by turns, and remembering which way won.

What is asked: the model's and the batch's shape, the machine, torch's version. The same question
gets the same answer ever after (from the cache), so that a run repeated is a run repeated.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from blockyard.atomic_files import write_json
from blockyard.contracts import Batch, Objective
from blockyard.ops.rng import undisturbed

log = logging.getLogger("blockyard")

_BUDGET = 1.0  # seconds spent timing, beyond two steps of each way
_WORTH = 0.9  # a way is taken before an earlier one where a step costs at most this share of its time

Way = Callable[[], AbstractContextManager[object]]


def choose(what: str, ways: dict[str, Way], model: nn.Module, objective: Objective, batch: Batch) -> dict[str, Any]:
    """Which of `ways`, contexts for a forward pass in the order of preference, trains `model` fastest.

    Neither the model's weights nor any random stream change. A dictionary: `what` with the name of
    the way, seconds with each way's median step, cached.
    """
    path = _cache_folder() / f"{what}-{_key(what, ways, model, batch)}.json"
    known = _read(path, what, tuple(ways))
    if known is not None:
        return known | {"cached": True}
    with undisturbed():
        seconds = _in_turns(ways, copy.deepcopy(model), objective, batch)
    found = {what: _fastest(seconds), "seconds": seconds}
    _write(path, found)
    return found | {"cached": False}


def _fastest(seconds: dict[str, float]) -> str:
    # A tie goes to the earlier way, whatever the machine was busy with.
    names = list(seconds)
    best = names[0]
    for name in names[1:]:
        if seconds[name] < _WORTH * seconds[best]:
            best = name
    return best


def _in_turns(ways: dict[str, Way], model: nn.Module, objective: Objective, batch: Batch) -> dict[str, float]:
    batch = objective.prepare(batch)
    model.train()
    times: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    # In turns, so that a busy moment of the machine hits all.
    for round_ in range(12):
        if round_ >= 2 and time.perf_counter() - started > _BUDGET:
            break
        for name, way in ways.items():
            before = time.perf_counter()
            with way():
                loss = objective.loss(model(**batch.arguments()), batch.target)
                loss.backward()
            times[name].append(time.perf_counter() - before)
            model.zero_grad(set_to_none=True)
    # The first of each pays for allocations.
    return {name: sorted(found[1:])[len(found[1:]) // 2] for name, found in times.items()}


def _key(what: str, ways: dict[str, Way], model: nn.Module, batch: Batch) -> str:
    facts = [
        [what, *ways],
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
        return Path(given) / "timing"
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "blockyard" / "timing"


def _read(path: Path, what: str, ways: tuple[str, ...]) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or set(found.get("seconds", ())) != set(ways):
        return None
    return found if found.get(what) in ways else None


def _write(path: Path, found: dict[str, Any]) -> None:
    try:
        write_json(path, found)
    except OSError as error:
        log.info("the timing is not cached: %s", error)
