"""What the planner settles for all cells, so that arms differ in nothing but what the file says."""

from __future__ import annotations

from typing import Any

from blockyard.sweep.spec import override_text


def precision(config: dict[str, Any], said: list[str]) -> str | int | None:
    """The precision to write in place of `auto`, which would be timed anew in each cell; None to leave it.

    said: the words of the cell; who writes trainer.precision=auto there is taken at their word
    """
    trainer = config.get("trainer")
    if not isinstance(trainer, dict) or trainer.get("precision") != "auto":
        return None
    if any(override_text.key_of(word) == "trainer.precision" for word in said):
        return None
    return "bf16-mixed" if _device(trainer) == "cuda" else 32


def note(pinned: set[str | int]) -> list[str]:
    """What to tell the user of it."""
    return [
        f"trainer.precision is {value} in every cell (auto would be timed anew in each); base: [trainer.precision=...] "
        "takes another"
        for value in sorted(pinned, key=str)
    ]


def named(config: dict[str, Any], sweep: str, arm: str) -> dict[str, Any]:
    """The config with its logger told the sweep and the arm: group, job type, tags.

    They are no part of a run's identity; what the user has set stays.
    """
    logger = config.get("logger")
    if not isinstance(logger, dict) or "group" not in logger:
        return config
    fresh = dict(logger)
    fresh["group"] = logger["group"] or sweep
    if logger.get("job_type", arm) in (None, "train"):
        fresh["job_type"] = arm
    if "tags" in logger:
        fresh["tags"] = list(dict.fromkeys([*(logger["tags"] or ()), sweep, arm]))
    return config | {"logger": fresh}


def called(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The config with its logger told what the run is called, where it takes a name and the user gave none."""
    logger = config.get("logger")
    if not isinstance(logger, dict) or "name" not in logger or logger["name"]:
        return config
    return config | {"logger": logger | {"name": name}}


def _device(trainer: dict[str, Any]) -> str:
    if trainer.get("accelerator") in ("cpu", "gpu"):
        return "cpu" if trainer["accelerator"] == "cpu" else "cuda"
    import torch

    return "cuda" if torch.cuda.is_available() and torch.cuda.device_count() else "cpu"
