"""What tokenizers of views share: every view of a set becomes one token, whatever their number and order."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Context, DataSpec, Embedder, Seq, TokenSpec


def view_tokens(data: DataSpec) -> TokenSpec:
    """A set of as many tokens as there are views. Raises ValueError where the data has none."""
    if data.modality != "views":
        raise ValueError(f"this tokenizer reads views, the data gives {data.things}")
    return TokenSpec((), variable=data.variable, count=data.shape[0])


class ViewEmbedder(Embedder):
    """Knows the facts of a set; subclasses make the vectors of views, each by itself."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.shape = ctx.data.shape[1:]

    def vectors(self, images: Tensor) -> Tensor:
        """Float images (R, C, height, width) -> (R, D)."""
        raise AssertionError("abstract")

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Inputs (B, W, C, height, width), float, or uint8 which is divided by 255 -> x (B, W, D), Seq.

        Views beyond a row's length are not looked at. Raises ValueError for views of another shape.
        """
        if segment is not None or start:
            raise ValueError("views are one full set; leave segment and cache out")
        if inputs.ndim != 5 or tuple(inputs.shape[2:]) != tuple(self.shape):
            wanted = ", ".join(map(str, self.shape))
            raise ValueError(f"inputs of shape {tuple(inputs.shape)}: this model reads views (batch, views, {wanted})")
        index = torch.arange(inputs.shape[1], device=inputs.device)
        images = inputs / 255 if inputs.dtype == torch.uint8 else inputs
        if lengths is None:
            x = self.vectors(images.flatten(0, 1)).unflatten(0, inputs.shape[:2])  # (B, W, D)
            return x, Seq(index, x.new_zeros((1, len(index), 0)), grid=())
        valid = index < lengths[:, None]  # (B, W)
        found = self.vectors(images[valid])  # (R, D)
        x = found.new_zeros((*valid.shape, found.shape[-1])).masked_scatter(valid[..., None], found)  # (B, W, D)
        return x, Seq(index, x.new_zeros((1, len(index), 0)), valid, grid=())
