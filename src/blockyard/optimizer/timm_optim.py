"""Any optimizer of timm, by its name there, with weight decay on linear maps only.

Source: timm.optim.list_optimizers(with_description=True) names the paper of each
Reference: timm.optim.create_optimizer_v2
Equation: that of the optimizer
Cost: one to three numbers of state per parameter

    blockyard train optimizer=timm_optim optimizer.name=lion optimizer.lr=1e-4
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import nn

from blockyard.contracts import ChoiceOptions, Text, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._param_groups import GroupedOptimizer
from blockyard.optimizer.torch_optim import check_name, check_options, check_values, epsilon_of

# beginning of a name -> reason why it is refused
LEFT_OUT = {
    "bnb": "it needs the package bitsandbytes",
    "fused": "it needs the package apex",
    "adahessian": "it needs second derivatives, which a run does not compute",
    "kron": "it draws random numbers that a checkpoint does not hold, so a resumed run would differ",
}
MOMENTUM = 0.9
# name -> size of its updates; updates of lamb, lars and their kin grow with the weights
RULES: dict[str, UpdateRule] = {
    **dict.fromkeys(("adam", "adamw", "nadam", "nadamw", "radam", "adamax", "adan", "adanw", "adabelief"), "adam"),
    **dict.fromkeys(("adopt", "adoptw", "lion", "rmsprop", "adagrad"), "adam"),
    **dict.fromkeys(("sgd", "sgdw", "momentum"), "sgd"),
}


class TimmOptim(GroupedOptimizer):
    """An optimizer of timm.

    Options:
        name: as timm lists it, such as lamb, lion, adan, adopt, adabelief, madgrad, nadamw, lars or sgdw
        weight_decay: as the optimizer applies it, decoupled or in the gradient; on linear maps only
        options: further options of the class by name, such as {betas: [0.9, 0.99]}, held to its signature
    """

    @with_options_of(GroupedOptimizer, without=("decay_by", "cautious"))
    def __init__(
        self,
        *,
        name: Text = "lamb",
        options: dict[str, Any] = {},  # noqa: B006 - never changed; the default that a config shows
        **group_options: Any,
    ) -> None:
        super().__init__(**group_options)
        from timm.optim import get_optimizer_class, get_optimizer_info  # importing timm takes seconds

        for prefix, reason in LEFT_OUT.items():
            if name.startswith(prefix):
                raise ValueError(f"optimizer.name={name} is not taken: {reason}")
        check_name(name, names(), "timm.optim")
        factory: Any = get_optimizer_class(name, bind_defaults=True)
        kind = factory.func if isinstance(factory, partial) else factory
        self.options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        check_options(name, inspect.signature(kind).parameters, self.options)
        # timm's create_optimizer_v2 has this momentum by default, its classes have not.
        momentum = {"momentum": MOMENTUM} if get_optimizer_info(name).has_momentum else {}
        self.make = partial(factory, lr=self.lr, **momentum)
        check_values(name, self.make, self.options)
        self.rule = self.update_rule({"name": name})

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return the rule of the optimizer of this name; None if unknown, or if it depends on the size of weights."""
        return RULES.get(str(options.get("name", "lamb")))

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer over every trainable parameter of `model`."""
        groups = self.groups(model, rule=self.rule, eps=epsilon_of(self.rule, self.make, self.options))
        optimizer: torch.optim.Optimizer = self.make(groups, **self.options)
        return optimizer


def names() -> list[str]:
    """Return the optimizers of timm that need no further package and that a checkpoint holds whole."""
    from timm.optim import list_optimizers

    return [name for name in map(str, list_optimizers()) if not name.startswith(tuple(LEFT_OUT))]
