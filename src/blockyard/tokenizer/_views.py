"""Shared parts of view tokenizers: each view of a set becomes one token, for any number and order of views."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Context, DataSpec, Embedder, Seq, TokenSpec


def view_tokens(data: DataSpec) -> TokenSpec:
    """Return a set of one token per view. Raises ValueError for data without views."""
    if data.modality != "views":
        raise ValueError(f"this tokenizer reads views, the data gives {data.things}")
    return TokenSpec((), variable=data.variable, count=data.shape[0])


class ViewEmbedder(Embedder):
    """Embeds sets of views. Subclasses compute the vector of each view independently."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        channels, height, width = ctx.data.shape[1:]
        self.shape = (channels, height, width)

    def vectors(self, images: Tensor) -> Tensor:
        """Float images (R, C, height, width) -> (R, D)."""
        raise NotImplementedError

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Inputs (B, W, C, height, width), float, or uint8 to be divided by 255 -> x (B, W, D), Seq.

        Padded views are skipped. Raises ValueError for views of another shape.
        """
        if segment is not None or start:
            raise ValueError("views are one full set; omit segment and cache")
        if inputs.ndim != 5 or tuple(inputs.shape[2:]) != tuple(self.shape):
            shape = ", ".join(map(str, self.shape))
            raise ValueError(f"inputs of shape {tuple(inputs.shape)}: this model reads views (batch, views, {shape})")
        index = torch.arange(inputs.shape[1], device=inputs.device)
        images = inputs / 255 if inputs.dtype == torch.uint8 else inputs
        if lengths is None:
            x = self.vectors(images.flatten(0, 1)).unflatten(0, inputs.shape[:2])  # (B, W, D)
            return x, Seq(index, x.new_zeros((1, len(index), 0)), grid=())
        # Padded views do not pass the network: batch norm would count them, and they cost as much as real ones.
        valid = index < lengths[:, None]  # (B, W)
        vectors = self.vectors(images[valid])  # (R, D)
        x = vectors.new_zeros((*valid.shape, vectors.shape[-1])).masked_scatter(valid[..., None], vectors)  # (B, W, D)
        return x, Seq(index, x.new_zeros((1, len(index), 0)), valid, grid=())
