"""The coordinate check: under muP, sizes of activations do not depend on the width, for every choice of every family.

By default models of 32 and 128 channels are compared over one seed, which is enough to find planted exponents; what is
not flat there, at 32, 64 and 128 over two. The longer run compares 32 to 512, and checks options
and position schemes too.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import (
    PLAIN,
    Context,
    Embedder,
    OptimizerBuilder,
    Parametrization,
    Parts,
    Place,
    Role,
    UpdateRule,
)
from blockyard.model._prefix import NO_PREFIX
from blockyard.model._transformer import Transformer
from blockyard.optimizer.adamw import AdamW
from blockyard.optimizer.muon import Muon
from blockyard.optimizer.sgd import SGD
from blockyard.parametrization.mup import MuP
from blockyard.verify.coordinates import GROWTH, SHRINKING, Sizes, Trainee, fading, growth, problems
from blockyard.weight_init import initialise
from tests.components.attention_options import OPTIONS
from tests.support.helpers import (
    DEFAULT_PARTS,
    LENGTH,
    VOCABULARY,
    TinyEmbedder,
    axes_of,
    blocks,
    choices,
    context,
    factory,
    node,
    token_ids,
)

WIDTHS, WIDER, ENDS = (32, 64, 128), (32, 64, 128, 256, 512), (32, 128)
SEEDS = (0, 1)
BASE = MuP(base_dim=32)
# Families whose choices are all checked; cycle holds other token mixers, which are.
CHECKED = [
    *(
        (family, name, {})
        for family in ("token_mixer", "channel_mixer", "norm", "residual")
        for name in choices(family)
    ),
    *(("block", name, {}) for name in blocks()),
    *(("position", name, {}) for name in choices("position")),
]
CHECKED = [each for each in CHECKED if each[1] != "cycle"]
# Options that make other maps of a choice.
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("token_mixer", "linear_attention", {"feature": "polynomial"}),
    ("token_mixer", "linear_attention", {"feature": "hedgehog"}),
    ("token_mixer", "linear_attention", {"feature": "random"}),
    ("token_mixer", "graph_conv", {"kind": "gat"}),
    ("token_mixer", "graph_conv", {"kind": "gcn"}),
    *(("token_mixer", "non_local", {"score": score}) for score in ("gaussian", "dot_product", "concatenation")),
    ("token_mixer", "strict_attention", {"asks": "learned"}),
    ("token_mixer", "long_conv", {"mixing": "full"}),
    ("token_mixer", "long_conv", {"gated": True, "conv": 3}),
    ("token_mixer", "fully_connected", {"channels": "full"}),
    ("token_mixer", "linear_recurrence", {"decay": "fixed"}),
    ("token_mixer", "delta_rule", {"gate": "none", "negative": True, "conv": 0}),
    ("token_mixer", "delta_rule", {"gate": "channel"}),
    ("token_mixer", "delta_rule", {"gate": "channel", "gate_rank": 8, "output_gate": "sigmoid"}),
    ("token_mixer", "decayed_attention", {"decay": "fixed"}),
    ("token_mixer", "decayed_attention", {"decay": "channel", "decay_rank": 8}),
    ("token_mixer", "decayed_attention", {"decay": "channel", "tied_keys": True, "output_gate": "none"}),
    ("token_mixer", "mlstm", {"gate_cap": 15.0, "conv": 4}),
    ("token_mixer", "selective_ssm", {"rank": 2, "conv": 0}),
    ("token_mixer", "mamba2", {"norm": "none", "conv": 0}),
    ("token_mixer", "attention", {"qk_norm": True}),
    *(("token_mixer", "attention", options) for options in OPTIONS),
    ("residual", "hyper", {"mixing": "sinkhorn"}),
    ("channel_mixer", "memory", {"activation": "gelu"}),
    ("channel_mixer", "glu", {"gains": "one"}),
    ("channel_mixer", "experts", {"shared": 1, "score": "sigmoid"}),
    ("head", "token", {"tied": True}),
    ("head", "token", {"hidden": "gelu"}),
    ("head", "token", {"gain": True}),
    ("position", "conv", {"groups": 1}),
    ("position", "sinusoidal", {"combine": "concat"}),
]
EVERY = [*CHECKED, *OTHERS]


def trainee(
    width: int,
    seed: int,
    *,
    parametrization: Parametrization = BASE,
    optimizer: OptimizerBuilder | None = None,
    options: dict[str, dict[str, Any]] | None = None,
    depth: int = 2,
    axes: int = 1,
    embedder: type[Embedder] = TinyEmbedder,
    **picks: str,
) -> Trainee:
    """A tiny model that learns a class from two token ids."""
    defaults = dict(DEFAULT_PARTS)
    if node("block", picks.get("block", "pre_norm"))[0].single:
        defaults["channel_mixer"] = "none"
    parts = {f: factory(f, name, (options or {}).get(f)) for f, name in {**defaults, **picks}.items()}
    ctx = context(axes=axes, dim=width, depth=depth, init_std=width**-0.5, parametrization=parametrization)
    model = initialise(Transformer(ctx, Parts(embedder=embedder, **parts), prefix=NO_PREFIX, dropout=0.0), seed)
    ids = token_ids(16, LENGTH, seed)
    classes = (3 * ids + ids.roll(1, 1)) % VOCABULARY

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), classes.flatten())

    return Trainee(model, (optimizer or AdamW(lr=0.003)).build(model), loss)


def measured(
    widths: tuple[int, ...], shrinking: float = SHRINKING, seeds: tuple[int, ...] = SEEDS, **options: Any
) -> tuple[dict[str, Sizes], list[str]]:
    """The exponents, and what is not flat."""
    sizes = growth(partial(trainee, **options), widths, seeds)
    return sizes, problems(sizes, fading(trainee(widths[0], 0, **options).model), shrinking)


def flat(shrinking: float = SHRINKING, **options: Any) -> dict[str, Sizes]:
    """The exponents, of more models where few are not flat. Raises AssertionError where these are not either."""
    sizes, faults = measured(ENDS, shrinking, SEEDS[:1], **options)
    if faults:
        sizes, faults = measured(WIDTHS, shrinking, **options)
    assert faults == []
    return sizes


def names(value: object) -> str | None:
    return "-".join(f"{key}={each}" for key, each in value.items()) or "default" if isinstance(value, dict) else None


@pytest.mark.parametrize(("family", "name", "options"), [each for each in CHECKED if each[0] != "position"], ids=names)
@pytest.mark.sampled(4)
def test_sizes_stay_flat_under_mup(family: str, name: str, options: dict[str, Any]) -> None:
    sizes = flat(axes=axes_of(family, name), options={family: options}, **{family: name})
    assert abs(sizes["prediction"].change) < GROWTH


@pytest.mark.full
@pytest.mark.parametrize(("family", "name", "options"), EVERY, ids=names)
def test_sizes_stay_flat_over_a_wide_range(family: str, name: str, options: dict[str, Any]) -> None:
    # A polynomial of more channels has more features than the mixer takes.
    widths = WIDER[:-1] if options.get("feature") == "polynomial" else WIDER
    _, faults = measured(widths, axes=axes_of(family, name), options={family: options}, **{family: name})
    assert faults == []


@pytest.mark.parametrize(
    "optimizer",
    [SGD(lr=0.1), SGD(lr=0.1, momentum=0.0, nesterov=False), Muon(lr=0.01), Muon(lr=0.01, scale="original")],
    ids=["momentum", "sgd", "muon", "muon_original"],
)
@pytest.mark.parametrize("options", [{}, {"head": {"tied": True}}], ids=names)
@pytest.mark.sampled(3)
def test_sizes_stay_flat_with_other_optimizers(optimizer: OptimizerBuilder, options: dict[str, Any]) -> None:
    # The gradients of queries and keys are smaller in wider models before scores have their size.
    flat(0.5, optimizer=optimizer, options=options)


@pytest.mark.parametrize("heads", [2, 8])
def test_sizes_stay_flat_at_other_base_heads(heads: int) -> None:
    flat(parametrization=MuP(base_dim=32, base_heads=heads))


def test_sizes_grow_under_standard() -> None:
    sizes, faults = measured(WIDTHS, parametrization=PLAIN, optimizer=AdamW(lr=0.01))
    assert len(faults) > 4
    assert sizes["blocks.0"].change > 0.5
    assert sizes["blocks.1"].change > 0.5
    assert max(each.start for each in sizes.values()) < GROWTH  # before training they do not


class Exponent(MuP):
    """muP with one exponent wrong."""

    def __init__(self, role: Role | Place, exponent: float) -> None:
        super().__init__(base_dim=32)
        self.role, self.exponent = role, exponent

    def rate(self, role: Role, rule: UpdateRule, ctx: Context, *, in_block: bool) -> float:
        """That of muP, times a power of m for the role."""
        wrong = self.width_ratio(ctx) ** (self.exponent if role == self.role else 0)
        return wrong * super().rate(role, rule, ctx, in_block=in_block)

    def factor(self, place: Place, ctx: Context) -> float:
        """That of muP, times a power of m for the place."""
        wrong = self.width_ratio(ctx) ** (self.exponent if place == self.role else 0)
        return wrong * super().factor(place, ctx)


@pytest.mark.parametrize(
    ("role", "exponent", "where"),
    [
        ("hidden", 0.5, "the change of blocks.0.token_mixer.proj_in.weight"),
        ("hidden", -0.5, "the change of blocks.0.channel_mixer.proj_in.weight"),
        ("residual", 1, "the change of blocks.0.channel_mixer.proj_out.weight"),
        ("residual", -1, "the change of blocks.0.channel_mixer.proj_out.weight"),
        ("output", 1, "the change of head.proj.weight"),
        ("output", -1, "the change of head.proj.weight"),
        ("logits", 1, "the size of prediction"),
        ("logits", -0.5, "the change of prediction"),
        ("branch", 0.5, "the size of blocks.0"),
    ],
)
def test_a_wrong_exponent_is_caught(role: Role | Place, exponent: float, where: str) -> None:
    sizes, faults = measured(ENDS, seeds=SEEDS[:1], parametrization=Exponent(role, exponent))
    assert any(fault.startswith(f"{where} ") for fault in faults), sizes


class ByName(TinyEmbedder):
    """Planted: the role of a table that somebody read from the end of a name, as if it were a projection's."""

    roles: ClassVar[dict[str, Role]] = {"table": "hidden"}


