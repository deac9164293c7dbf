"""Queries, keys, values, outputs and MLPs are convolutions of size one over tokens: equal weights, equal outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.block.pre_norm import PreNorm
from blockyard.channel_mixer.glu import GLU
from blockyard.channel_mixer.mlp import MLP
from blockyard.contracts import Seq
from blockyard.norm.layer import Layer
from blockyard.token_mixer.attention import Attention
from tests.components.reference.inputs import stirred
from tests.support.helpers import context

D, HEADS, ROWS, COLUMNS = 16, 4, 3, 5


def feature_map(x: Tensor) -> Tensor:
    """Tokens (B, N, C) as an image of C channels: (B, C, rows, columns)."""
    return x.transpose(1, 2).unflatten(2, (ROWS, COLUMNS))


def pixels(image: Tensor) -> Tensor:
    """The pixels of an image (B, C, rows, columns) as tokens: (B, N, C)."""
    return image.flatten(2).transpose(1, 2)


def convolved(image: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A convolution with the weights (E, C) of a linear map: (B, C, ...) -> (B, E, ...)."""
    return F.conv2d(image, weight[:, :, None, None], bias)


def attention_by_convolutions(image: Tensor, mixer: Attention) -> Tensor:
    """Attention between the pixels of an image, whose four maps are convolutions."""
    qkv = convolved(image, mixer.proj_in.weight, mixer.proj_in.bias)
    q, k, v = (pixels(part).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in qkv.split(mixer.widths, dim=1))
    read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return convolved(feature_map(read), mixer.proj_out.weight, mixer.proj_out.bias)


def mlp_by_convolutions(image: Tensor, mlp: MLP) -> Tensor:
    """Two convolutions with an activation between them."""
    hidden = F.gelu(convolved(image, mlp.proj_in.weight, mlp.proj_in.bias))
    return convolved(hidden, mlp.proj_out.weight, mlp.proj_out.bias)


def tokens_of_an_image() -> tuple[Tensor, Seq]:
    """Tokens (2, N, D) and the facts of their grid."""
    coords = torch.cartesian_prod(torch.arange(ROWS), torch.arange(COLUMNS)).double()[None]
    x = torch.randn(2, ROWS * COLUMNS, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x, Seq(torch.arange(ROWS * COLUMNS), coords, grid=(ROWS, COLUMNS))


@pytest.mark.parametrize("bias", [False, True])
def test_attention(bias: bool) -> None:
    mixer = stirred(Attention(context(axes=2, grid=(ROWS, COLUMNS)), bias=bias))
    x, seq = tokens_of_an_image()
    assert_close(mixer(x, seq), pixels(attention_by_convolutions(feature_map(x), mixer)))


@pytest.mark.parametrize("bias", [False, True])
def test_mlp(bias: bool) -> None:
    mlp = stirred(MLP(context(), bias=bias))
    x, _ = tokens_of_an_image()
    assert_close(mlp(x), pixels(mlp_by_convolutions(feature_map(x), mlp)))


def test_a_gated_mlp() -> None:
    glu = stirred(GLU(context()))
    x, _ = tokens_of_an_image()
    gate, value = convolved(feature_map(x), glu.proj_in.weight, glu.proj_in.bias).chunk(2, dim=1)
    assert_close(glu(x), pixels(convolved(F.silu(gate) * value, glu.proj_out.weight, glu.proj_out.bias)))


def test_a_block_is_a_convolutional_network_but_for_what_attention_reads() -> None:
    """The norm of a token is one over the channels of each pixel."""
    block = stirred(PreNorm(context(axes=2, grid=(ROWS, COLUMNS)), Attention, MLP, Layer))
    x, seq = tokens_of_an_image()
    image = feature_map(x)
    image = image + attention_by_convolutions(feature_map(block.token_norm(pixels(image))), block.token_mixer)
    image = image + mlp_by_convolutions(feature_map(block.channel_norm(pixels(image))), block.channel_mixer)
    assert_close(block(x, seq), pixels(image))


def test_a_convolution_of_size_three_is_none_of_them() -> None:
    """Planted: a neighbour is read, which no map of each token alone does."""
    mlp = stirred(MLP(context()))
    x, _ = tokens_of_an_image()
    wide = F.pad(mlp.proj_in.weight[:, :, None, None], (1, 1, 1, 1), value=0.01)
    hidden = F.gelu(F.conv2d(feature_map(x), wide, mlp.proj_in.bias, padding=1))
    with pytest.raises(AssertionError):
        assert_close(mlp(x), pixels(convolved(hidden, mlp.proj_out.weight, mlp.proj_out.bias)))
