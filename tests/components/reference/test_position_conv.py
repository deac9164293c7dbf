"""Convolutional positions against transformers and a loop over neighbours."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import Wav2Vec2Config
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2PositionalConvEmbedding

from blockyard.contracts import Seq
from blockyard.position.conv import Conv
from blockyard.weight_init import initialise
from tests.support.helpers import context, stir


def sequence(axes: int, tokens: int) -> Seq:
    coords = torch.zeros(1, tokens, axes, dtype=torch.float64)
    return Seq(torch.arange(tokens), coords, grid=(tokens,) if axes == 1 else (2, 3))


@pytest.mark.parametrize("kernel", [3, 4, 16])
def test_on_a_line_it_is_that_of_transformers(kernel: int) -> None:
    config = Wav2Vec2Config(
        hidden_size=16, num_conv_pos_embeddings=kernel, num_conv_pos_embedding_groups=4, feat_extract_activation="gelu"
    )
    theirs = stir(Wav2Vec2PositionalConvEmbedding(config)).double()
    ours = Conv(context(), kernel=kernel, groups=4).double()
    with torch.no_grad():
        ours.weight.copy_(theirs.conv.weight)  # with the norm of each offset applied
        ours.constant.copy_(theirs.conv.bias)
    x = torch.randn(2, 11, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(ours.embed_neighbours(x, sequence(1, 11)), x + theirs(x))
    with torch.no_grad():
        ours.weight[0, 0, 0] += 1
    assert not torch.allclose(ours.embed_neighbours(x, sequence(1, 11)), x + theirs(x))


def test_on_a_grid_it_is_the_encoding_of_cpvt() -> None:
    ours = stir(initialise(Conv(context(axes=2), kernel=3, activation="none"), 0)).double()
    x = torch.randn(2, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    image = x.transpose(1, 2).unflatten(2, (2, 3))
    expected = F.conv2d(image, ours.weight.unflatten(2, (3, 3)), ours.constant, padding=1, groups=16)
    assert_close(ours.embed_neighbours(x, sequence(2, 6)), x + expected.flatten(2).transpose(1, 2))


@pytest.mark.parametrize(("groups", "kernel"), [(1, 3), (4, 4), (None, 5)])
def test_packed_documents_are_convolved_apart(groups: int | None, kernel: int) -> None:
    ours = stir(initialise(Conv(context(), kernel=kernel, groups=groups), 0)).double()
    x = torch.randn(1, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    seq = sequence(1, 9)
    seq.segment = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    apart = [ours.embed_neighbours(part, sequence(1, part.shape[1])) for part in x.split([4, 5], 1)]
    assert_close(ours.embed_neighbours(x, seq), torch.cat(apart, 1))


def test_groups_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"position.groups=3 does not divide model.dim=16"):
        Conv(context(), groups=3)
