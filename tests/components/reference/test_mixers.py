"""Token MLP, Fourier and pooling against timm and numpy; causal and padded forms against a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from timm.models.metaformer import Pooling
from timm.models.mlp_mixer import MixerBlock
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.token_mixer.fourier import Fourier
from blockyard.token_mixer.pool import Pool
from blockyard.token_mixer.token_mlp import TokenMLP
from tests.components.reference.inputs import sequence
from tests.support.helpers import context, stir, tiny

D = 16


def test_token_mlp_in_a_mixer_block() -> None:
    """A pre-norm block with a biased MLP is timm's MixerBlock."""
    theirs = MixerBlock(D, 6).double().eval()
    block = tiny(token_mixer="token_mlp", options={"channel_mixer": {"bias": True}}).blocks[0]
    block.token_norm.eps = block.channel_norm.eps = 1e-6
    names = {
        "norm1": block.token_norm,
        "mlp_tokens.fc1": block.token_mixer.expand,
        "mlp_tokens.fc2": block.token_mixer.contract,
        "norm2": block.channel_norm,
        "mlp_channels.fc1": block.channel_mixer.proj_in,
        "mlp_channels.fc2": block.channel_mixer.proj_out,
    }
    for name, ours in names.items():
        theirs.get_submodule(name).load_state_dict(ours.state_dict())
    x = torch.randn(2, 6, D, dtype=torch.float64)
    assert_close(block(x, sequence(6)), theirs(x))


@pytest.mark.parametrize("scale", ["ortho", "none"])
def test_fourier(scale: str) -> None:
    x = torch.randn(2, 6, D, dtype=torch.float64)
    expected = np.fft.fft(np.fft.fft(x.numpy(), axis=-1), axis=-2).real
    if scale == "ortho":
        expected = expected / np.sqrt(6 * D)
    assert_close(Fourier(context(), scale=scale)(x, sequence(6)), torch.from_numpy(expected))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_pool_on_a_grid(size: int) -> None:
    images = torch.randn(2, D, 5, 4, dtype=torch.float64)
    x = images.flatten(2).transpose(1, 2)  # (B, N, D)
    rows, cols = torch.meshgrid(torch.arange(5), torch.arange(4), indexing="ij")
    coords = torch.stack([rows, cols], -1).reshape(1, 20, 2).double()
    mixer = Pool(context(axes=2, grid=(5, 4)), size=size)
    expected = Pooling(size)(images).flatten(2).transpose(1, 2)
    assert_close(mixer(x, Seq(torch.arange(20), coords, grid=(5, 4))), expected)
    assert_close(mixer(x, Seq(torch.arange(20), coords)), expected)  # by coordinates


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [3, 5])
def test_pool_on_a_line(size: int, causal: bool) -> None:
    """A loop over tokens, with padding and documents."""
    n, reach = 7, size // 2
    x = torch.randn(2, n, D, dtype=torch.float64)
    valid = torch.arange(n) < torch.tensor([[7], [5]])
    segment = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])
    out = Pool(context(causal=causal), size=size)(x, sequence(n, valid, segment))
    for b in range(2):
        for t in range(int(valid[b].sum())):
            near = [
                x[b, s]
                for s in range(n)
                if abs(s - t) <= reach and valid[b, s] and segment[b, s] == segment[b, t] and (s <= t or not causal)
            ]
            assert_close(out[b, t], torch.stack(near).mean(0) - x[b, t])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [3, 5])
def test_pool_on_a_grid_of_documents(size: int, causal: bool) -> None:
    """A loop over the tokens of grids with two documents each, one of them padded at the end."""
    rows, cols, reach = 3, 4, size // 2
    n = rows * cols
    coords = torch.cartesian_prod(torch.arange(rows), torch.arange(cols))
    segment = torch.stack([torch.arange(n) // 5, (coords[:, 1] > 1).long()])
    valid = torch.arange(n) < torch.tensor([[12], [9]])
    x = torch.randn(2, n, D, dtype=torch.float64)
    mixer = Pool(context(causal=causal, axes=2, grid=(rows, cols)), size=size)
    for real in (None, valid):
        seq = Seq(torch.arange(n), coords.double()[None], real, segment, grid=(rows, cols))
        out = mixer(x, seq)
        for b in range(2):
            for t in range(n if real is None else int(real[b].sum())):
                near = [
                    x[b, s]
                    for s in range(n)
                    if (coords[s] - coords[t]).abs().max() <= reach
                    and (real is None or real[b, s])
                    and segment[b, s] == segment[b, t]
                    and (s <= t or not causal)
                ]
                assert_close(out[b, t], torch.stack(near).mean(0) - x[b, t])


def test_planted_border_is_caught() -> None:
    """Planted: the border counts as zeros, the default of `avg_pool2d`."""
    images = torch.randn(1, D, 3, 3, dtype=torch.float64)
    ours = stir(Pool(context(axes=2, grid=(3, 3))))
    x = images.flatten(2).transpose(1, 2)
    coords = torch.cartesian_prod(torch.arange(3), torch.arange(3)).double()[None]
    wrong = torch.nn.functional.avg_pool2d(images, 3, 1, 1) - images
    with pytest.raises(AssertionError):
        assert_close(ours(x, Seq(torch.arange(9), coords, grid=(3, 3))), wrong.flatten(2).transpose(1, 2))


def test_token_mlp_takes_one_length() -> None:
    mixer = TokenMLP(context())
    with pytest.raises(ValueError, match="built for 6 tokens and got 5"):
        mixer(torch.randn(1, 5, D), sequence(5))
