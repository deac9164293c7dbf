"""Random generators for loggers: a logger that seeds or draws leaves the generators of the run as they are.

A logger works in a thread beside the training step, so its seeds cannot be undone afterwards: the step may have drawn
from them already. Instead, the functions of `random`, `numpy.random` and `torch` that change a global generator turn to
another one in the threads of loggers. Not covered are draws by torch's own operations, such as `torch.rand`, names that
were imported before (`from random import random`), and threads that a library starts itself.

A logger may come from any package, so that no release of a library makes this unnecessary. `random._inst` and
`numpy.random.mtrand._rand` are private names of Python 3.11 and NumPy 2.4 (read in November 2026).
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_CUDA = ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all")
_APART: set[int] = set()  # threads that run a logger's code now
os.register_at_fork(after_in_child=_APART.clear)


@contextmanager
def own_generators() -> Iterator[None]:
    """In this thread, global random functions use generators of the loggers."""
    _install()
    thread = threading.get_ident()
    nested = thread in _APART
    _APART.add(thread)
    try:
        yield
    finally:
        if not nested:
            _APART.discard(thread)


@functools.cache
def _install() -> None:
    """Replace the functions, once in a process."""
    import random

    import numpy as np
    import torch

    python, numpy, generator = random.Random(), np.random.RandomState(), torch.Generator()
    # The functions of `random` and of `numpy.random` are bound methods of one hidden instance each.
    for module, shared, own in ((random, random._inst, python), (np.random, np.random.mtrand._rand, numpy)):
        for name, value in list(vars(module).items()):
            if getattr(value, "__self__", None) is shared or name == "seed":
                _divert(module, name, getattr(own, name))
    for module in (torch, torch.random):
        _divert(module, "manual_seed", generator.manual_seed)
        _divert(module, "seed", generator.seed)
        _divert(module, "set_rng_state", generator.set_state)
    for module in (torch.cuda, torch.cuda.random):
        for name in _CUDA:
            _divert(module, name, _nothing)


def _divert(module: ModuleType, name: str, own: Callable[..., Any]) -> None:
    """Have a function of a module call `own` in the threads of loggers, and the function itself in all others."""
    shared = getattr(module, name)

    @functools.wraps(shared)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return (own if threading.get_ident() in _APART else shared)(*arguments, **keywords)

    call.__module__, call.__qualname__ = module.__name__, name  # so that it can be pickled by its name
    setattr(module, name, call)


def _nothing(*arguments: Any, **keywords: Any) -> None:
    """Do nothing, where a logger would seed a GPU."""
