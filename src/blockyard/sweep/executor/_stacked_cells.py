"""Which cells can share a process, where their weights are stacked and one training step serves all of them."""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Callable, Iterator

from blockyard.config.size_matching import ModelSizes
from blockyard.config.tree import Node
from blockyard.sweep.cells import Task

# What cells of one process may differ in: first weights, order of data, optimizer, what is logged. The first step
# compares each run with one that is alone, so that a difference in what a forward pass reads is not trained over.
_FREE = (
    *("seed", "optimizer", "schedule", "callbacks", "logger", "name", "tags", "force"),
    *("data.split_seed", "model.init_std", "model.zero_branches", "head.zero"),
)
# Values of options of the trainer other than which a run needs its process for itself.
_TRAINER = {
    "devices": (1,),
    "num_nodes": (1,),
    "strategy": ("auto",),
    "compile": (False,),
    "checkpoint_blocks": (False,),
    "num_workers": (0,),
    "attention": ("auto",),
    "precision": ("auto", "32", "bf16-mixed"),
    "profile": (False,),
}
_DRAWN = ("dropout", "drop_path")  # options that are rates of what a forward pass draws

AUTO = 8  # cells of one process, where that is left open
# FLOPs of a training step from which it saves little or nothing: by docs/performance.md on a CPU, where a step of 6e9
# took as long together, and on a GPU by what plain torch takes, which was faster at all sizes up to that.
_LARGE_STEP = {"cpu": 1e9, "gpu": 1e10}
_PASSES = 3  # forward, and backward for activations and for weights


def large_step(config: Node, sizes: ModelSizes, *, gpu: bool) -> str | None:
    """Why the training steps of a run with this config are not worth taking together, or None."""
    flops = sizes.measure(config, "flops")
    if flops is None:
        return f"the FLOPs of its model are not known: {sizes.failure(config, 'flops')}"
    step = float(_PASSES * flops * (config.get("data") or {}).get("batch_size", 1))
    most = _LARGE_STEP["gpu" if gpu else "cpu"]
    if step <= most:
        return None
    return f"a step of {step:.1e} FLOPs is too large to gain: cells_per_process=auto takes those up to {most:.0e}"


def obstacle(config: Node) -> str | None:
    """Why a run with this config takes no step together with others, or None."""
    trainer = config.get("trainer") or {}
    for option, values in _TRAINER.items():
        if option in trainer and str(trainer[option]) not in map(str, values):
            return f"trainer.{option}={trainer[option]} is for a run in a process of its own"
    for key, rate in _rates(config, ()):
        if rate:
            return f"{key}={rate} draws random numbers in each forward pass"
    if (config.get("objective") or {}).get("teacher") is not None:
        return "objective.teacher is called at each step"
    return None


def _rates(node: object, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """The rates in a config, by key."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in _DRAWN:
                yield ".".join((*path, name)), value
            else:
                yield from _rates(value, (*path, str(name)))


def together(
    queue: deque[Task], most: int, also: Callable[[Node], str | None] = lambda _: None
) -> tuple[list[Task], str | None]:
    """Take the first task of a queue and all that can share its process, `most` tasks in all.

    Returns them, and why the first one is alone where it is and `most` is greater than one.
    also: says of a config why it is not to share a process, or None
    """
    first = queue.popleft()
    if most == 1:
        return [first], None
    reason = obstacle(first.config) or also(first.config)
    if reason is not None:
        return [first], reason
    form = _form(first)
    chosen = [first, *[task for task in queue if _form(task) == form][: most - 1]]
    for task in chosen[1:]:
        queue.remove(task)
    return chosen, None if len(chosen) > 1 else "no other cell of its form was waiting"


def _form(task: Task) -> str:
    """What cells of one process have in common, as text."""
    config = copy.deepcopy(task.config)
    for key in _FREE:
        *parents, name = key.split(".")
        node = config
        for parent in parents:
            node = node.get(parent) or {}
        node.pop(name, None)
    return json.dumps(config, sort_keys=True, default=str)
