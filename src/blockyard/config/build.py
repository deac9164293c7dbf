"""Builds the components of a config, and the model. The only module that imports all families.

The config is plain data, complete (every option of every node), and has passed `check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from blockyard.config.instantiate import instantiate
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import allow_of
from blockyard.contracts import (
    PLAIN,
    Architecture,
    Block,
    ChannelMixer,
    Context,
    DataModule,
    DataSpec,
    Head,
    Layers,
    Model,
    Objective,
    OptimizerBuilder,
    Parametrization,
    Parts,
    Position,
    Residual,
    Schedule,
    Splits,
    Tokenizer,
    TokenMixer,
    TokenSpec,
)
from blockyard.errors import UserError, unreadable
from blockyard.ops.meta import without_compiler
from blockyard.weight_init import initialise

# The class that a family's choices must derive from.
CONTRACTS: dict[str, type] = {
    "data": DataModule,
    "tokenizer": Tokenizer,
    "position": Position,
    "token_mixer": TokenMixer,
    "channel_mixer": ChannelMixer,
    "norm": nn.Module,
    "block": Block,
    "residual": Residual,
    "layers": Layers,
    "model": Architecture,
    "head": Head,
    "objective": Objective,
    "parametrization": Parametrization,
    "optimizer": OptimizerBuilder,
    "schedule": Schedule,
}
# The same for the parts of the source, which a config has only where they differ from those of the sequence.
SOURCE_CONTRACTS: dict[str, type] = {"source_tokenizer": Tokenizer, "source_position": Position}
# The same for what is used alongside the model. By name: the engine is imported only where a config needs it.
RUNTIME_CONTRACTS = {
    "init": "blockyard.weights.init.Init",
    "trainer": "blockyard.engine.trainer.TrainerPlan",
    "logger": "blockyard.engine.loggers.base.RunLogger",
    "callbacks": "blockyard.engine.callbacks.base.RunCallback",
}
# The class behind `objective.teacher`, a name where the others are nodes: by name too, as it loads runs.
TEACHER = "blockyard.weights.teacher.Teacher"
# Keys that a config has only where they say something.
OPTIONAL = (*SOURCE_CONTRACTS, "residual", "layers", "parametrization", "init")
# Built from a Context.
LATE = ("position", "token_mixer", "channel_mixer", "norm", "block", "residual", "head")
LATE_KEYS = (*LATE, "source_position")


class Components:
    """The built parts of a config, without weights.

    Plans (`data`, `tokenizer`, ...) are built immediately, cheaply and without I/O; modules are factories that wait for
    a Context. A tokenizer that learns its vocabulary is fitted by `data.load`; `tokens` and `context` give the true
    vocabulary from then on.

    inner: as in `instantiate`
    """

    def __init__(self, config: Node, inner: torch.device | None = None) -> None:
        self.config, self.inner = config, inner
        self.data: DataModule = self.node("data")
        self.tokenizer: Tokenizer = self.node("tokenizer")
        # The one of the source: the same object where the source is read like the sequence.
        self.source_tokenizer: Tokenizer = self.node("source_tokenizer") or self.tokenizer
        self.tokenizer.run_seed = self.source_tokenizer.run_seed = int(config.get("seed") or 0)
        self.objective: Objective = self.node("objective")
        self.architecture: Architecture = self.node("model")
        self.objective.causal = self.architecture.causal
        self.parametrization: Parametrization = self.node("parametrization") or PLAIN

    @cached_property
    def optimizer(self) -> OptimizerBuilder:
        """Builds the optimizer of a model."""
        return self.node("optimizer")

    @cached_property
    def init(self) -> Any:
        """The weights that the run starts from and the parts that it trains, a `weights.init.Init`; None by default."""
        return self.node("init")

    @cached_property
    def schedule(self) -> Schedule:
        """Gives the factor on the learning rate at each step."""
        return self.node("schedule")

    def node(self, family: str) -> Any:
        """Return the object of a family, or its objects by name where a family holds several (callbacks).

        None for a part of the source that is the sequence's own, for initial weights that are drawn, for a residual
        that adds, for layers that are alike, and for the standard parametrization.
        """
        if family in OPTIONAL and family not in self.config:
            return None
        node, allow = self.config[family], allow_of(self.config)
        if is_node(node):
            return instantiate(node, allow, self.inner)
        return {name: instantiate(each, allow, self.inner) for name, each in (node or {}).items() if each is not None}

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizers by the names of their nodes; a source has an entry only if it has a tokenizer of its own."""
        own = self.source_tokenizer is not self.tokenizer
        return {"tokenizer": self.tokenizer, **({"source_tokenizer": self.source_tokenizer} if own else {})}

    def load(self) -> Splits:
        """Return the splits of the data, encoded. The objective learns from the training split what its targets need.

        Raises UserError where the data is missing, cannot be read, or does not suit the options.
        """
        try:
            missing = self.data.missing()
            if missing:  # a trained model is rebuilt without its data, and may be asked for them later
                raise UserError(missing)
            if self.source_tokenizer is self.tokenizer:
                splits = self.data.load(self.tokenizer)
            else:
                splits = self.data.load_both(self.tokenizer, self.source_tokenizer)
            self.context()  # which tells the objective its tokens
            self.objective.learn(splits.train)
        except UserError:
            raise
        except ValueError as error:  # with which data sets and tokenizers refuse what they read
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"data: {unreadable(error)}") from error
        return splits

    def remarks(self, splits: Splits | None = None) -> Iterator[str]:
        """Yield what the user should know before training, a sentence each; where splits were read, of them too.

        Raises ValueError where nothing can be learned from the splits.
        """
        yield from self.tokenizer.remarks(self.data.spec)
        if splits is not None:
            yield from self.objective.remarks(splits)

    def tokens(self) -> TokenSpec:
        """Return the TokenSpec of the data's own sequence, as the objective changes it."""
        return self.objective.tokens(self.tokenizer.spec(self.data.spec))

    def context(self) -> Context:
        """Return the Context that modules are built from."""
        ctx = context(self.data.spec, self.tokenizer, self.source_tokenizer, self.objective, self.architecture)
        return parametrized(ctx, self.parametrization, self.architecture)

    @property
    def parts(self) -> Parts:
        """The factories of the model's modules."""
        late: dict[str, Any] = {family: self.node(family) for family in (*LATE, "layers")}
        if self.objective.reads == "source":
            return Parts(embedder=self.source_tokenizer.embedder, **late)
        own = None if self.source_tokenizer is self.tokenizer else self.source_tokenizer.embedder
        source = {"source_embedder": own, "source_position": self.node("source_position")}
        return Parts(embedder=self.tokenizer.embedder, **late, **source)

    def model(self, seed: int) -> Model:
        """Return the model on the CPU; each weight depends on (seed, its path in the model) alone.

        seed: of the run; `init.seed` replaces it
        """
        if self.init is not None and self.init.seed is not None:
            seed = self.init.seed
        model = self._built()
        initialise(model, seed)
        self.adapt(model, seed)
        return model

    def meta_model(self, *, adapted: bool = True) -> Model:
        """Return the model on the meta device, for counting.

        adapted: with the changes of `init`: frozen and added parts
        """
        with without_compiler(), torch.device("meta"):
            model = self._built()
            if adapted:
                self.adapt(model, 0)
        return model

    def _built(self) -> Model:
        """Return the model without initial weights. Raises ValueError for one that keeps no Context but needs it."""
        ctx = self.context()
        model = self.architecture.build(ctx, self.parts)
        if ctx.parametrization.scales and getattr(model, "ctx", None) is None:
            raise ValueError(
                f"{type(model).__name__} keeps no Context, from which learning rates by role follow; set self.ctx = "
                "ctx in its constructor, or use parametrization=standard"
            )
        return model

    def adapt(self, model: nn.Module, seed: int) -> None:
        """Freeze parts of a model and add parts as `init` says, after its initial values were drawn."""
        if self.init is not None:
            self.init.adapt(model, seed)


def parametrized(ctx: Context, parametrization: Parametrization, architecture: Architecture) -> Context:
    """Return the Context under a parametrization. A standard deviation set by the model is that of the base width."""
    ctx = replace(ctx, parametrization=parametrization)
    if getattr(architecture, "init_std", None) is None:  # 1 / sqrt(D), as that of hidden weights is
        return ctx
    return replace(ctx, init_std=ctx.init_std * ctx.width_ratio**-0.5)


def context(
    data: DataSpec, tokenizer: Tokenizer, source_tokenizer: Tokenizer, objective: Objective, architecture: Architecture
) -> Context:
    """Return the Context of a model over `data`, or over its source if that is all it reads."""
    tokens = objective.tokens(tokenizer.spec(data))
    outputs = objective.outputs(data, tokens)
    objective.check_outputs(outputs)
    if objective.reads == "source":
        if data.source is None:
            raise ValueError("the objective reads the source of the data, which has none")
        tokens = objective.source_tokens(source_tokenizer.spec(data.source))
        return architecture.context(data.source, tokens, outputs)
    own = data.source is not None and source_tokenizer is not tokenizer
    source = source_tokenizer.spec(data.source) if own and data.source is not None else None
    return replace(architecture.context(data, tokens, outputs), source=source)
