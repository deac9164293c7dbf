"""U-net: blocks of the second half also read the output of their mirror image in the first half.

Source: Bao et al. 2023, All are Worth Words: A ViT Backbone for Diffusion Models (arXiv 2209.12152), figure 1; added
    with a trained weight as in Jordan et al. 2024, modded-nanogpt (github.com/KellerJordan/modded-nanogpt)
Reference: the equation; x-transformers AttentionLayers(unet_skips=True) for the pairs of outputs; it concatenates them
Equation: x_{l+1} = block_l(x_l + w_l x_{L-l})  for visits l = ceil(L / 2) .. L - 1, x_{l+1} the output of visit l
Cost: O(N D) time, one parameter for each visit of the second half; L / 2 outputs are kept

    0 --> 1 --> 2 --> 3 --> 4 --> 5        L = 6: visit 3 also reads the output of 2, 4 of 1, 5 of 0
    |     |     +-----^     ^     ^
    |     +-----------------+     |
    +-----------------------------+
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, NonNegative, Residual, Role
from blockyard.weight_init import Init


class KeptOutputs(NamedTuple):
    """The stream (B, N, D), and the outputs of the first half that no visit has read yet, the latest last."""

    stream: Tensor
    kept: tuple[Tensor, ...] = ()


class UNet(Residual):
    """With an odd number of visits, the middle one has no mirror image.

    Options:
        start: initial weight of the outputs of the first half
    """

    roles: ClassVar[dict[str, Role]] = {"weights": "fixed"}

    def __init__(self, ctx: Context, *, start: NonNegative = 1.0) -> None:
        super().__init__(ctx)
        self.pairs = ctx.visits // 2
        self.second = ctx.visits - self.pairs  # the first visit of the second half
        self.start = start
        self.weights = nn.Parameter(torch.empty(self.pairs))
        if not self.pairs:
            raise ValueError("residual=unet joins the two halves of a model, and one visit of a block has none")

    def init_weights(self, init: Init) -> None:
        """Set every weight to `start`."""
        init.constant("weights", self.start)

    def open(self, x: Tensor) -> KeptOutputs:
        """Return the embedded tokens as the stream."""
        return KeptOutputs(x)

    def read(self, state: KeptOutputs, visit: int) -> tuple[Tensor, KeptOutputs]:
        """Return the stream (B, N, D), in the second half with the latest kept output added to it."""
        if visit < self.second:
            return state.stream, state
        x = state.stream + self.weights[visit - self.second] * state.kept[-1]
        return x, KeptOutputs(x, state.kept[:-1])  # each output is read once, the latest first

    def write(self, state: KeptOutputs, visit: int, x: Tensor, output: Tensor) -> KeptOutputs:
        """Return the output as the stream. An output of the first half is also kept."""
        kept = (*state.kept, output) if visit < self.pairs else state.kept
        return KeptOutputs(output, kept)

    def close(self, state: KeptOutputs) -> Tensor:
        """Return the stream."""
        return state.stream
