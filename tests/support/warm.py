"""Imported by the server that commands are forked from: one tiny run, so that no fork has to be the first.

What PyTorch, Lightning and the composition of a config do once in a process is near half of a tiny run's time: 0.5 s
of CPU for the first run of a process, 0.3 s for that of a fork of one that has trained. Without a GPU autograd starts
no thread, so such a process may be forked.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

from tests.support.computed_once import compute_once
from tests.support.engine_runs import run
from tests.support.isolation import leave_unsynced


def warm_up() -> None:
    """Train once; leave the random generators, and what is warned of once, as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads = torch.get_num_threads()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        run(Path(folder))
    torch.set_num_threads(threads)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


compute_once()
leave_unsynced()
if not torch.cuda.is_available():
    warm_up()
