"""Any optimizer of the package pytorch_optimizer, by its name there, with weight decay on linear maps only.

Source: the documentation of pytorch_optimizer names the paper of each
Reference: pytorch_optimizer.load_optimizer, get_supported_optimizers
Equation: that of the optimizer
Cost: one to four numbers of state per parameter

    blockyard train optimizer=pytorch_optimizer optimizer.name=ademamix optimizer.lr=1e-3
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from blockyard.contracts import ChoiceOptions, NonNegative, Text, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._param_groups import GroupedOptimizer
from blockyard.optimizer.torch_optim import check_name, check_options, check_values, epsilon_of

MATRICES = "it takes matrices only; optimizer=muon has AdamW for the other parameters"
CURVATURE = "it needs second derivatives, which a run does not compute"
MODEL = "it is made of a whole model and takes the gradients itself"
CLOSURE = "it evaluates the loss in its step; a step of a run has one batch"
DRAWS = "it draws random numbers that a checkpoint does not hold, so a resumed run would differ"
STATE = "its state holds objects that a checkpoint without pickles cannot hold"
AVERAGE = "its average needs a signal before each evaluation; optimizer=schedule_free gives it"
# name -> reason why it is refused
LEFT_OUT = {
    **dict.fromkeys(("adago", "adamuon", "distributedmuon", "muon", "muonclip", "normuon", "spectralsphere"), MATRICES),
    **dict.fromkeys(("adahessian", "sophiah"), CURVATURE),
    **dict.fromkeys(("adalomo", "adammini", "lomo"), MODEL),
    **dict.fromkeys(("alig", "bsam", "lbfgs"), CLOSURE),
    **dict.fromkeys(("dash", "gravity", "kron", "magma"), DRAWS),
    **dict.fromkeys(("adashift", "conda", "scalableshampoo", "scion", "scionlight"), STATE),
    **dict.fromkeys(("schedulefreeadamw", "schedulefreeradam", "schedulefreesgd"), AVERAGE),
    "lorarite": "it takes pairs of the factors of LoRA only",
    "demo": "it sends its own messages between processes",
    "ranger21": "it has a schedule of its own; use optimizer=pytorch_optimizer optimizer.name=ranger",
}
# name -> size of its updates
RULES: dict[str, UpdateRule] = {
    **dict.fromkeys(("adam", "adamw", "nadam", "radam", "adamax", "adan", "adabelief", "adopt", "lion"), "adam"),
    **dict.fromkeys(("ademamix", "rmsprop"), "adam"),
    **dict.fromkeys(("sgd", "sgdw"), "sgd"),
}


class PytorchOptimizer(GroupedOptimizer):
    """An optimizer of the package pytorch_optimizer.

    Options:
        name: as the package lists it, such as lion, ademamix, adan, laprop, mars, prodigy, shampoo or stableadamw
        weight_decay: as the optimizer applies it, decoupled or in the gradient; on linear maps only
        options: further options of the class by name, such as {betas: [0.9, 0.99]}, held to its signature
    """

    shards = False  # many of them use norms, ranks or factors of a whole matrix

    @with_options_of(GroupedOptimizer, without=("decay_by", "cautious"))
    def __init__(
        self,
        *,
        name: Text = "ademamix",
        weight_decay: NonNegative = 0.0,
        options: dict[str, Any] = {},  # noqa: B006 - never changed; the default that a config shows
        **group_options: Any,
    ) -> None:
        super().__init__(weight_decay=weight_decay, **group_options)
        if importlib.util.find_spec("pytorch_optimizer") is None:
            raise ValueError(
                "optimizer=pytorch_optimizer needs the package of that name: pip install 'blockyard[pytorch_optimizer]'"
            )
        if name in LEFT_OUT:
            raise ValueError(f"optimizer.name={name} is not taken: {LEFT_OUT[name]}")
        check_name(name, names(), "pytorch_optimizer")
        from pytorch_optimizer import load_optimizer

        self.name = name
        kind: Any = load_optimizer(name)  # whose base has no `lr`
        self.kind: Callable[..., torch.optim.Optimizer] = kind
        signature = dict(inspect.signature(self.kind).parameters)
        signature.pop("kwargs", None)
        self.has_decay = "weight_decay" in signature
        self.options = dict(options)
        for key, value in options.items():
            if isinstance(value, list):  # a config has no tuples
                self.options[key] = tuple(value)
        check_options(name, signature, self.options)
        if weight_decay and not self.has_decay:
            raise ValueError(f"optimizer.weight_decay={weight_decay}: {name} has none; use optimizer.weight_decay=0")
        check_values(name, partial(self.kind, lr=self.lr), self.options)

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return the rule of the optimizer of this name; None if its updates depend on the size of weights."""
        return RULES.get(str(options.get("name", "ademamix")))

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer over every trainable parameter of `model`."""
        rule = RULES.get(self.name)
        groups = self.groups(model, rule=rule, eps=epsilon_of(rule, self.kind, self.options))
        if not self.has_decay:
            for group in groups:
                del group["weight_decay"]
        return self.kind(groups, lr=self.lr, **self.options)


def names() -> list[str]:
    """Return the optimizers of the package that need no further one and that a checkpoint holds whole."""
    from pytorch_optimizer import get_supported_optimizers

    further = ("bnb", "q_galore", "torchao")
    return [name for name in get_supported_optimizers() if name not in LEFT_OUT and not name.startswith(further)]
