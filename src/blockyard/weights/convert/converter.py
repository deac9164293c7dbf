"""What a converter is: one file a preset in `preset/`, which reads and writes the config of one library's class."""

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
    """What a library's config says in our terms.

    overrides: of the preset, for everything that decides what the model computes
    rules: from their weights to ours, and back
    data: the data that the model was made for
    vocabulary, outputs: token ids that it reads, and numbers that it predicts
    ignored: whether a weight of theirs, by name, holds nothing that ours needs
    partly: why this config is of a part of the class that the converter is for, as of `Converter`
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
        """Overrides that compose a run of text from the project's own data, where the model reads text alone."""
        if self.data.modality != "text" or self.data.source is not None or self.data.target is not None:
            return []
        return ["data=code", f"data.context={self.data.shape[0]}"]


@dataclass(frozen=True)
class Trained:
    """A model of ours, as a converter reads it to write a library's config.

    config: complete; weights: the model's own state
    """

    config: Mapping[str, Any]
    ctx: Context
    weights: Mapping[str, Tensor]

    def option(self, key: str) -> Any:
        """The value of `family.option`. None where the choice has no such option."""
        node: Any = self.config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight; () where the model has none of that name."""
        return tuple(self.weights[name].shape) if name in self.weights else ()

    @cached_property
    def hidden(self) -> int:
        """The hidden width of the first block's channel mixer, or of its experts; 4 dim without one."""
        names = (f"blocks.0.channel_mixer.{each}proj_out.weight" for each in ("", "expert.0."))
        return next((self.shape(name)[1] for name in names if name in self.weights), 4 * self.ctx.dim)

    @cached_property
    def layers(self) -> list[dict[str, Node]]:
        """The nodes of each layer by family, of those in which layers may differ."""
        return nodes_of_layers(dict(self.config), self.ctx.depth)

    @property
    def head_dim(self) -> int:
        """The width of queries and keys in a head."""
        return int(self.option("token_mixer.key_dim") or self.ctx.dim // self.ctx.heads)


@dataclass(frozen=True)
class Converter:
    """Between a preset and a class of a library.

    preset: its name, and that of the converter's module
    architecture: the class of transformers, or of timm; others: further ones that `read` takes
    model_type: of transformers' config.json
    read: from their config to ours
    write: from a model of ours to their config; raises UserError for a size that they have not. None where `partly`
    partly: why the library's model holds only a part of ours: imported weights are for `init.from` then, and nothing
        is exported
    families: those that must be what the preset says
    uncompared: options that may differ from what `read` says, because both ways mean the same to `write`
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
    """The converter of each preset that has one: the files of `preset/`."""
    folder = Path(__file__).parent / "preset"
    names = sorted(path.stem for path in folder.glob("[a-z]*.py"))
    return {name: importlib.import_module(f"{__package__}.preset.{name}").CONVERTER for name in names}


def expansion(hidden: int, dim: int) -> str:
    """The override of the channel mixer's hidden width. Exact: the width is the rounded product."""
    return f"channel_mixer.expansion={_ratio(hidden, dim)!r}"


def _ratio(hidden: int, dim: int) -> float:
    ratio = hidden / dim
    return ratio if round(ratio * dim) == hidden else math.nextafter(ratio, math.inf)
