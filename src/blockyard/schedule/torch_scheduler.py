"""Any scheduler of torch.optim.lr_scheduler that follows from the step alone, by the name of its class.

Source: the documentation of torch.optim.lr_scheduler names the paper of each
Reference: torch.optim.lr_scheduler
Equation: the rate that the scheduler gives a parameter of rate 1 after as many steps

    blockyard train schedule=torch_scheduler schedule.name=StepLR schedule.options.step_size=100
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from blockyard.contracts import Text
from blockyard.contracts.inherited_options import with_options_of
from blockyard.errors import did_you_mean, first_line, fold
from blockyard.schedule._warmup import WarmedUp

_LENGTHS = {"CosineAnnealingLR": "T_max", "PolynomialLR": "total_iters"}  # until the run ends, if not given
_OWN = ("self", "optimizer", "last_epoch", "verbose")  # arguments that the schedule sets
_LEFT_OUT = {  # name -> reason why it is refused
    "ReduceLROnPlateau": "it follows a metric, and a schedule of a run follows from its step",
    "LambdaLR": "it takes a function, which no config can hold",
    "MultiplicativeLR": "it takes a function, which no config can hold",
    "SequentialLR": "it takes other schedulers; schedule.warmup puts a warm-up before any of them",
    "ChainedScheduler": "it takes other schedulers",
    "OneCycleLR": "it also changes the momentum; schedule=cosine with schedule.warmup has its rate",
    "CyclicLR": "it also changes the momentum",
}


class TorchScheduler(WarmedUp):
    """A scheduler of torch.optim.lr_scheduler, after the warm-up. It counts steps, where torch's examples count epochs.

    Options:
        name: name of a class, such as StepLR, MultiStepLR, ExponentialLR, PolynomialLR, ConstantLR or CosineAnnealingLR
        options: arguments of the class by name, such as {step_size: 100}; a rate among them, such as eta_min, is a
            factor on optimizer.lr. CosineAnnealingLR and PolynomialLR end with the run where no length is given
    """

    @with_options_of(WarmedUp)
    def __init__(
        self,
        *,
        name: Text = "CosineAnnealingLR",
        options: dict[str, Any] = {},  # noqa: B006 - never changed; the default that a config shows
        **warmup: Any,
    ) -> None:
        super().__init__(**warmup)
        if name in _LEFT_OUT:
            raise ValueError(f"schedule.name={name} is not taken: {_LEFT_OUT[name]}")
        names = scheduler_names()
        if name not in names:
            hint = did_you_mean(name, names)
            raise ValueError(
                f"schedule.name={name}: torch.optim.lr_scheduler has no such scheduler{hint}; it has {', '.join(names)}"
            )
        self.kind: Callable[..., lr_scheduler.LRScheduler] = getattr(lr_scheduler, name)
        self.options = dict(options)
        self._rates: dict[int, _Rates] = {}  # by the steps after the warm-up
        arguments = [key for key in inspect.signature(self.kind).parameters if key not in _OWN]
        for key in options:
            if key not in arguments:
                hint = did_you_mean(key, arguments)
                raise ValueError(
                    f"schedule.options.{key}: {name} has no such argument{hint}; it has {fold(arguments) or 'none'}"
                )
        try:
            _Rates(self.kind, self._arguments(1))
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"schedule.name={name} refuses its options: {first_line(error)}") from error

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Return the factor at `step`, of `total`, after `warmup` steps of warm-up."""
        length = max(total - warmup, 1)
        if length not in self._rates:
            self._rates[length] = _Rates(self.kind, self._arguments(length))
        return self._rates[length].after(step - warmup)

    def _arguments(self, length: int) -> dict[str, Any]:
        """Return the arguments of the scheduler in a run with so many steps after the warm-up."""
        name = _LENGTHS.get(self.kind.__name__)
        if name is None:
            return self.options
        return {name: length, **self.options}


class _Rates:
    """The rates of a scheduler over an optimizer of rate 1 that trains nothing, computed step by step, once."""

    def __init__(self, kind: Callable[..., lr_scheduler.LRScheduler], arguments: Mapping[str, Any]) -> None:
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=1.0)
        self.scheduler = kind(self.optimizer, **arguments)
        self.rates = [float(self.optimizer.param_groups[0]["lr"])]

    def after(self, steps: int) -> float:
        """Return the rate after so many steps."""
        while len(self.rates) <= steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch expects a step of the optimizer before
                self.scheduler.step()
            self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
        return self.rates[steps]


def scheduler_names() -> list[str]:
    """Return the schedulers of torch that follow from the step alone."""
    names = []
    for name, kind in vars(lr_scheduler).items():
        is_scheduler = inspect.isclass(kind) and issubclass(kind, lr_scheduler.LRScheduler)
        if is_scheduler and not name.startswith("_") and name != "LRScheduler" and name not in _LEFT_OUT:
            names.append(name)
    return sorted(names)
