"""Where a run resumes: the newest checkpoint that it can load whole, and the files that belong to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.engine.callbacks.checkpoint import Checkpoint
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.errors import UserError
from blockyard.runs.checkpoint import (
    BadCheckpointError,
    Newest,
    check_optimizer,
    check_training_state,
    check_weights,
    newest_good,
    verify,
)
from blockyard.runs.checkpoint_io import repair
from blockyard.runs.folder import RunFolder
from blockyard.runs.metrics import lost_rows

log = logging.getLogger("blockyard")

_NUMBER = (int, float)
_STATE: dict[str, Any] = {
    "step": int,
    "evaluated": int,
    "values": dict,
    "tally": list,
    "stop": (str, type(None)),
    "watchers": dict,
    "seconds": _NUMBER,
    "windows": list,
    "first": (*_NUMBER, type(None)),
}


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a run resumes from, None for a new run, and its step.

    best_step: of the best weights so far; logged: rows of metrics.csv up to `step`, and the step of the last one
    newest: how the checkpoint was chosen, None in processes that do not write
    """

    path: Path | None = None
    step: int = 0
    best_step: int | None = None
    logged: tuple[int, int] = (0, 0)
    newest: Newest | None = None


def resume_point(folder: RunFolder, rank: int, resume: bool, loop: LoopCallback) -> ResumePoint:
    """Find the checkpoint to resume from; `loop` and its learner are new, and stay as they are.

    Raises UserError where there are checkpoints and none can be used.
    """
    if rank:
        # The main process has chosen and repaired it.
        name = folder.facts()["start"]["checkpoint"]
        if not name:
            return ResumePoint()
        path = folder.checkpoints / str(name)
        return ResumePoint(path, verify(path).step)
    if not resume:
        return ResumePoint()
    states: dict[Path, dict[str, Any]] = {}

    def check(path: Path, content: dict[str, Any]) -> None:
        _check(path, content, loop)
        states[path] = content["callbacks"][loop.state_key]

    newest = newest_good(folder.checkpoints, identity=folder.identity, seed=folder.seed, check=check)
    if newest.path is None:
        if newest.refused:
            raise UserError(f"no checkpoint of {folder.path} can be used: {newest}; force=true starts over")
        return ResumePoint()
    if newest.refused:
        log.warning("%s", newest)
    state = states[newest.path]
    best = next((state["watchers"][name]["step"] for name in _checkpoint_names(loop)), None)
    logged = state.get("logged") or [int(bool(state["values"])), 0]  # older checkpoints do not say
    return ResumePoint(newest.path, newest.step or 0, best, (logged[0], logged[1]), newest)


def restore_files(folder: RunFolder, point: ResumePoint) -> Path | None:
    """Repair the checkpoints beside the one to resume from, report lost metrics, and return its path from now on."""
    if point.newest is None or point.path is None:
        return point.path
    for message in repair(folder.checkpoints, point.newest, point.best_step):
        log.warning("%s", message)
    lost = lost_rows(folder.path, point.step, point.logged)
    if lost:
        log.warning("%s", lost)
    return folder.checkpoints / "last.ckpt"


def _check(path: Path, content: dict[str, Any], loop: LoopCallback) -> None:
    """Raise BadCheckpointError unless the run can go on from `content`."""
    learner, step = loop.state.learner, content["global_step"]
    check_training_state(path, content, callback=loop.state_key)
    others = bool(loop.callbacks.lightning)  # they may add weights of their own
    parameters = [name for name, _ in learner.named_parameters()]
    check_weights(path, content["state_dict"], learner.state_dict(), parameters, more=others)
    optimizer: Any = learner.configure_optimizers()
    _check_strategy(path, content["optimizer_states"], optimizer, learner)
    if not learner.settings.sharded:  # the state that FSDP saves has the order of the model
        check_optimizer(path, content["optimizer_states"], optimizer, step)
    if step > loop.state.total:
        raise BadCheckpointError(path, f"it is of step {step}, and the run has {loop.state.total}")
    _check_callbacks(path, content["callbacks"], loop, step)


def _check_strategy(path: Path, states: list[Any], optimizer: Any, learner: Any) -> None:
    """Raise BadCheckpointError where the optimizer's state was saved with FSDP and the run is without, or vice versa.

    torch.optim numbers parameters group by group, FSDP in the order of the model. A state in the other order would be
    refused for its shapes, or loaded for other parameters where these are equal.
    """
    positions = {parameter: position for position, parameter in enumerate(learner.parameters())}
    model_order = [positions[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    group_order = [*range(len(model_order))]
    try:
        saved = [number for group in states[0]["param_groups"] for number in group["params"]]
    except (IndexError, KeyError, TypeError):
        return  # check_optimizer names the damage
    if model_order == group_order:
        return  # either way the numbers are the same
    if saved == model_order and not learner.settings.sharded:
        raise BadCheckpointError(path, "it was saved with FSDP; resume with trainer.strategy=fsdp")
    if saved == group_order and learner.settings.sharded:
        raise BadCheckpointError(path, "it was saved without FSDP; resume with trainer.strategy=auto, or ddp")


def _check_callbacks(path: Path, saved: Mapping[str, Any], loop: LoopCallback, step: int) -> None:
    state = saved[loop.state_key]
    wrong = [name for name, kind in _STATE.items() if name not in state or not isinstance(state[name], kind)]
    if wrong or state["step"] != step or len(state["tally"]) != 2:
        part = wrong[0] if wrong else "step"
        raise BadCheckpointError(path, f"the state of the callbacks in it is damaged ({part})")
    model = loop.state.learner.model
    parameters = [key for key, _ in model.named_parameters()]
    for name, callback in loop.callbacks.named.items():
        fresh = callback.state_dict()
        entry = state["watchers"].get(name)
        has_state = isinstance(entry, dict) and fresh.keys() <= entry.keys()
        # A callback that only observes may be new to the run.
        if fresh and not has_state and "*" not in type(callback).incidental:
            raise BadCheckpointError(path, f"it lacks the state of callbacks.{name}")
        if callback.averages and isinstance(entry, dict):
            check_weights(path, entry["average"], model.state_dict(), parameters)
    for name in _checkpoint_names(loop):
        entry = state["watchers"][name]
        numbers = isinstance(entry["value"], (*_NUMBER, type(None))) and isinstance(entry["step"], (int, type(None)))
        if not numbers or not isinstance(entry["metrics"], dict):
            raise BadCheckpointError(path, f"the state of callbacks.{name} in it is damaged")
    logged = state.get("logged")
    if logged is not None and not (isinstance(logged, list) and [*map(type, logged)] == [int, int]):
        raise BadCheckpointError(path, "the state of the callbacks in it is damaged (logged)")
    for other in loop.callbacks.lightning:
        if other.state_dict() and other.state_key not in saved:
            raise BadCheckpointError(path, f"it lacks the state of {type(other).__name__}")


def _checkpoint_names(loop: LoopCallback) -> list[str]:
    return [name for name, callback in loop.callbacks.named.items() if isinstance(callback, Checkpoint)]
