"""Values of an input by patch, the unit of `TokenSpec.patch`: cut out, put back, erased."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, TokenSpec


def patch_size(name: str, data: DataSpec, tokens: TokenSpec) -> int:
    """Return V, the number of values of a patch.

    Raises ValueError for tokens without values of their own, and for inputs of different lengths.
    """
    if tokens.patch is None:
        raise ValueError(
            f"objective={name} predicts the values of patches, and the tokens that this tokenizer makes of "
            f"{data.things} share theirs; use tokenizer=patch for images, tokenizer=series_patch with patches side by "
            "side for series (tokenizer.stride=SIZE tokenizer.pad_end=false)"
        )
    if tokens.variable:
        raise ValueError(f"objective={name} needs {data.things} of one length")
    return math.prod(tokens.patch)


def mean_squared(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error over the values of `target` that are not NaN. Both have one shape."""
    counted = Batch.counted(target)
    error = prediction - target.masked_fill(~counted, 0.0)
    return error.square().masked_fill(~counted, 0.0).sum() / counted.sum()


def floats(inputs: Tensor) -> Tensor:
    """Return inputs as a model reads them: bytes divided by 255."""
    if inputs.dtype == torch.uint8:
        return inputs / 255
    return inputs


def cut(inputs: Tensor, tokens: TokenSpec) -> Tensor:
    """Return the values of each token (B, N, V) of images (B, C, height, width) or series (B, steps, C).

    Values are in the order channel, row, column of an image, or step, channel of a series, and NaN for pixels that the
    tokenizer adds around an image.
    """
    assert tokens.patch is not None
    if tokens.axes == 1:
        size, channels = tokens.patch
        last = inputs[:, -size * tokens.max_len :]  # the first steps may fill no patch
        return last.unflatten(1, (tokens.max_len, size)).flatten(2)  # (B, N, V)
    (rows, cols), (channels, side, _) = tokens.grid, tokens.patch
    if tokens.padding is not None:
        inputs = F.pad(inputs, tokens.padding, value=float("nan"))
    squares = inputs.reshape(-1, channels, rows, side, cols, side)
    return squares.permute(0, 2, 4, 1, 3, 5).reshape(-1, rows * cols, channels * side * side)  # (B, N, V)


def join(values: Tensor, inputs: Tensor, tokens: TokenSpec) -> Tensor:
    """Return `inputs` with these values (B, N, V) of their tokens: the inverse of `cut`."""
    assert tokens.patch is not None
    if tokens.axes == 1:
        size, channels = tokens.patch
        series = values.unflatten(2, (size, channels)).flatten(1, 2)  # (B, N size, C)
        return torch.cat([inputs[:, : inputs.shape[1] - series.shape[1]], series], dim=1)
    (rows, cols), (channels, side, _) = tokens.grid, tokens.patch
    squares = values.reshape(-1, rows, cols, channels, side, side)
    images = squares.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, rows * side, cols * side)  # with the padding
    left, _, top, _ = tokens.padding or (0, 0, 0, 0)
    return images[:, :, top : top + inputs.shape[2], left : left + inputs.shape[3]]


def erase(inputs: Tensor, hidden: Tensor, tokens: TokenSpec) -> Tensor:
    """Return the inputs without the values of hidden tokens (B, N): zero in images, missing (NaN) in series."""
    # The mask token alone would not hide them from tokenizers that read beyond a token: a convolution reads its
    # neighbours, a normalisation the whole series.
    value = float("nan") if tokens.axes == 1 else 0.0
    return join(cut(inputs, tokens).masked_fill(hidden[..., None], value), inputs, tokens)
