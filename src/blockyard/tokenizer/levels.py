"""Gray levels of pixels as token ids, so that a decoder gives a probability to every image.

Source: van den Oord et al. 2016, Pixel Recurrent Neural Networks (arXiv 1601.06759), section 2: a softmax over the
    levels of each pixel; Chen et al. 2020, Generative Pretraining from Pixels (iGPT), section 2.1, for transformers
Reference: transformers ImageGPTForCausalImageModeling
Equation: p(image) = product over n of p(x_n | x_1 .. x_{n-1}), x_n the level of pixel n
Cost: that of a model over height x width tokens
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import DataSpec, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.tokenizer._image_tokens import ImageTokens


class Levels(ImageTokens):
    """One token per pixel of gray images, the start token before them.

    Options:
        levels: number of gray levels that the levels of the data are reduced to, in steps of equal size; null keeps all
    """

    unit: ClassVar[str] = "dim"

    @with_options_of(ImageTokens)
    def __init__(
        self,
        *,
        levels: Annotated[int, Ge(2), Le(256)] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.kept = levels

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per pixel, on a grid with two axes. Raises ValueError for images with colors."""
        channels, height, width = data.shape
        if data.levels is None:
            raise ValueError("tokenizer=levels reads gray levels, and this data gives images without them")
        if channels != 1:
            raise ValueError(
                f"tokenizer=levels reads gray images; with {channels} channels each pixel would be {channels} tokens, "
                f"{channels} x {height} x {width} = {channels * height * width:,} in all; use gray images "
                "(data.channels=1 where the data has it) or tokenizer=patch_codes"
            )
        if self.kept is not None and self.kept > data.levels:
            raise ValueError(
                f"tokenizer.levels={self.kept} is more than the {data.levels} gray levels of the data; use at most "
                f"{data.levels}, or null"
            )
        self.shape = data.shape
        return self.layout(data, (height, width), self.kept or data.levels)

    def fit(self, images: Tensor) -> None:
        """Do nothing: levels are not learned."""

    def encode_cells(self, images: Tensor) -> Tensor:
        """Return the reduced level of each pixel: (B, N)."""
        return (images.long() * self.codes // self.levels).flatten(1)

    def decode_cells(self, token_ids: Tensor) -> Tensor:
        """Return gray levels of the data, from black to white: (B, 1, height, width)."""
        gray = (token_ids * (self.levels - 1) / (self.codes - 1)).round()
        return gray.to(torch.uint8).view(-1, *self.shape)
