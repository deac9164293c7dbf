"""Tiny models from the YAML files on disk, for tests that need any legal combination."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from itertools import product
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from blockyard.config.build import settings
from blockyard.config.compose import complete
from blockyard.config.schema import RESERVED
from blockyard.contracts import Context, DataSpec, Embedder, Parts, Seq, TokenSpec, Traits
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.weight_init import Init, initialise
from tests.tiny import CONF

VOCABULARY = 11
LENGTH = 6
SMALL = {"window": 3}  # options that would not show in so few tokens
GRIDS: dict[int, tuple[int, ...]] = {0: (), 1: (LENGTH,), 2: (2, 3)}  # of 6 tokens each


def choices(family: str) -> list[str]:
    """Every choice of a family, from the files on disk."""
    return list(_choices(family))


@cache
def _choices(family: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (CONF / family).glob("*.yaml")))


def blocks() -> list[str]:
    """Every choice of a block that a model can stack."""
    return [name for name in choices("block") if not node("block", name)[0].empty]


def node(family: str, name: str) -> tuple[type, dict[str, Any]]:
    """The class of a choice and the options its YAML gives."""
    target, options = _node(family, name)
    return target, deepcopy(options)


@cache  # each file is asked for hundreds of times
def _node(family: str, name: str) -> tuple[type, dict[str, Any]]:
    options = yaml.safe_load((CONF / family / f"{name}.yaml").read_text())
    module, _, attribute = options["_target_"].rpartition(".")
    target = getattr(importlib.import_module(module), attribute)
    if hasattr(target, "draws"):
        complete({family: options})
        return target, settings(options, [])
    return target, {key: value for key, value in options.items() if key not in RESERVED}


def traits(mixer: str) -> Traits:
    """What a token mixer declares as its YAML gives it."""
    target, options = node("token_mixer", mixer)
    return target.traits_for(options)


def has(mixer: str, method: str) -> bool:
    """Whether a token mixer, as its YAML gives it, has init_cache or mix."""
    target, options = node("token_mixer", mixer)
    return target.has(method, options)


def takes(block: str, channel: str) -> bool:
    """Whether a block has a place for a channel mixer, and shares its matmuls where it fuses, by their declarations."""
    wired, mixer = node("block", block)[0], node("channel_mixer", channel)[0]
    return mixer.empty or not wired.single if not wired.fuses({}) else hasattr(mixer, "mix")


def factory(family: str, name: str, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """The choice as the model gets it: waiting for its Context."""
    target, given = node(family, name)
    small = {key: value for key, value in SMALL.items() if key in given}
    return partial(target, **{**given, **small, **(options or {})})


def legal(mixer: str, position: str, axes: int) -> bool:
    """Whether two choices go together on so many axes, by their declarations."""
    mixing, where = traits(mixer), node("position", position)[0]
    ports = {where.needs[hook] for hook in where.acts_on if hook in where.needs}
    return axes in mixing.axes and axes in where.axes and ports <= mixing.ports


def combinations(*declared: str) -> list[Any]:
    """(mixer, position, axes) of every legal combination whose mixer declares all of `declared`."""
    found = []
    for mixer, position, axes in product(choices("token_mixer"), choices("position"), GRIDS):
        offered = traits(mixer)
        if all(getattr(offered, trait) for trait in declared) and legal(mixer, position, axes):
            found.append((mixer, position, axes))
    return found


class TinyEmbedder(Embedder):
    """Symbols on a line, on a grid or nowhere. `shift` moves every coordinate."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(ctx.tokens.vocabulary, ctx.dim))
        self.grid = ctx.tokens.grid
        self.shift = 0.0

    def init_weights(self, init: Init) -> None:
        """Normal vectors."""
        init.normal("table")

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Symbols (B, N) -> x (B, N, D), Seq."""
        index = torch.arange(start, start + inputs.shape[1], device=inputs.device)
        valid = None if lengths is None else index < lengths[:, None]
        place = index[None]
        if segment is not None:
            firsts = torch.stack([(segment == segment[:, [n]]).int().argmax(1) for n in range(len(index))], 1)
            place = index[None] - firsts
        if len(self.grid) == 0:
            coords, grid = place[..., None][..., :0], ()
        elif len(self.grid) == 1:
            coords, grid = place[..., None], (len(index),)
        else:
            coords = torch.stack([place // self.grid[1], place % self.grid[1]], -1)
            grid = self.grid if start == 0 and len(index) == self.grid[0] * self.grid[1] else None
        x = self.table[inputs]
        features = torch.stack([torch.sin(inputs.to(x.dtype)), torch.cos(1.7 * inputs.to(x.dtype))], -1)  # (B, N, 2)
        return x, Seq(index, coords.to(x.dtype) + self.shift, valid, segment, grid=grid, features=features)


def context(*, causal: bool = False, axes: int = 1, prefix: Prefix = NO_PREFIX, **sizes: Any) -> Context:
    """A Context of small sizes."""
    grid = sizes.pop("grid", GRIDS[axes])
    count = None if grid else LENGTH
    tokens = TokenSpec(grid, variable=sizes.pop("variable", False), vocabulary=VOCABULARY, count=count)
    data = DataSpec("text", grid or (LENGTH,), packed=sizes.pop("packed", False))
    plain = {"dim": 16, "depth": 2, "heads": 4, "outputs": VOCABULARY, "num_prefix": len(prefix)}
    return Context(causal=causal, tokens=tokens, data=data, **{**plain, **sizes})


def tiny(
    *,
    causal: bool = False,
    axes: int = 1,
    prefix: Prefix = NO_PREFIX,
    options: dict[str, dict[str, Any]] | None = None,
    sizes: dict[str, Any] | None = None,
    replace: dict[str, Any] | None = None,
    **picks: str,
) -> nn.Module:
    """A model in float64 with weights large enough to matter; families not picked take a default."""
    from blockyard.model._transformer import Transformer

    defaults = {
        "position": "none",
        "token_mixer": "attention",
        "channel_mixer": "mlp",
        "norm": "layer",
        "block": "pre_norm",
        "head": "token",
    }
    if node("block", picks.get("block", "pre_norm"))[0].single:
        defaults["channel_mixer"] = "none"
    made = {
        family: factory(family, name, (options or {}).get(family)) for family, name in {**defaults, **picks}.items()
    }
    made.update(replace or {})
    ctx = context(causal=causal, axes=axes, prefix=prefix, **(sizes or {}))
    model = Transformer(ctx, Parts(embedder=TinyEmbedder, **made), prefix=prefix, dropout=0.0)
    return stir(initialise(model, 0)).double().eval()


def stir(model: nn.Module) -> nn.Module:
    """Make every weight large and different, biases and gains too, so that nothing cancels by chance."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def symbols(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random symbols (B, N)."""
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
