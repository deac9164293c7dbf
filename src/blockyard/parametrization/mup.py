"""Maximal update parametrization (muP): learning rates that are best in a narrow model stay best in a wide one.

Source: Yang et al. 2022, Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer
    (arXiv 2203.03466), table 8, and definition 4.1 for the scores; Dey et al. 2025, Don't be lazy: CompleteP enables
    compute-efficient deep transformers (arXiv 2505.01618), table 1 with alpha = 1, for depth and for Adam's epsilon;
    for optimizer=muon Yang et al. 2023, A Spectral Condition for Feature Learning (arXiv 2310.17813), section 3
Reference: the package mup (microsoft/mup), set_base_shapes with MuReadout, MuAdamW and MuSGD
Equation: with m = D / base_dim the factors of the table, at m = 1 parametrization=standard to the bit
Cost: nothing

    role                initial std   factor   rate: adam   sgd   muon: original   dion: original   match_rms_adamw
    input               1             1        1            m     1                1                1
    hidden, residual    m^(-1/2)      1        1/m          1     1                1                m^(-1/2)
    output              1             1/m      1            m     m^(1/2)          m                1
    vector              1             1        1            m     as adam          as adam          as adam
    fixed               1             1        1            1     1                1                1

    blockyard train parametrization=mup model.dim=256 optimizer.lr=3e-3      a rate that was best at model.dim=64

Scores are divided by K instead of sqrt(K), where K grows with D. Weight decay is divided by the factor on the rate, so
that the decay of a weight in a step does not depend on the width. A tied table has the rate of an input, which is the
same as of an output, and the head's factor 1/m. With base_depth the addition of a block is divided by the number of
visits over base_depth, and initial weights are as at base_depth.
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.contracts import (
    Architecture,
    ChoiceOptions,
    Context,
    DataModule,
    Depth,
    Heads,
    Objective,
    Parametrization,
    Place,
    Positive,
    Role,
    UpdateRule,
    Width,
)

# The exponent of m in the factor on the learning rate; a role without an entry has 0.
RATES: dict[UpdateRule, dict[Role, float]] = {
    "adam": {"hidden": -1, "residual": -1},
    "sgd": {"input": 1, "vector": 1, "output": 1},
    "muon": {"output": 0.5},
    "dion": {"output": 1},
    "muon_rms": {"hidden": -0.5, "residual": -0.5},
}
GROWING_INPUTS: frozenset[Role] = frozenset({"hidden", "residual"})


class MuP(Parametrization):
    """Widths are compared at equal model.heads, so that heads get wider; sizes that an option fixes do not grow.

    Options:
        base_dim: model.dim at which everything is as without a parametrization
        base_heads: model.heads at base_dim; null is the number of heads of the model
        base_depth: number of visits of blocks at base_dim; a number turns on CompleteP's factor of depth, null leaves
            depth alone
        output: factor on the logits at every width
        scores: factor on the scores of attention at every width
        branch: factor on the addition of a block to the stream at every depth
        embedding: factor on the stream as it enters the blocks at every width
    """

    scales: ClassVar[bool] = True

    def __init__(
        self,
        *,
        base_dim: Width = 64,
        base_heads: Heads | None = None,
        base_depth: Depth | None = None,
        output: Positive = 1.0,
        scores: Positive = 1.0,
        branch: Positive = 1.0,
        embedding: Positive = 1.0,
    ) -> None:
        if base_heads is not None and base_dim % base_heads:
            raise ValueError(f"base_heads={base_heads} does not divide base_dim={base_dim}")
        self.base_dim = base_dim
        self.base_heads = base_heads
        self.base_depth = base_depth
        self.output = output
        self.scores = scores
        self.branch = branch
        self.embedding = embedding

    @classmethod
    def scales_branches(cls, options: ChoiceOptions) -> bool:
        """Return whether base_depth or branch is set."""
        return options.get("base_depth") is not None or options.get("branch", 1.0) != 1.0

    @classmethod
    def scales_scores(cls, options: ChoiceOptions) -> bool:
        """Return whether scores is set."""
        return bool(options.get("scores", 1.0) != 1.0)

    def problems(self, data: DataModule, objective: Objective, model: Architecture) -> list[str]:
        """Return a sentence about a factor of blocks in a model without blocks."""
        factors = {"base_depth": self.base_depth, "branch": self.branch, "embedding": self.embedding}
        unused = [f"{name}={value}" for name, value in factors.items() if value not in (None, 1.0)]
        if model.stacks or not unused:
            return []
        return [f"{unused[0]} is about blocks, and this model has none; leave it out"]

    def width_ratio(self, ctx: Context) -> float:
        """Return m."""
        return (ctx.stream or ctx.dim) / self.base_dim

    def head_ratio(self, ctx: Context) -> float:
        """Return the width of a head over the width of a head of the base."""
        return self.width_ratio(ctx) * (self.base_heads or ctx.heads) / ctx.heads

    def base_visits(self, ctx: Context) -> int:
        """Return `base_depth`, or the visits of the model."""
        if self.base_depth is None:
            return ctx.visits
        return self.base_depth

    def std(self, role: Role, ctx: Context) -> float:
        """Return the factor on the initial standard deviation of a role."""
        # init_std is 1 / sqrt(D) already: hidden weights keep it, and m^(1/2) undoes it for all other roles.
        if role in GROWING_INPUTS:
            return 1.0
        return self.width_ratio(ctx) ** 0.5

    def factor(self, place: Place, ctx: Context) -> float:
        """Return the factors of the table and the options."""
        if place == "branch":
            return self.branch / self._depth_ratio(ctx)
        if place == "scores":
            return self.scores / self.head_ratio(ctx) ** 0.5
        if place == "embedding":
            return self.embedding
        output = self.output if place == "logits" else 1.0
        return output / self.width_ratio(ctx)

    def rate(self, role: Role, rule: UpdateRule, ctx: Context, *, in_block: bool) -> float:
        """Return the factor on the learning rate of the table."""
        # The gradients of weights in a block are smaller by the factor of depth, and SGD moves in proportion to them.
        deep = self._depth_ratio(ctx) if in_block and rule == "sgd" else 1.0
        return deep * self.width_ratio(ctx) ** RATES[rule].get(role, 0.0)

    def epsilon(self, role: Role, ctx: Context, *, in_block: bool) -> float:
        """Return 1/m, and in a block 1/m over the factor of depth."""
        wide = 1.0 if role == "fixed" else self.width_ratio(ctx)
        deep = self._depth_ratio(ctx) if in_block else 1.0
        return 1.0 / (wide * deep)

    def _depth_ratio(self, ctx: Context) -> float:
        """Return the number of visits over the number of visits of the base."""
        return ctx.visits / self.base_visits(ctx)
