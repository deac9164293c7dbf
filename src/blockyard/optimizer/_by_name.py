"""What optimizers of libraries, named in a config, have in common: groups, options against the signature, refusals."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from blockyard.errors import did_you_mean, fold
from blockyard.optimizer._param_groups import Rates, decay_groups, split_by_decay

# Options of ours, and what a run decides itself.
OWN = {"params": "is the model", "lr": "is optimizer.lr", "weight_decay": "is optimizer.weight_decay"}
REFUSED = {"maximize": "would maximise the loss", "differentiable": "is for steps that are part of the graph"}


def check_options(name: str, signature: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    """Raises ValueError for an option that the optimizer does not have, or that is set elsewhere."""
    free = [each for each in signature if each not in OWN and each not in REFUSED]
    for key in options:
        if key in OWN or key in REFUSED:
            raise ValueError(f"optimizer.options.{key} {(OWN | REFUSED)[key]}; leave it out")
        if key not in free:
            hint = did_you_mean(key, free)
            raise ValueError(f"optimizer.options.{key}: {name} has no such option{hint}; it has {fold(free)}")


def check_values(name: str, make: Callable[..., torch.optim.Optimizer], options: Mapping[str, Any]) -> None:
    """Raises ValueError for values that the optimizer's own constructor refuses; it is made over one parameter."""
    try:
        make([nn.Parameter(torch.zeros(2, 2))], **options)
    except (ValueError, TypeError, AssertionError, RuntimeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"optimizer.name={name} refuses its options: {reason}") from error


def check_name(name: str, names: Sequence[str], library: str) -> None:
    """Raises ValueError for a name that the library does not have."""
    if name not in names:
        hint = did_you_mean(name, names)
        raise ValueError(f"optimizer.name={name}: {library} has no such optimizer{hint}; it has {', '.join(names)}")


def groups(model: nn.Module, weight_decay: float, rates: Rates | None) -> list[dict[str, Any]]:
    """The parameter groups of the model: weight decay on linear maps only. rates: of `layer_rates`."""
    return decay_groups(*split_by_decay(model), weight_decay, rates)
