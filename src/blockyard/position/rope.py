"""Rotary positions (RoPE): queries and keys rotate with their position, so scores depend on differences only.

Source: Su et al. 2021, RoFormer (arXiv 2104.09864), eq. 34; axial 2-D form as in Heo et al. 2024, Rotary Position
    Embedding for Vision Transformer (arXiv 2403.13298); scaled forms as in Peng et al. 2023, YaRN (arXiv 2309.00071)
Reference: transformers modeling_rope_utils.py (halves layout); timm layers/pos_embed_sincos.py
Equation: q_t -> R(coords_t) q_t, k_t -> R(coords_t) k_t, R rotates channel pair i by p base^(-2i / K)
Cost: O(N K) time in each layer, no parameters

A scaling factor s reads a sequence as if it were s times shorter. It is `factor` times the ratio of the sequence
lengths of evaluation and training (trainer.extrapolate):

    linear   every pair rotates s times slower (Chen et al. 2023, Position Interpolation, arXiv 2306.15595)
    ntk      the base grows, so that the slowest pair rotates s times slower and the fastest keeps its speed
    yarn     pairs that rotate often within a training sequence stay, pairs that rotate less than once are slowed by
             s, and pairs between are blended; scores grow by (0.1 ln s + 1)^2
    llama3   as yarn, with `low` and `high` rotations in place of 1 and 32, blended along rotations in place of pairs,
             and scores stay (Grattafiori et al. 2024, The Llama 3 Herd of Models, arXiv 2407.21783, and its code)
    none     with `factors` pair i is slowed by factors[i], found by a search, at every length; scores grow by
             1 + ln s / ln original (Ding et al. 2024, LongRoPE, arXiv 2402.13753)

GPT-NeoX rotates a fraction of the channels (Black et al. 2022, arXiv 2204.06745).

In training a model may see other coordinates c of the tokens, drawn anew in each forward pass and the same in all
layers (Simeoni et al. 2025, DINOv3, arXiv 2508.10104, section 3.2; transformers DINOv3ViTRopePositionEmbedding). With
u = (c - centre) / (n / 2) on an axis of n tokens, u becomes

    (u + s) j r    s uniform in [-shift, shift] and ln j in [-ln jitter, ln jitter], of each axis; ln r in
                   [-ln rescale, ln rescale] of all axes
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from annotated_types import Ge, MaxLen, MinLen
from torch import Tensor

from blockyard.contracts import Context, Length, NonNegative, Positive
from blockyard.position._rotary import Rotary, Share

Factors = Annotated[tuple[Annotated[Positive, Ge(1)], ...], MinLen(1), MaxLen(4_096)]
Stretch = Annotated[Positive, Ge(1)]
FAST = 32  # rotations within a sequence above which YaRN keeps a pair
SLOW = 1  # rotations below which it slows a pair fully


class Rope(Rotary):
    """The channels of a head are divided among the axes; channel i rotates with channel i + half.

    Prefix tokens do not rotate. Scores between tokens depend on their offset only; a score with a prefix token also
    depends on the position of the other token.

    Options:
        base: the slowest pair rotates once in about 2 pi base tokens; null means 10000 on a line, and 100 on a grid
            with its shorter sides
        fraction: share of a head's channels that rotate, the first ones
        scaling: the way in which sequences are read as if they were shorter; none does not scale
        factor: scaling factor in training and evaluation alike
        original: tokens of a side that the unscaled frequencies are for, in yarn, llama3 and LongRoPE; null is the
            length of the data over `factor`
        low: rotations within `original` below which llama3 slows a pair fully
        high: rotations within `original` above which llama3 leaves a pair alone
        factors: factors of LongRoPE, 1 or more, one for each pair of channels that rotates; with scaling=none
        gain: factor of yarn and LongRoPE on rotated queries and keys; null is the factor of their papers
        truncate: yarn blends from a whole pair to a whole pair; false does so from and to fractions, as in gpt-oss
        shift: largest shift of coordinates in training, in halves of a side; only scores with prefix tokens feel it
        jitter: largest factor by which an axis is stretched or shrunk in training; 2 in DINOv3
        rescale: largest factor by which all axes are stretched or shrunk in training; 2 in DINOv3
    """

    def __init__(
        self,
        ctx: Context,
        *,
        base: Positive | None = None,
        fraction: Share = 1.0,
        scaling: Literal["none", "linear", "ntk", "yarn", "llama3"] = "none",
        factor: Annotated[Positive, Ge(1)] = 1.0,
        original: Length | None = None,
        low: Positive = 1.0,
        high: Positive = 4.0,
        factors: Factors | None = None,
        truncate: bool = True,
        gain: Positive | None = None,
        shift: NonNegative = 0.0,
        jitter: Stretch = 1.0,
        rescale: Stretch = 1.0,
    ) -> None:
        super().__init__(ctx, name="rope", base=base, fraction=fraction)
        if scaling == "none" and factors is None and factor != 1:
            raise ValueError(
                f"position.factor={factor:g} has no effect with position.scaling=none; use position.scaling="
                "linear, ntk, yarn or llama3, position.factors, or position.factor=1"
            )
        if original is not None and scaling not in ("yarn", "llama3") and factors is None:
            raise ValueError(f"position.original has no effect with position.scaling={scaling}; leave it out")
        if original == 1 and factors is not None:
            raise ValueError("position.original=1: a text of one token has no length to scale from; use 2 or more")
        if scaling == "llama3" and low >= high:
            raise ValueError(f"position.low={low:g} must be less than position.high={high:g}")
        if factors is not None and scaling != "none":
            raise ValueError(f"position.factors is a scaling of its own; leave out position.scaling={scaling}")
        if scaling == "yarn" and self.base <= 1:
            raise ValueError(f"position.base={self.base:g} with position.scaling=yarn must be larger than 1")
        if not truncate and scaling != "yarn":
            raise ValueError(f"position.truncate=false has no effect with position.scaling={scaling}; leave it out")
        if gain is not None and scaling != "yarn" and factors is None:
            raise ValueError(f"position.gain={gain:g} has no effect with position.scaling={scaling}; leave it out")
        self.scaling = scaling
        self.factor = factor
        self.truncate = truncate
        self.gain = gain
        # Lengths that the unscaled frequencies are for.
        self.sides = [original or side / factor for side in ctx.tokens.grid]
        self.low = low
        self.high = high
        self.factors = None if factors is None else tuple(factors)
        self.shift = shift
        self.jitter = jitter
        self.rescale = rescale
        self.grid = ctx.tokens.grid
        self.varies = bool(shift) or jitter > 1 or rescale > 1

    def vary(self, coords: Tensor) -> Tensor:
        """Return coords (B|1, N, A) as one draw changes them, the same for all samples."""
        half = torch.tensor(self.grid, dtype=coords.dtype, device=coords.device) / 2  # (A,)
        middle = half - 0.5
        relative = (coords - middle) / half  # u, from -1 to 1 within the grid
        if self.shift:
            relative = relative + relative.new_empty(1, self.num_axes).uniform_(-self.shift, self.shift)
        for largest, count in ((self.jitter, self.num_axes), (self.rescale, 1)):
            if largest > 1:  # uniform in the logarithm, so that stretching is as likely as shrinking
                bound = math.log(largest)
                relative = relative * relative.new_empty(1, count).uniform_(-bound, bound).exp()
        return middle + half * relative  # (B|1, N, A)

    def check_width(self, width: int) -> None:
        """Raise ValueError if channels do not pair up, or `ntk` would have no pair to slow."""
        super().check_width(width)
        if self.scaling == "ntk" and self.rotated_width(width) < 4 * self.num_axes:
            raise ValueError(
                "position.scaling=ntk slows all pairs but the first, and a head has one pair for each axis; "
                "use wider heads or position.scaling=linear"
            )
        pairs = self.rotated_width(width) // (2 * self.num_axes)
        if self.factors is not None and len(self.factors) != pairs:
            raise ValueError(f"position.factors has {len(self.factors)} factors, and {pairs} pairs of channels rotate")

    @property
    def scales_length(self) -> bool:
        """Return whether longer sequences are scaled."""
        return self.scaling != "none" or self.factors is not None

    def angles(self, coords: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine (B|1, 1, N, A, half), in YaRN and LongRoPE times their attention scale."""
        cos, sin = super().angles(coords, like)
        scale = self.factor * self.length_scale
        if self.gain is not None:
            return cos * self.gain, sin * self.gain
        if scale == 1 or not (self.scaling == "yarn" or self.factors is not None):
            return cos, sin
        if self.factors is None:
            gain = 0.1 * math.log(scale) + 1
        else:
            gain = math.sqrt(1 + math.log(scale) / math.log(max(self.sides)))
        return cos * gain, sin * gain

    def frequencies(self, step: Tensor) -> Tensor:
        """Return radians per position of the pairs at step (half,) in [0, 1): (half,) or (A, half)."""
        scale = self.factor * self.length_scale
        if self.factors is not None:
            return self.base**-step / torch.tensor(self.factors, dtype=step.dtype, device=step.device)
        if self.scaling == "none" or scale == 1:
            return self.base**-step
        if self.scaling == "ntk":
            # At the last of n pairs, step (n - 1) / n, the new base gives 1 / scale of the old frequency.
            return (self.base * scale ** (len(step) / (len(step) - 1))) ** -step
        plain = self.base**-step
        if self.scaling == "linear":
            return plain / scale
        ramp = self._slowed if self.scaling == "yarn" else self._slowed_by_rotations
        slowed = torch.stack([ramp(side, step) for side in self.sides])  # (A, half), 0 to 1
        return plain * (1 - slowed) + plain / scale * slowed

    def _slowed(self, side: float, step: Tensor) -> Tensor:
        """Return YaRN's ramp (half,): 0 for pairs that rotate often within `side` positions, 1 for slow ones."""
        # Steps at which a pair rotates FAST and SLOW times, of base^-step = 2 pi rotations / side.
        bounds = [math.log(side / (rotations * 2 * math.pi)) / math.log(self.base) for rotations in (FAST, SLOW)]
        half = len(step)
        low, high = (half * bound for bound in bounds)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low = max(low, 0)
        high = max(min(high, 2 * half - 1), low)
        return ((step * half - low) / (high - low or 0.001)).clamp(0, 1)

    def _slowed_by_rotations(self, side: float, step: Tensor) -> Tensor:
        """Return Llama 3's ramp (half,), linear in the number of rotations within `side` positions."""
        rotations = side * self.base**-step / (2 * math.pi)
        return ((self.high - rotations) / (self.high - self.low)).clamp(0, 1)
