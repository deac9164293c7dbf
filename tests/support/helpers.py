"""Tiny models from the YAML files in conf/, for tests over all legal combinations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.config.defaults import complete, default_node
from blockyard.config.instantiate import settings
from blockyard.config.schema import RESERVED
from blockyard.contracts import UNREACHABLE, Context, DataSpec, Embedder, Parts, Role, Seq, TokenSpec, Traits
from blockyard.model._embedding import set_pairs
from blockyard.model._ngrams import NO_NGRAMS, Ngrams
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.weight_init import Init, initialise
from tests.support.paths import CONF

VOCABULARY = 11
LENGTH = 6
SMALL_OPTIONS = {"window": 3, "block": 2, "top": 2}  # options whose default would have no effect on so few tokens
DEFAULT_PARTS = {
    "position": "none",
    "token_mixer": "attention",
    "channel_mixer": "mlp",
    "norm": "layer",
    "block": "pre_norm",
    "residual": "add",
    "head": "token",
}
# Facts of pairs of tokens, for tokens without coordinates: a distance, and five edges of three types along the path.
PAIRS = (256, 4, 4, 4, 4, 4)
GRIDS: dict[int, tuple[int, ...]] = {0: (), 1: (LENGTH,), 2: (2, 3)}  # of 6 tokens each


def choices(family: str) -> list[str]:
    """Every choice of a family, from the files in conf/."""
    return list(_choices(family))


@cache
def _choices(family: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (CONF / family).glob("*.yaml")))


def blocks() -> list[str]:
    """Every block that a model can stack."""
    return [name for name in choices("block") if not node("block", name)[0].empty]


def node(family: str, name: str) -> tuple[type, dict[str, Any]]:
    """The class of a choice and its options, those of its YAML and all defaults."""
    target, options = _node(family, name)
    return target, deepcopy(options)


@cache  # each file is read hundreds of times
def _node(family: str, name: str) -> tuple[type, dict[str, Any]]:
    options = default_node(family, name)
    module, _, attribute = options["_target_"].rpartition(".")
    target = getattr(importlib.import_module(module), attribute)
    if hasattr(target, "nested_choices"):
        complete({family: options})
        return target, settings(options, [])
    return target, {key: value for key, value in options.items() if key not in RESERVED}


@cache  # asked for 150,000 times as tests are collected
def traits(mixer: str) -> Traits:
    """The traits of a token mixer with the options of its YAML."""
    target, options = _node("token_mixer", mixer)  # which it only reads
    return target.traits_for(options)


def has(mixer: str, method: str) -> bool:
    """Whether a token mixer, with the options of its YAML, has `init_cache` or `mix`."""
    target, options = node("token_mixer", mixer)
    return target.has(method, options)


def takes(block: str, channel: str) -> bool:
    """Whether a block accepts a channel mixer by their declarations, fused where it fuses by default."""
    target, mixer = node("block", block)[0], node("channel_mixer", channel)[0]
    return mixer.empty or not target.single if not target.fuses({}) else hasattr(mixer, "mix")


def factory(family: str, name: str, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """The choice as a partial that takes its Context, as a model receives it."""
    target, defaults = node(family, name)
    small = {key: value for key, value in SMALL_OPTIONS.items() if key in defaults}
    return partial(target, **{**defaults, **small, **(options or {})})


def legal(mixer: str, position: str, axes: int) -> bool:
    """Whether a token mixer and a position scheme are compatible on `axes` axes, by their declarations."""
    declared, scheme = traits(mixer), _node("position", position)[0]
    ports = {scheme.needs[hook] for hook in scheme.acts_on if hook in scheme.needs}
    return axes in declared.axes and axes in scheme.axes and ports <= declared.ports


def axes_of(family: str, name: str) -> int:
    """One axis, as text has, or none for a choice that takes sets only."""
    axes = {"token_mixer": lambda: traits(name).axes, "position": lambda: node(family, name)[0].axes}
    return max(axes[family]() & {0, 1}) if family in axes else 1


def reads_later(position: str) -> bool:
    """Whether a position scheme reads later tokens, in facts of pairs or as neighbours: not for causal models."""
    scheme = _node("position", position)[0]
    return bool(scheme.acts_on & scheme.of_later)


def combinations(*declared: str) -> list[Any]:
    """(mixer, position, axes) of every legal combination whose mixer declares all of `declared`."""
    return [
        (mixer, position, axes)
        for mixer, position, axes in product(choices("token_mixer"), choices("position"), GRIDS)
        if all(getattr(traits(mixer), trait) for trait in declared) and legal(mixer, position, axes)
        if not ("causal" in declared and reads_later(position))
    ]


class TinyEmbedder(Embedder):
    """Token ids on a line, on a grid or without coordinates. `shift` is added to every coordinate."""

    roles: ClassVar[dict[str, Role]] = {"table": "input"}

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
        """Token ids (B, N) -> x (B, N, D), Seq."""
        index = torch.arange(start, start + inputs.shape[1], device=inputs.device)
        valid = None if lengths is None else index < lengths[:, None]
        position = index[None]
        if segment is not None:
            firsts = torch.stack([(segment == segment[:, [n]]).int().argmax(1) for n in range(len(index))], 1)
            position = index[None] - firsts
        if len(self.grid) == 0:
            coords, grid = position[..., None][..., :0], ()
        elif len(self.grid) == 1:
            coords, grid = position[..., None], (len(index),)
        else:
            coords = torch.stack([position // self.grid[1], position % self.grid[1]], -1)
            grid = self.grid if start == 0 and len(index) == self.grid[0] * self.grid[1] else None
        x = self.table[inputs]
        features = torch.stack([torch.sin(inputs.to(x.dtype)), torch.cos(1.7 * inputs.to(x.dtype))], -1)  # (B, N, 2)
        ids = inputs if valid is None else inputs.masked_fill(~valid, -1)
        seq = Seq(index, coords.to(x.dtype) + self.shift, valid, segment, grid=grid, features=features, ids=ids)
        if not self.grid:
            set_pairs(seq, tiny_pairs(inputs))
        return x, seq


def tiny_pairs(inputs: Tensor) -> Tensor:
    """Facts of pairs that follow from the ids (B, N) of both tokens: (B, N, N, P), distances first."""
    gap = (inputs[:, :, None] - inputs[:, None]).abs()  # (B, N, N)
    kinds = [(inputs[:, :, None] * (step + 2) + inputs[:, None]) % 4 for step in range(len(PAIRS) - 1)]
    return torch.stack([torch.where(gap > 8, UNREACHABLE, gap), *kinds], -1).to(torch.uint8)


def context(*, causal: bool = False, axes: int = 1, prefix: Prefix = NO_PREFIX, **sizes: Any) -> Context:
    """A Context with small sizes."""
    grid = sizes.pop("grid", GRIDS[axes])
    count = None if grid else LENGTH
    pairs = None if grid else PAIRS
    flags = {name: sizes.pop(name, False) for name in ("variable", "hides")}
    tokens = TokenSpec(grid, **flags, vocabulary=VOCABULARY, count=count, pairs=pairs)
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
    embed_norm: bool = False,
    ngrams: Ngrams = NO_NGRAMS,
    smear: bool = False,
    backout: int | None = None,
    **picks: str,
) -> nn.Module:
    """A model in float64 with weights large enough to matter; families that are not passed have a default."""
    from blockyard.model._transformer import Transformer

    defaults = dict(DEFAULT_PARTS)
    if node("block", picks.get("block", "pre_norm"))[0].single:
        defaults["channel_mixer"] = "none"
    factories = {
        family: factory(family, name, (options or {}).get(family)) for family, name in {**defaults, **picks}.items()
    }
    factories.update(replace or {})
    ctx = context(causal=causal, axes=axes, prefix=prefix, **(sizes or {}))
    parts = Parts(embedder=TinyEmbedder, **factories)
    more = {"ngrams": ngrams, "embed_norm": embed_norm, "smear": smear, "backout": backout}
    model = Transformer(ctx, parts, prefix=prefix, dropout=0.0, **more)
    return stir(initialise(model, 0)).double().eval()


def cycle_options(*pattern: str, **options: dict[str, Any]) -> dict[str, Any]:
    """The options of token_mixer=cycle over choices of token_mixer, each with its own options."""
    members = {name: factory("token_mixer", name, options.get(name)) for name in dict.fromkeys(pattern)}
    return {"token_mixer": {"pattern": pattern, "members": members}}


def cycle_model(*pattern: str, depth: int = 4, options: dict[str, Any] | None = None, **picks: Any) -> nn.Module:
    """A tiny model whose layers cycle through token mixers."""
    sizes = {"depth": depth, **picks.pop("sizes", {})}
    return tiny(token_mixer="cycle", options={**cycle_options(*pattern), **(options or {})}, sizes=sizes, **picks)


def stir(model: nn.Module) -> nn.Module:
    """Makes every parameter large and different, biases and gains too, so that nothing cancels by chance.

    A module that was never initialised holds whatever was in memory; what is no weight of any size counts as 0.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[~(parameter.abs() < 100)] = 0.0
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def token_ids(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random token ids (B, N)."""
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
