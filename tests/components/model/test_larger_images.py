"""Images of other sizes than the model was built for: the same weights, more tokens."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import DataSpec, Inputs, Parts, Tokenizer
from blockyard.model._prefix import Prefix
from blockyard.model.encoder import Encoder
from blockyard.tokenizer.conv_patch import ConvPatch
from blockyard.tokenizer.patch import Patch
from blockyard.tokenizer.pixel import Pixel
from blockyard.weight_init import initialise
from tests.support.helpers import factory, stir

TOKENIZERS = {"patch": Patch(size=2), "conv_patch": ConvPatch(size=2), "pixel": Pixel()}
SCHEMES = ["learned", "sinusoidal", "rope", "alibi", "none"]
CASES = list(product(TOKENIZERS, SCHEMES))


def built(tokenizer: Tokenizer, position: str, side: tuple[int, int] = (8, 8), mixer: str = "attention") -> nn.Module:
    """A model of images of one size, with a class token and a register where the mixer takes them."""
    prefix = Prefix() if mixer == "pool" else Prefix(class_token=True, registers=1)
    data = DataSpec("image", (3, *side), target="class", classes=5)
    plan = Encoder(dim=16, depth=2, heads=2, prefix=prefix)
    ctx = plan.context(data, tokenizer.spec(data), 5)
    picks = {"channel_mixer": "mlp", "norm": "layer", "block": "pre_norm", "head": "mean_pool"}
    factories = {family: factory(family, name) for family, name in picks.items()}
    parts = Parts(
        embedder=tokenizer.embedder,
        position=factory("position", position),
        token_mixer=factory("token_mixer", mixer),
        **factories,
    )
    return stir(initialise(plan.build(ctx, parts), 0)).double().eval()


@torch.no_grad()
@pytest.mark.parametrize("side", [(16, 16), (16, 8), (8, 24)], ids=str)
@pytest.mark.parametrize(("tokenizer", "position"), CASES)
@pytest.mark.sampled(2)
def test_a_larger_image_is_read_as_by_a_model_built_for_it(
    tokenizer: str, position: str, side: tuple[int, int]
) -> None:
    """Equal to a model built for the size, whose table, where there is one, is the smaller one resized."""
    small = built(TOKENIZERS[tokenizer], position)
    large = built(TOKENIZERS[tokenizer], position, side)
    weights = small.state_dict()
    if position == "learned":
        table = weights["position.table"].T.unflatten(-1, small.ctx.tokens.grid)[None]  # (1, D, rows, cols)
        resized = F.interpolate(table, size=large.ctx.tokens.grid, mode="bilinear", align_corners=False)
        weights = {**weights, "position.table": resized[0].flatten(1).T}
    large.load_state_dict(weights)
    images = torch.randn(2, 3, *side, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = small(images)
    assert out.shape == (2, 5)
    assert_close(out, large(images))
    assert not torch.allclose(out, small(images[..., :8, :8]))
    grid, coords = (getattr(small.steps(images)["seq"], name) for name in ("grid", "coords"))
    assert grid == large.ctx.tokens.grid
    assert_close(coords, large.steps(images)["seq"].coords)


@torch.no_grad()
@pytest.mark.parametrize("mixer", ["pool", "fourier"])
def test_mixers_of_any_length_take_it(mixer: str) -> None:
    small, large = built(Patch(size=2), "none", mixer=mixer), built(Patch(size=2), "none", (16, 16), mixer)
    large.load_state_dict(small.state_dict())
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert_close(small(images), large(images))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_a_mixer_of_one_length_refuses_it(tokenizer: str) -> None:
    model = built(TOKENIZERS[tokenizer], "none", mixer="token_mlp")
    assert model(torch.randn(1, 3, 8, 8).double()).shape == (1, 5)
    with pytest.raises(ValueError, match=r"TokenMLP was built for \d+ tokens and got \d+; pass inputs of the size"):
        model(torch.randn(1, 3, 16, 16).double())


@pytest.mark.parametrize("tokenizer", ["patch", "conv_patch"])
def test_images_that_cannot_be_cut_are_refused(tokenizer: str) -> None:
    model = built(TOKENIZERS[tokenizer], "rope")
    with pytest.raises(ValueError, match=r"9 x 16 pixels cannot be cut .* side 2; use multiples of 2, such as 8 x 16"):
        model(torch.randn(1, 3, 9, 16).double())
    for shape in ((1, 1, 8, 8), (3, 8, 8)):
        with pytest.raises(ValueError, match="reads images of 3 channels"):
            model(torch.randn(shape).double())


def test_what_only_text_has_is_refused() -> None:
    model, images = built(Patch(size=2), "rope"), torch.randn(1, 3, 8, 8).double()
    with pytest.raises(ValueError, match="an image is one full sequence"):
        model(Inputs(images, lengths=torch.tensor([16])))
    with pytest.raises(ValueError, match="an image is one full sequence"):
        model.embedder(images, segment=torch.zeros(1, 16))
