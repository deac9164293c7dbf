"""Config -> checked parts -> model. The only file that knows all families.

The config is plain data, complete (every option of every node), and has passed `check`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from blockyard.config.schema import RESERVED, allowed, locate, options
from blockyard.contracts import (
    Architecture,
    Block,
    ChannelMixer,
    Context,
    DataModule,
    Head,
    Objective,
    OptimizerBuilder,
    Parts,
    Position,
    Schedule,
    Tokenizer,
    TokenMixer,
    TokenSpec,
)
from blockyard.weight_init import initialise

# What a family's members must be; `contract` adds what runs beside the model.
CONTRACTS: dict[str, type] = {
    "data": DataModule,
    "tokenizer": Tokenizer,
    "position": Position,
    "token_mixer": TokenMixer,
    "channel_mixer": ChannelMixer,
    "norm": nn.Module,
    "block": Block,
    "model": Architecture,
    "head": Head,
    "objective": Objective,
    "optimizer": OptimizerBuilder,
    "schedule": Schedule,
}
BESIDE = {  # by name: the engine is imported only where a config is checked
    "trainer": "blockyard.engine.trainer.TrainerPlan",
    "logger": "blockyard.engine.loggers.base.RunLogger",
    "callbacks": "blockyard.engine.callbacks.base.RunCallback",
}
LATE = ("position", "token_mixer", "channel_mixer", "norm", "block", "head")  # built from a Context


def contract(key: str) -> type:
    """What the class of the node at a dotted key must be; inside a component that is a module."""
    family = key.partition(".")[0]
    if family in BESIDE:
        return locate(BESIDE[family])
    return CONTRACTS.get(key, nn.Module)


def settings(node: dict[str, Any], allow: list[str]) -> dict[str, Any]:
    """A node's options as its constructor wants them; nodes inside it are instantiated."""
    known = options(locate(node["_target_"]))
    return {
        name: _made(value, allow) if _holds_nodes(value) else known[name].convert(value)
        for name, value in node.items()
        if name not in RESERVED
    }


def instantiate(node: dict[str, Any], allow: list[str]) -> Any:
    """The object, or for a `_partial_` node the factory, that a config node describes."""
    target = node["_target_"]
    if not allowed(target, allow):
        raise ValueError(f"{target} is of no allowed package; name your own with allow=[package]")
    factory = partial(locate(target), **settings(node, allow))
    return factory if node.get("_partial_") else factory()


class Components:
    """Everything a config describes, no weight yet.

    Plans (`data`, `tokenizer`, ...) are built here, cheaply and without I/O; modules are factories
    that wait for a Context. A tokenizer that learns its vocabulary is fitted by `data.load`; what is
    asked of the plan afterwards knows the true vocabulary.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.data: DataModule = self.node("data")
        self.tokenizer: Tokenizer = self.node("tokenizer")
        self.objective: Objective = self.node("objective")
        self.architecture: Architecture = self.node("model")

    @cached_property
    def optimizer(self) -> OptimizerBuilder:
        """How parameters are updated."""
        return self.node("optimizer")

    @cached_property
    def schedule(self) -> Schedule:
        """The factor on the learning rate."""
        return self.node("schedule")

    def node(self, family: str) -> Any:
        """The member of a family; of a family that is a set of members (callbacks), all by name."""
        node, allow = self.config[family], list(self.config.get("allow") or [])
        if _is_node(node):
            return instantiate(node, allow)
        return {name: instantiate(part, allow) for name, part in (node or {}).items() if part is not None}

    def tokens(self) -> TokenSpec:
        """What the tokenizer makes of the data, and the objective of that."""
        return self.objective.tokens(self.tokenizer.spec(self.data.spec))

    def context(self) -> Context:
        """Where modules are built."""
        tokens = self.tokens()
        return self.architecture.context(self.data.spec, tokens, self.objective.outputs(self.data.spec, tokens))

    @property
    def parts(self) -> Parts:
        """The factories of the model."""
        late: dict[str, Callable[..., Any]] = {family: self.node(family) for family in LATE}
        return Parts(embedder=self.tokenizer.embedder, **late)

    def model(self, seed: int) -> nn.Module:
        """The model on the CPU; its weights depend on (seed, path in the model) alone."""
        model = self.architecture.build(self.context(), self.parts)
        initialise(model, seed)
        return model

    def meta_model(self) -> nn.Module:
        """The model without storage, for counting."""
        with torch.device("meta"):
            return self.architecture.build(self.context(), self.parts)


def _holds_nodes(value: Any) -> bool:
    """Whether a value is a node, or nodes by name."""
    return _is_node(value) or (isinstance(value, dict) and bool(value) and all(map(_is_node, value.values())))


def _made(value: dict[str, Any], allow: list[str]) -> Any:
    if _is_node(value):
        return instantiate(value, allow)
    return {name: instantiate(node, allow) for name, node in value.items()}


def _is_node(value: Any) -> bool:
    return isinstance(value, dict) and "_target_" in value