def test_a_table_with_the_role_of_a_map_is_caught() -> None:
    sizes, _ = measured(WIDTHS, embedder=ByName, block="no_residual", norm="none", token_mixer="fourier")
    right, _ = measured(WIDTHS, block="no_residual", norm="none", token_mixer="fourier")
    assert sizes["blocks.0"].start < right["blocks.0"].start - 0.3


@pytest.mark.full
def test_the_change_does_not_grow_with_depth_under_a_base_depth() -> None:
    """The stream after training moves as far in a deep model as in a shallow one (CompleteP); without, farther."""
    moved: dict[int | None, list[float]] = {}
    for base in (2, None):
        parametrization = MuP(base_dim=32, base_depth=base)
        for depth in (2, 8, 32):
            each = trainee(32, 0, parametrization=parametrization, depth=depth, optimizer=AdamW(lr=0.001))
            moved.setdefault(base, []).append(_moved(each))
    slopes = {base: math.log2(sizes[2] / sizes[0]) / 4 for base, sizes in moved.items()}
    assert abs(slopes[2]) < GROWTH
    assert slopes[None] > slopes[2] + 0.2


def _moved(each: Trainee) -> float:
    """How far ten updates move the stream after the blocks."""
    model: Any = each.model
    ids = token_ids(16, LENGTH, 0)
    with torch.no_grad():
        before = model.steps(ids)[f"block.{model.ctx.depth - 1}"]
    for _ in range(10):
        each.optimizer.zero_grad()
        each.loss(model).backward()
        each.optimizer.step()
    with torch.no_grad():
        return float((model.steps(ids)[f"block.{model.ctx.depth - 1}"] - before).square().mean().sqrt())
