"""Settings that the planner fixes in every cell: precision, the seed of the split, how a logger names the run."""

from __future__ import annotations

from blockyard.config.tree import Node, with_each_logger
from blockyard.sweep.spec.override_text import key_of


def precision(config: Node, overrides: list[str]) -> str | int | None:
    """Return the precision that replaces `auto`, so that every cell has the same; None to leave the config unchanged.

    overrides: of the cell; an explicit trainer.precision=auto there stays
    """
    trainer = config.get("trainer")
    if not isinstance(trainer, dict) or trainer.get("precision") != "auto":
        return None
    if any(key_of(override) == "trainer.precision" for override in overrides):
        return None
    if trainer.get("accelerator") in ("cpu", "gpu"):
        gpu = trainer["accelerator"] == "gpu"
    else:
        import torch

        gpu = torch.cuda.is_available() and torch.cuda.device_count() > 0
    return "bf16-mixed" if gpu else 32


def precision_notes(values: set[str | int]) -> list[str]:
    """Return the notes about precisions that replaced `auto`."""
    notes = []
    for value in sorted(values, key=str):
        notes.append(
            f"trainer.precision is {value} in every cell (auto would follow each cell's device); "
            "base: [trainer.precision=...] sets another"
        )
    return notes


def with_sweep_labels(config: Node, sweep: str, arm: str) -> Node:
    """Return the config with the sweep as group of the logger, the arm as its job type, and both as tags.

    These keys are not part of a run's identity. Values that the user has set stay.
    """

    def label(logger: Node) -> Node:
        if "group" not in logger:
            return logger
        labelled = logger | {"group": logger["group"] or sweep}
        if logger.get("job_type", arm) in (None, "train"):
            labelled["job_type"] = arm
        if "tags" in logger:
            labelled["tags"] = list(dict.fromkeys([*(logger["tags"] or ()), sweep, arm]))
        return labelled

    return with_each_logger(config, label)


def with_split(config: Node, seed: int) -> Node:
    """Return the config with the cell's own seed for the split of the data, for `resplit` of a sweep file."""
    return config | {"data": {**config["data"], "split_seed": seed}}


def with_run_name(config: Node, name: str) -> Node:
    """Return the config with this run name in the logger, where the logger takes one and the user has set none."""

    def named(logger: Node) -> Node:
        if "name" in logger and not logger["name"]:
            return logger | {"name": name}
        return logger

    return with_each_logger(config, named)
