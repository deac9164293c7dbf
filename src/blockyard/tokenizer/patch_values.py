"""Square patches of gray levels as vectors of real values, so that a decoder writes images without a vocabulary.

Source: Tschannen et al. 2024, GIVT: Generative Infinite-Vocabulary Transformers (arXiv 2312.02116), section 3, on
    patches in place of latents
Reference: timm layers/patch_embed.py (PatchEmbed)
Equation: x_n = W patch_n + b, of values from -1 to 1; the start token is a learned vector, of each class with
    condition=class
Cost: that of a model over (height / size) x (width / size) tokens
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, Side, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.linear import Linear
from blockyard.tokenizer._grid import patch_grid
from blockyard.tokenizer._image_tokens import ImageTokens, StartedEmbedder


class PatchValues(ImageTokens):
    """One token per square patch, the start token before them. Nothing is lost, and nothing is learned.

    A token is (C size size) gray levels: channel, row, column. Every value of a start token is the number of levels
    plus the class.

    Options:
        size: side of a patch in pixels; must divide height and width
    """

    unit: ClassVar[str] = "dim"

    @with_options_of(ImageTokens)
    def __init__(self, *, size: Side = 4, **options: Any) -> None:
        super().__init__(**options)
        self.size = size

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per patch, on a grid with two axes. Raises ValueError unless `size` divides both sides."""
        if data.levels is None:
            raise ValueError("tokenizer=patch_values reads gray levels, and this data gives images without them")
        patches = patch_grid(data, self.size, "tokenizer.size")
        rows, columns = patches.grid
        patch = patches.patch
        assert patch is not None
        self.shape = data.shape
        self.rows = rows
        self.item = (math.prod(patch),)
        layout = self.layout(data, (rows, columns), data.levels)
        return replace(layout, vocabulary=None, predicted=None, patch=patch)

    def fit(self, images: Tensor) -> None:
        """Do nothing: levels are not learned."""

    def encode_cells(self, images: Tensor) -> Tensor:
        """Return the levels of each patch: (B, N, V)."""
        cut = images.unflatten(3, (-1, self.size)).unflatten(2, (-1, self.size))  # (B, C, rows, size, columns, size)
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(len(images), -1, *self.item).long()

    def decode_cells(self, token_ids: Tensor) -> Tensor:
        """Return the patches (B, N, V) side by side. A value between two levels becomes the lower one."""
        cells = token_ids.view(len(token_ids), self.rows, -1, self.shape[0], self.size, self.size)
        images = cells.permute(0, 3, 1, 4, 2, 5).reshape(-1, *self.shape)
        return images.floor().clamp(0, self.levels - 1).to(torch.uint8)

    def embedder(self, ctx: Context) -> PatchValueEmbedder:
        """Build the linear projection of patches, and the vectors of start tokens."""
        classes = ctx.data.classes if self.condition == "class" else 1
        assert classes is not None
        return PatchValueEmbedder(ctx, self.cells, self.levels, classes)


class PatchValueEmbedder(StartedEmbedder):
    """Projects patches (B, N, V) to D, and looks start tokens up in a table."""

    def __init__(self, ctx: Context, cells: Tensor, levels: int, classes: int) -> None:
        assert ctx.tokens.patch is not None
        values = math.prod(ctx.tokens.patch)
        super().__init__(ctx, cells, (values,))
        self.levels = levels
        self.proj = Linear(values, ctx.dim, bias=True, std=ctx.input_std * values**-0.5, role="input")
        self.start = nn.Embedding(classes, ctx.dim)

    def vectors(self, inputs: Tensor) -> Tensor:
        """Levels (B, N, V) int64 -> (B, N, D)."""
        # A start token has a value above every level, in place of a flag beside the values.
        number = inputs[..., 0] - self.levels  # (B, N), the class of a start token
        values = inputs.clamp_max(self.levels - 1) * (2 / (self.levels - 1)) - 1  # from -1 to 1
        patches = self.proj(values.to(self.proj.weight.dtype))  # (B, N, D)
        starts = self.start(number.clamp_min(0))
        return torch.where((number >= 0)[..., None], starts.to(patches.dtype), patches)
