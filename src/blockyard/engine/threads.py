"""How many CPU threads a run takes.

A small model gains nothing from a second thread, because threads wait for each other at every operation. So
`trainer.threads=auto` counts the FLOPs of a batch in one process and takes one thread, plus one for every
`FLOPS_PER_THREAD` of them, up to what torch has. The count is a property of the config: the answer does not depend
on how busy the machine is. `benchmarks/threads.py` prints the measurements behind the number.
"""

from __future__ import annotations

import os
from typing import TypedDict

import torch

# On 2 cores a second thread costs 19 to 23 % below 0.04 GFLOPs, and saves 11 % at 0.3 and 26 % at 0.6.
FLOPS_PER_THREAD = 0.3e9


class ThreadCount(TypedDict):
    """A number of CPU threads, and the reason."""

    threads: int
    why: str


def thread_count(flops: int, *, processes: int = 1) -> ThreadCount:
    """CPU threads for a training batch of `flops` FLOPs, and the reason, as they are recorded in the run.

    torch's own number (the cores this process may use), divided among `processes`, is the upper limit.
    OMP_NUM_THREADS overrules the rule.
    """
    available = torch.get_num_threads()
    if os.environ.get("OMP_NUM_THREADS"):
        return {"threads": available, "why": f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}"}
    available = max(1, available // processes)
    threads = min(available, 1 + int(flops / FLOPS_PER_THREAD))
    why = f"{flops / 1e9:.3g} GFLOPs a batch, {FLOPS_PER_THREAD / 1e9:g} for each further thread, {available} available"
    return {"threads": threads, "why": why}
