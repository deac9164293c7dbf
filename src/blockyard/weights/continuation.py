"""Training longer: a new run continues a finished one, with its optimizer state, data order and metrics.

Source: Hu et al. 2024, MiniCPM (arXiv 2404.06395), section 4: one stable phase from which several runs decay

`blockyard train resume=RUN trainer.max_steps=N` on a finished run makes the config of the new run (`longer`). Before
its first step the engine gives it the last state of its parent (`plant`), so that it continues as a resumed run does.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from blockyard.atomic_files import read_member, replacing
from blockyard.config import lightning, tree
from blockyard.config.defaults import default_node
from blockyard.config.instantiate import instantiate
from blockyard.config.run_length import LENGTHS
from blockyard.config.tree import Node
from blockyard.config.untrusted.targets import allow_of, locate
from blockyard.errors import UserError, quoted
from blockyard.runs.checkpoint import BEST, LAST, BadCheckpointError, read
from blockyard.runs.costs import costs
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import check_allowed, trusted_config
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.resume import apply, choice_node, parse_overrides
from blockyard.runs.store import find
from blockyard.weights.transfer import content_hash

log = logging.getLogger("blockyard")

FACTS = ("data", "threads", "precision")  # of the parent: the last bits of a run depend on them


def is_longer(name: str, overrides: Sequence[str]) -> bool:
    """Return whether `resume=name` with these overrides names a finished run and another budget for it."""
    values = parse_overrides(overrides)
    if not any(key in values for key in LENGTHS):
        return False
    run = _parent(name, values, str(values.get("outputs", "outputs")))
    return run.finished and any(values[key] != tree.get(run.config, key) for key in LENGTHS if key in values)


def longer(
    name: str, overrides: Sequence[str], config_dirs: Sequence[str] = ()
) -> tuple[Node, dict[str, str | None], str]:
    """Return the config of a run that continues a finished one, its choices, and a line about it for the terminal.

    Raises UserError for an override that is neither of the budget nor of the schedule nor allowed for a resume, for a
    budget that the parent has used up, and for a parent that ended before its budget.
    """
    values = parse_overrides(overrides)
    run = _parent(name, values, str(values.pop("outputs", "outputs")))
    allow = values.pop("allow", []) or []
    check_allowed(run, allow)
    changes = {key: values.pop(key) for key in list(values) if key in LENGTHS or key.partition(".")[0] == "schedule"}
    config, refused = apply(run, values, config_dirs)
    if refused:
        raise UserError(
            f"{run.name} goes on with another budget ({', '.join(LENGTHS)}) and schedule only: "
            f"{'; '.join(refused)}; leave them out, or start a new run with init.from={run.path}"
        )
    config, choices = copy.deepcopy(config), dict(run.facts().get("choices") or {})
    schedule = changes.pop("schedule", None)
    if schedule is not None:  # the choice before its options
        config["schedule"] = choice_node("schedule", str(schedule), choices, config, config_dirs)
        choices["schedule"] = str(schedule)
    for key, value in changes.items():
        family, _, option = key.partition(".")
        if option not in config[family]:
            raise UserError(f"{key} is not a setting of {run.name}; see `blockyard explain {family}`")
        config[family][option] = value
    _check_parent(run)
    content = _content(run)
    config["init"] = (config.get("init") or default_node("init", "default")) | {
        "parent": str(run.path),
        "parent_sha256": state_hash(content),
    }
    config = trusted_config(RunFolder(run.path, config), allow, training=True)
    done = int(content["global_step"])
    end = _end(config, run, done)
    return config, choices, f"going on from {run.path} at step {done}{end}"


def _parent(name: str, values: Mapping[str, object], outputs: str) -> RunFolder:
    """Return the run to continue.

    Runs that continue each other have one name. Of these, return the last that does not exceed the new budget yet.
    """
    run = find(name, outputs)
    exact = name.strip().rstrip("/") == run.name or Path(name).expanduser().absolute() == run.path
    while not exact and _is_beyond(run, values):
        parent = (run.config.get("init") or {}).get("parent")
        if not parent:
            break
        run = RunFolder.open(parent)
        log.warning("resume=%s: the budget is that of a run that goes on from %s", name, run.name)
    return run


def _is_beyond(run: RunFolder, values: Mapping[str, object]) -> bool:
    """Return whether a run has a larger budget than `values`."""
    for key in LENGTHS:
        new, old = values.get(key), tree.get(run.config, key)
        if isinstance(new, int | float) and isinstance(old, int | float) and new < old:
            return True
    return False


def plant(folder: RunFolder, parent: str, sha256: str | None) -> None:
    """Copy the checkpoints and metrics of the parent into a new run, under the new run's name.

    Raises UserError if the parent is gone, or its last state differs from the hash in the config.
    """
    from blockyard.runs.checkpoint_io import AtomicCheckpointIO

    run = RunFolder.open(parent)
    run.check_members()
    content = _content(run)
    if state_hash(content) != sha256:
        raise UserError(f"init.parent={run.path}: its last state is not the one that this run goes on from; restore it")
    io = AtomicCheckpointIO(identity=folder.identity, seed=folder.seed)
    try:
        best = read(run.checkpoints / BEST, identity=run.identity, seed=run.seed)
        io.save_checkpoint(best, folder.checkpoints / BEST)
    except (FileNotFoundError, BadCheckpointError) as error:
        raise UserError(f"init.parent={run.path}: its best weights cannot be read ({error})") from error
    with replacing(folder.path / METRICS) as temporary:
        temporary.write_bytes(read_member(run.path / METRICS))
    recorded = run.facts()
    facts = {key: recorded[key] for key in FACTS if recorded.get(key) is not None}
    parent_facts = {"run": run.name, "path": str(run.path), "step": content["global_step"], "sha256": sha256}
    folder.add_facts(facts | {"parent": parent_facts})
    # Last: a run with last.ckpt counts as begun, and is resumed without `plant`.
    io.save_checkpoint(content, folder.checkpoints / LAST)


def state_hash(content: dict[str, Any]) -> str:
    """Return the hash of a checkpoint's weights, optimizer state and step, without times and paths."""
    tensors = {f"weights.{name}": value for name, value in content["state_dict"].items()}
    for number, state in enumerate(content["optimizer_states"]):
        for index, entry in state["state"].items():
            tensors |= {f"{number}.{index}.{key}": torch.as_tensor(value) for key, value in entry.items()}
    return content_hash(tensors, [str(content["global_step"]).encode()])


