"""Pattern: kinds of layers by name, in a pattern that repeats over the depth.

Source: the alternating layers of Gemma Team 2024, Gemma 2 (arXiv 2408.00118), section 2; for kinds that differ in
    their positions Yang et al. 2025, RoPE to NoPE and Back Again (arXiv 2501.18795); for layers of one mixer NVIDIA
    2025, Nemotron-H (arXiv 2504.03624), section 2.1
Reference: transformers' `layer_types`
Equation: layer l is of the kind first + pattern + pattern + ... + last, at index l
Cost: that of its layers

    layers.first=[base] 'layers.pattern=[near,near,far]' layers.kinds.near.token_mixer=windowed_attention \
        layers.kinds.far.position=none

    layer    0      1      2      3      4      5      6
    kind     base   near   near   far    near   near   far

A kind is a list of overrides over the config's own position, token_mixer, channel_mixer, norm and block, as an arm of a
sweep is; `base` is a layer without overrides.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from blockyard.contracts import BASE_KIND, Kind, Layers, Text

NO_KINDS = MappingProxyType[str, Kind]({})


class Pattern(Layers):
    """Layers of several kinds. Without a pattern all layers are alike.

    Positions that are added to tokens before the first layer come from the config's own scheme, in every kind.

    Options:
        pattern: names of kinds, repeated over the layers between `first` and `last`; base is a layer as the config says
        first: names of the kinds of the first layers
        last: names of the kinds of the last layers
        kinds: overrides by name of the kind, such as far: [position=none]; of position, token_mixer, channel_mixer,
            norm and block
    """

    def __init__(
        self,
        *,
        pattern: tuple[Text, ...] = (),
        first: tuple[Text, ...] = (),
        last: tuple[Text, ...] = (),
        kinds: dict[str, Kind] = NO_KINDS,  # type: ignore[assignment]
    ) -> None:
        self.pattern = pattern
        self.first = first
        self.last = last
        self.kinds = kinds
        named = dict.fromkeys((*first, *pattern, *last))
        unknown = [name for name in named if name != BASE_KIND and name not in kinds]
        if unknown:
            raise ValueError(
                f"layers names the kind {unknown[0]!r}, which is not in layers.kinds; kinds are "
                f"{', '.join((BASE_KIND, *kinds))}; describe it with layers.kinds.{unknown[0]}=[token_mixer=conv]"
            )
        if BASE_KIND in kinds:
            raise ValueError(f"layers.kinds.{BASE_KIND} is a layer as the config says; use another name for this kind")
        unused = [name for name in kinds if name not in named]
        if unused:
            raise ValueError(
                f"layers.kinds.{unused[0]} is in none of layers.pattern, layers.first and layers.last, so no layer "
                f"would be of this kind; use layers.pattern=[{BASE_KIND},{unused[0]}]"
            )

    def names(self, depth: int) -> tuple[str, ...]:
        """Return the kind of each layer. Raises ValueError for a depth without some kind, or too small for the ends."""
        repeated = depth - len(self.first) - len(self.last)
        if repeated < 0:
            raise ValueError(
                f"layers.first and layers.last name {len(self.first) + len(self.last)} layers and the model has "
                f"{depth}; use a depth of {len(self.first) + len(self.last)} or more"
            )
        pattern = self.pattern or (BASE_KIND,)
        between = tuple(pattern[layer % len(pattern)] for layer in range(repeated))
        names = (*self.first, *between, *self.last)
        absent = [kind for kind in dict.fromkeys((*self.kinds, *self.pattern)) if kind not in names]
        if absent:
            least = len(self.first) + len(self.last) + self.pattern.index(absent[0]) + 1
            raise ValueError(
                f"layers.pattern: {absent[0]} is the kind of none of the {depth} layers; use a depth of {least} or "
                "more, or a shorter pattern"
            )
        return names

    def problems(self, data: Any, objective: Any, architecture: Any) -> list[str]:
        """Return the reasons why this pattern does not fit the depth of a model, as sentences."""
        problems = []
        depths: list[int | None] = [getattr(architecture, name, None) for name in ("depth", "encoder_depth")]
        for depth in dict.fromkeys(depth for depth in depths if depth is not None):
            try:
                self.names(depth)
            except ValueError as error:
                problems.append(str(error))
        return problems
