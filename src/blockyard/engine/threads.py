"""How many CPU threads a step is worth.

A small model gains little from a second thread, and loses much where another process wants the same
core: threads wait for each other at every operation. So `auto` times one thread against torch's own
choice, and takes more than one only where they clearly pay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from blockyard.contracts import Batch, Objective
from blockyard.engine.timing import choose


def worth_having(model: nn.Module, objective: Objective, batch: Batch) -> dict[str, Any]:
    """The number of threads that trains `model` fastest: threads, and where timed seconds of each, cached.

    OMP_NUM_THREADS, where it is set, has decided already.
    """
    most = torch.get_num_threads()
    if most == 1 or os.environ.get("OMP_NUM_THREADS"):
        return {"threads": most}
    ways = {str(count): partial(_with, count) for count in (1, most)}
    found = choose("threads", ways, model, objective, batch)
    return found | {"threads": int(found["threads"])}


@contextmanager
def _with(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