def _content(run: RunFolder) -> dict[str, Any]:
    try:
        return read(run.checkpoints / LAST, identity=run.identity, seed=run.seed)
    except FileNotFoundError:
        raise UserError(f"{run.name} has no {LAST} to go on from") from None


def _check_parent(run: RunFolder) -> None:
    """Raise UserError if a longer budget would not take the run further."""
    reason = run.summary().get("stopped")
    if reason:
        raise UserError(f"{run.name} ended before its budget ({reason}), which a longer one does not change")
    for name, node in (run.config.get("callbacks") or {}).items():
        if node and lightning.is_lightning("callbacks", locate(str(node["_target_"]))):
            raise UserError(
                f"callbacks.{name} has ended with {run.name}, as Lightning's callbacks do, and cannot go on; start a "
                f"new run with init.from={run.path}"
            )


def _end(config: Node, run: RunFolder, done: int) -> str:
    """Return the end of a config's budget as text, by the steps of its parent: " of 400", or " of 60 seconds".

    Raises UserError where the parent, which has done so many steps, has used the budget up.
    """
    summary = run.summary()
    steps_per_epoch = round(summary["steps"] / summary["epochs"]) if summary.get("epochs") else 1
    plan = instantiate(config["trainer"], allow_of(config))
    step_flops = None
    if plan.max_flops is not None:
        step_flops = round(costs(summary)["flops_per_sample"] * summary["samples"] / summary["steps"])
    try:
        limits = plan.step_limits(steps_per_epoch, step_flops)
    except (ValueError, TypeError) as error:
        raise UserError(f"trainer: {quoted(error)}") from error
    if limits and min(limits.values()) <= done:
        options = ", ".join(f"{name}={getattr(plan, name)}" for name in limits)
        raise UserError(
            f"{run.name} has done {done} steps, and this budget ends after {min(limits.values())} ({options}, "
            "whichever is shorter); ask for more"
        )
    if plan.max_seconds is not None and plan.max_seconds <= summary["seconds"]:
        raise UserError(
            f"{run.name} has trained for {summary['seconds']:g} s, and this budget ends after "
            f"trainer.max_seconds={plan.max_seconds:g}; ask for more"
        )
    if limits:
        return f" of {min(limits.values())}"
    return f" for {plan.max_seconds - summary['seconds']:.0f} s"
