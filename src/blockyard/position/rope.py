"""Rotary positions: queries and keys turn with their place, so scores see only differences.

Source: Su et al. 2021, RoFormer (arXiv 2104.09864), eq. 34; axial 2-D form as in Heo et al. 2024, Rotary Position
    Embedding for Vision Transformer (arXiv 2403.13298); scaled forms as in Peng et al. 2023, YaRN (arXiv 2309.00071)
Reference: transformers modeling_rope_utils.py (halves layout); timm layers/pos_embed_sincos.py
Equation: q_t -> R(coords_t) q_t, k_t -> R(coords_t) k_t, R turns channel pair i by p base^(-2i / K)
Cost: O(N K) time for each layer, no parameters

A factor s reads a row as if it were s times shorter. It is `factor`, times how much longer than in
training the rows of an evaluation are (trainer.extrapolate):

    linear   every pair turns s times slower (Chen et al. 2023, Position Interpolation, arXiv 2306.15595)
    ntk      the base grows, so that the slowest pair turns s times slower and the fastest hardly at all
    yarn     pairs that turn often within a training row stay, those that turn less than once are slowed
             by s, those between are blended; scores grow by (0.1 ln s + 1)^2

A part of the channels turns in GPT-NeoX (Black et al. 2022, arXiv 2204.06745).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from pydantic import AllowInfNan
from torch import Tensor

from blockyard.contracts import Context, Positive
from blockyard.position._rotary import Rotary, Share

FAST, SLOW = 32, 1  # turns within a row, above and below which YaRN leaves a pair alone and slows it fully


class Rope(Rotary):
    """Channels of a head are shared out over the axes; channel i turns with channel i + half.

    Prefix tokens do not turn. Scores between tokens see only how far they lie apart; a score with a
    prefix token also sees where the token lies.

    Options:
        base: the slowest pair turns once in about 2 pi base tokens; null means 10000 on a line and 100 on
            a grid, whose sides are short
        fraction: share of a head's channels that turn, its first ones
        scaling: how rows are read as if they were shorter; none leaves longer rows as they are
        factor: how many times shorter, in training too
    """

    def __init__(
        self,
        ctx: Context,
        *,
        base: Positive | None = None,
        fraction: Share = 1.0,
        scaling: Literal["none", "linear", "ntk", "yarn"] = "none",
        factor: Annotated[float, Ge(1), AllowInfNan(False)] = 1.0,
    ) -> None:
        super().__init__(ctx, name="rope", base=base, fraction=fraction)
        if scaling == "none" and factor != 1:
            raise ValueError(
                f"position.factor={factor:g} with position.scaling=none is read by nothing; use position.scaling="
                "linear, ntk or yarn, or position.factor=1"
            )
        if scaling == "yarn" and self.base <= 1:
            raise ValueError(f"position.base={self.base:g} with position.scaling=yarn: takes a base larger than 1")
        self.scaling, self.factor = scaling, factor
        self.sides = [side / factor for side in ctx.tokens.grid]  # lengths that the plain frequencies are for

    def check_width(self, width: int) -> None:
        """Raises ValueError where channels do not pair up, and where `ntk` would have no pair to slow."""
        super().check_width(width)
        if self.scaling == "ntk" and self.turned(width) < 4 * self.count:
            raise ValueError(
                "position.scaling=ntk slows all pairs but the first, and a head has one pair for each axis; "
                "use wider heads or position.scaling=linear"
            )

    @property
    def scales_length(self) -> bool:
        """Where there is a `scaling`."""
        return self.scaling != "none"

    def angles(self, coords: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine (B|1, 1, N, A, half); YaRN resizable what they turn."""
        cos, sin = super().angles(coords, like)
        shrink = self.factor * self.length_scale
        if self.scaling != "yarn" or shrink == 1:
            return cos, sin
        longer = 0.1 * math.log(shrink) + 1
        return cos * longer, sin * longer

    def frequencies(self, step: Tensor) -> Tensor:
        """Radians a place, of pairs numbered step (half,) in [0, 1): (half,) or (A, half)."""
        shrink = self.factor * self.length_scale
        if self.scaling == "none" or shrink == 1:
            return self.base**-step
        if self.scaling == "ntk":
            return (self.base * shrink ** (len(step) / (len(step) - 1))) ** -step
        plain = self.base**-step
        if self.scaling == "linear":
            return plain / shrink
        slowed = torch.stack([self._slowed(side, step) for side in self.sides])  # (A, half), 0 to 1
        return plain * (1 - slowed) + plain / shrink * slowed

    def _slowed(self, side: float, step: Tensor) -> Tensor:
        """How far each pair is slowed: 0 for those that turn often within `side` places, 1 for the slow."""
        turns = [math.log(side / (count * 2 * math.pi)) / math.log(self.base) for count in (FAST, SLOW)]
        half = len(step)
        low = max(math.floor(half * turns[0]), 0)
        high = max(min(math.ceil(half * turns[1]), 2 * half - 1), low)
        return ((step * half - low) / (high - low or 0.001)).clamp(0, 1)
