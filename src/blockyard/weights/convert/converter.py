"""Converters, one file a preset in `preset/`. Each reads and writes the config of one class of a library."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from blockyard.config.build import CONTRACTS, LATE
from blockyard.config.layer_kinds import nodes_of_layers
from blockyard.config.tree import Node
from blockyard.contracts import Context, DataSpec
from blockyard.weights.convert.rules import ConversionRule
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

Library = Literal["transformers", "timm"]
# The families whose choices decide the function that a model computes: its modules, and builders that say so.
MODEL_FAMILIES = tuple(
    family for family, contract in CONTRACTS.items() if family in LATE or getattr(contract, "decides_function", False)
)


@dataclass(frozen=True)
class Foreign:
    """The content of a library's config in our terms.

    overrides: of the preset, for everything that decides the function of the model
    rules: from the library's weights to ours, and back
    data: the data that the model was made for
    vocabulary, outputs: the numbers of token ids that it reads, and of values that it predicts
    ignored: whether our model does not need a library weight of this name
    partly: the reason why this config describes only a part of our model, as in `Converter`
    """

    overrides: list[str]
    rules: list[ConversionRule]
    data: DataSpec
    vocabulary: int | None = None
    outputs: int | None = None
    ignored: Callable[[str], bool] = frozenset[str]().__contains__
    partly: str = ""

    @property
    def text(self) -> list[str]:
        """Overrides that compose a run of text from the project's own data; none for other modalities."""
        if self.data.modality != "text" or self.data.source is not None or self.data.target is not None:
            return []
        return ["data=code", f"data.context={self.data.shape[0]}"]


@dataclass(frozen=True)
class Trained:
    """A model of ours, from which a converter writes a library's config.

    config: complete; weights: the model's state
    """

    config: Mapping[str, Any]
    ctx: Context
    weights: Mapping[str, Tensor]

    def option(self, key: str) -> Any:
        """Return the value of `family.option`; None if the choice has no such option."""
        node: Any = self.config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight; () if the model has no weight of that name."""
        if name in self.weights:
            return tuple(self.weights[name].shape)
        return ()

    @cached_property
    def hidden(self) -> int:
        """The hidden width of the first block's channel mixer, or of its experts; 4 dim without one."""
        for mixer in ("blocks.0.channel_mixer", "blocks.0.channel_mixer.expert.0"):
            shape = self.shape(f"{mixer}.proj_out.weight")
            if shape:
                return shape[1]
        return 4 * self.ctx.dim

    @cached_property
    def layers(self) -> list[dict[str, Node]]:
        """The nodes of each layer, by family, for the families in which layers may differ."""
        return nodes_of_layers(dict(self.config), self.ctx.depth)

    @property
    def head_dim(self) -> int:
        """The width of queries and keys in a head."""
        return int(self.option("token_mixer.key_dim") or self.ctx.dim // self.ctx.heads)


@dataclass(frozen=True)
class Converter:
    """A converter between a preset and a class of a library.

    preset: the preset's name, and the name of the converter's module
    architecture: the class of transformers, or of timm; others: further classes that `read` takes
    model_type: of transformers' config.json
    read: from the library's config to ours
    write: from a model of ours to the library's config; raises UserError for a size that the class lacks. None if
        `partly`
    partly: the reason why the library's model holds only a part of ours: imported weights are for `init.from` then,
        and nothing is exported
    families: the families whose choices must be the preset's
    uncompared: options that may differ from the result of `read`, because `write` treats them alike
    """

    preset: str
    library: Library
    architecture: str
    read: Callable[[LibrarySettings], Foreign]
    write: Callable[[Trained], LibraryConfig] | None = None
    model_type: str = ""
    others: tuple[str, ...] = ()
    partly: str = ""
    families: tuple[str, ...] = MODEL_FAMILIES
    uncompared: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The library and its class."""
        return f"{self.library} {self.architecture}"


@cache
def converters() -> dict[str, Converter]:
    """Return the converter of each preset that has one: the files of `preset/`."""
    folder = Path(__file__).parent / "preset"
    names = sorted(path.stem for path in folder.glob("[a-z]*.py"))
    return {name: importlib.import_module(f"{__package__}.preset.{name}").CONVERTER for name in names}


def expansion(hidden: int, dim: int) -> str:
    """Return the override of the channel mixer's hidden width."""
    ratio = hidden / dim
    # The model rounds the product, which may miss the width by one where the ratio was rounded down.
    if round(ratio * dim) != hidden:
        ratio = math.nextafter(ratio, math.inf)
    return f"channel_mixer.expansion={ratio!r}"
