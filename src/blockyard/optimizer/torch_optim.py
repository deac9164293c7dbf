"""Any optimizer of torch.optim, by the name of its class, with weight decay on linear maps only.

Source: the documentation of torch.optim names the paper of each
Reference: torch.optim
Equation: that of the optimizer
Cost: none to two numbers of state per parameter

    blockyard train optimizer=torch_optim optimizer.name=NAdam optimizer.options.betas=[0.9,0.99]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from blockyard.contracts import ChoiceOptions, NonNegative, Text, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.errors import did_you_mean, first_line, fold
from blockyard.optimizer._param_groups import GroupedOptimizer

# Options that a config sets elsewhere, and options that a run decides itself.
OWN = {"params": "is the model", "lr": "is optimizer.lr", "weight_decay": "is optimizer.weight_decay"}
REFUSED = {"maximize": "would maximise the loss", "differentiable": "is for steps that are part of the graph"}
# name -> reason why it is refused
LEFT_OUT = {
    "LBFGS": "it evaluates the loss several times a step; a step of a run has one batch",
    "SparseAdam": "it takes sparse gradients, and those of a model here are dense",
    "Muon": "it takes matrices only; optimizer=muon has AdamW for the other parameters",
}
# name -> size of its updates; updates of Adafactor grow with the weights
RULES: dict[str, UpdateRule] = {
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad"), "adam"),
    "SGD": "sgd",
}


def check_options(name: str, signature: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option that the optimizer does not have, or that is set elsewhere."""
    free = [option for option in signature if option not in OWN and option not in REFUSED]
    for key in options:
        if key in OWN or key in REFUSED:
            raise ValueError(f"optimizer.options.{key} {(OWN | REFUSED)[key]}; leave it out")
        if key not in free:
            hint = did_you_mean(key, free)
            raise ValueError(f"optimizer.options.{key}: {name} has no such option{hint}; it has {fold(free)}")


def check_values(name: str, make: Callable[..., torch.optim.Optimizer], options: Mapping[str, Any]) -> None:
    """Raise ValueError for values that the optimizer's own constructor refuses, over a single parameter."""
    try:
        make([nn.Parameter(torch.zeros(2, 2))], **options)
    except (ValueError, TypeError, AssertionError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"optimizer.name={name} refuses its options: {first_line(error)}") from error


def check_name(name: str, names: Sequence[str], library: str) -> None:
    """Raise ValueError for a name that the library does not have."""
    if name not in names:
        hint = did_you_mean(name, names)
        raise ValueError(f"optimizer.name={name}: {library} has no such optimizer{hint}; it has {', '.join(names)}")


class TorchOptim(GroupedOptimizer):
    """An optimizer of torch.optim.

    Options:
        name: name of a class, such as Adam, NAdam, RAdam, RMSprop, Adagrad, Adadelta, Adamax, Adafactor, Rprop or ASGD
        weight_decay: as the optimizer applies it, decoupled or in the gradient; on linear maps only
        options: further options of the class by name, such as {betas: [0.9, 0.99]}, held to its signature
    """

    @with_options_of(GroupedOptimizer, without=("decay_by", "cautious"))
    def __init__(
        self,
        *,
        name: Text = "Adam",
        weight_decay: NonNegative = 0.0,
        options: dict[str, Any] = {},  # noqa: B006 - never changed; the default that a config shows
        **group_options: Any,
    ) -> None:
        super().__init__(weight_decay=weight_decay, **group_options)
        if name in LEFT_OUT:
            raise ValueError(f"optimizer.name={name} is not taken: {LEFT_OUT[name]}")
        check_name(name, names(), "torch.optim")
        self.kind: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, name)
        signature = inspect.signature(self.kind).parameters
        self.options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        check_options(name, signature, self.options)
        if weight_decay and "weight_decay" not in signature:
            raise ValueError(f"optimizer.weight_decay={weight_decay}: {name} has none; use optimizer.weight_decay=0")
        check_values(name, partial(self.kind, lr=self.lr), self.options)

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return the rule of the optimizer of this name; None if its updates depend on the size of weights."""
        return RULES.get(str(options.get("name", "Adam")))

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer over every trainable parameter of `model`."""
        rule = RULES.get(self.kind.__name__)
        of_model = self.groups(model, rule=rule, eps=epsilon_of(rule, self.kind, self.options))
        if "weight_decay" not in inspect.signature(self.kind).parameters:
            for group in of_model:
                del group["weight_decay"]
        return self.kind(of_model, lr=self.lr, **self.options)


def epsilon_of(
    rule: UpdateRule | None, kind: Callable[..., torch.optim.Optimizer], options: Mapping[str, Any]
) -> float | None:
    """Return the epsilon of an optimizer of the rule adam, from its options or signature; None without one."""
    if rule != "adam":
        return None
    parameter = inspect.signature(kind).parameters.get("eps")
    value = options.get("eps", None if parameter is None else parameter.default)
    if isinstance(value, int | float):
        return float(value)
    return None


def names() -> list[str]:
    """Return the optimizers of torch.optim that take a model's parameters."""
    optimizers = []
    for name, kind in vars(torch.optim).items():
        is_optimizer = inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
        if is_optimizer and kind is not torch.optim.Optimizer and name not in LEFT_OUT:
            optimizers.append(name)
    return sorted(optimizers)
