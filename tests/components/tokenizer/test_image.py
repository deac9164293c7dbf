"""Image tokenizers: equal to a strided convolution, with the right coordinates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Batch, Context, DataSpec, Tokenizer
from blockyard.objective._patches import cut, join
from blockyard.objective.segment import Segment
from blockyard.tokenizer.conv_patch import ConvPatch
from blockyard.tokenizer.patch import Patch, PatchEmbedder
from blockyard.tokenizer.pixel import Pixel
from blockyard.weight_init import initialise
from tests.support.every import every
from tests.support.tolerances import FLOAT64


def context(tokenizer: Tokenizer, shape: tuple[int, int, int] = (3, 8, 12), dim: int = 16) -> Context:
    data = DataSpec("image", shape, target="class", classes=5)
    return Context(dim=dim, depth=1, heads=2, causal=False, tokens=tokenizer.spec(data), data=data, outputs=5)


def assert_equals_timm(kind: type[PatchEmbedder], size: int) -> None:
    from timm.layers import PatchEmbed

    ctx = context(Patch(size=size))
    ours = initialise(kind(ctx, size), 0)
    theirs = PatchEmbed(img_size=(8, 12), patch_size=size, in_chans=3, embed_dim=16)
    with torch.no_grad():
        theirs.proj.weight.copy_(ours.proj.weight.view(16, 3, size, size))
        theirs.proj.bias.copy_(ours.proj.bias.normal_())
    images = torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(ours(images)[0], theirs(images))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_patch_equals_timm_with_its_weights(size: int) -> None:
    assert_equals_timm(PatchEmbedder, size)


def test_a_planted_bug_is_caught() -> None:
    class Transposed(PatchEmbedder):
        def vectors(self, images: Tensor) -> Tensor:
            return super().vectors(images.reshape(*images.shape[:2], *images.shape[:1:-1]).mT)

    with pytest.raises(AssertionError):
        assert_equals_timm(Transposed, 2)


def test_pixel_is_a_patch_of_one() -> None:
    ctx = context(Pixel())
    assert ctx.tokens.grid == (8, 12)
    embedder = initialise(Pixel().embedder(ctx), 0)
    images = torch.randn(2, 3, 8, 12)
    expected = torch.einsum("bchw,dc->bhwd", images, embedder.proj.weight).flatten(1, 2)
    torch.testing.assert_close(embedder(images)[0], expected + embedder.proj.bias)


@pytest.mark.parametrize("tokenizer", [Patch(size=4), ConvPatch(size=4), Pixel()], ids=["patch", "conv_patch", "pixel"])
def test_tokens_lie_on_rows_and_columns(tokenizer: Tokenizer) -> None:
    ctx = context(tokenizer)
    rows, cols = ctx.tokens.grid
    embedder = initialise(tokenizer.embedder(ctx), 0)
    x, seq = embedder(torch.randn(2, 3, 8, 12))
    assert x.shape == (2, rows * cols, 16)
    assert seq.grid == (rows, cols)
    assert (seq.valid, seq.segment) == (None, None)
    torch.testing.assert_close(seq.index, torch.arange(rows * cols))
    expected = torch.tensor([[r, c] for r in range(rows) for c in range(cols)]).float()
    torch.testing.assert_close(seq.coords, expected[None])
    assert embedder.table is None
    assert set(embedder.state_dict()) == {n for n, _ in embedder.named_parameters()} | {
        n for n in embedder.state_dict() if "running_" in n or "num_batches" in n
    }


@pytest.mark.parametrize("tokenizer", [Patch(size=4), ConvPatch(size=4), Pixel()], ids=["patch", "conv_patch", "pixel"])
def test_bytes_are_scaled_to_one(tokenizer: Tokenizer) -> None:
    embedder = initialise(tokenizer.embedder(context(tokenizer)), 0).eval()
    images = torch.randint(0, 256, (2, 3, 8, 12), dtype=torch.uint8)
    torch.testing.assert_close(embedder(images)[0], embedder(images.float() / 255)[0])


def test_a_token_of_patch_sees_its_patch_only_and_of_conv_patch_little_more() -> None:
    images = torch.randn(1, 3, 32, 32)
    moved = images.clone()
    moved[..., :4, :4] += 1
    for tokenizer, reach in ((Patch(size=4), 1), (ConvPatch(size=4), 2)):
        embedder = initialise(tokenizer.embedder(context(tokenizer, (3, 32, 32))), 0).eval()
        change = (embedder(moved)[0] - embedder(images)[0]).abs().sum(-1).view(8, 8)
        assert change[0, 0] > 0
        assert (change[reach:] == 0).all()
        assert (change[:, reach:] == 0).all()


@pytest.mark.parametrize("training", [False, True])
def test_the_stem_by_its_formula(training: bool) -> None:
    """Xiao et al.: twice [3x3 convolution of stride 2, batch norm, ReLU], then a 1x1 convolution to D."""
    embedder = ConvPatch(size=4).embedder(context(ConvPatch(size=4), (3, 16, 8))).double().train(training)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in embedder.state_dict().items():
        if tensor.is_floating_point():
            # Variances are positive; biases are not, so that the ReLU has something to cut.
            low = -1.0 if name.endswith("bias") else 0.1
            tensor.uniform_(low, low + 1, generator=generator)
    images = torch.randn(4, 3, 16, 8, generator=generator, dtype=torch.float64)
    weights = {name: tensor.clone() for name, tensor in embedder.state_dict().items()}
    x = images
    for conv, norm in ((0, 1), (3, 4)):
        x = F.conv2d(x, weights[f"stem.{conv}.weight"], stride=2, padding=1)
        running = [weights[f"stem.{norm}.running_{moment}"] for moment in ("mean", "var")]
        x = F.batch_norm(x, *running, weights[f"stem.{norm}.weight"], weights[f"stem.{norm}.bias"], training)
        x = F.relu(x)
        assert (x == 0).any()
    expected = F.conv2d(x, weights["proj.weight"][:, :, None, None], weights["proj.bias"]).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embedder(images)[0], expected, **FLOAT64)


def test_the_stem_doubles_its_width_up_to_the_model() -> None:
    embedder = ConvPatch(size=16).embedder(context(ConvPatch(size=16), (3, 32, 32), dim=128))
    convolutions = [layer for layer in embedder.stem if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [16, 32, 64, 128]
    assert (embedder.proj.in_features, embedder.proj.out_features) == (128, 128)


def test_first_vectors_enter_the_stream_at_its_size() -> None:
    ctx = context(Patch(size=4), (3, 32, 32), dim=256)
    x, _ = initialise(Patch(size=4).embedder(ctx), 0)(torch.randn(8, 3, 32, 32))
    torch.testing.assert_close(x.std().item() / ctx.init_std, 1.0, atol=0.1, rtol=0)


def test_sizes_that_do_not_fit_are_refused() -> None:
    data = DataSpec("image", (1, 28, 28), target="class", classes=10)
    with pytest.raises(ValueError, match=r"tokenizer.size=5 does not divide .* 1, 2, 4, 7, 14, 28"):
        Patch(size=5).spec(data)
    with pytest.raises(ValueError, match=r"tokenizer.size=8"):
        ConvPatch(size=8).spec(data)
    with pytest.raises(ValueError, match="reads images"):
        Patch().spec(DataSpec("text", (64,)))


def padded(kind: type[PatchEmbedder]) -> None:
    """timm's own padding of 7 x 10 pixels to patches of 4, with copied weights."""
    from timm.layers import PatchEmbed

    ctx = context(Patch(size=4, pad="right"), (3, 7, 10))
    ours = initialise(kind(ctx, 4, "right"), 0)
    theirs = PatchEmbed(img_size=(7, 10), patch_size=4, in_chans=3, embed_dim=16, dynamic_img_pad=True)
    with torch.no_grad():
        theirs.proj.weight.copy_(ours.proj.weight.view(16, 3, 4, 4))
        theirs.proj.bias.copy_(ours.proj.bias.normal_())
    images = torch.randn(2, 3, 7, 10)
    x, seq = ours(images)
    torch.testing.assert_close(x, theirs(images))
    assert ctx.tokens.grid == seq.grid == (2, 3)
    assert seq.valid is None  # every patch holds pixels of the image


def test_padding_is_that_of_timm() -> None:
    padded(PatchEmbedder)


def test_planted_padding_with_ones_is_caught() -> None:
    class Ones(PatchEmbedder):
        def vectors(self, images: Tensor) -> Tensor:
            images = images.clone()
            images[:, :, 7:] = 1
            return super().vectors(images)

    with pytest.raises(AssertionError):
        padded(Ones)


@pytest.mark.parametrize("kind", [Patch, ConvPatch])
@pytest.mark.parametrize("pad", ["right", "centre"])
def test_padding_is_an_image_with_zeros_around_it(kind: Callable[..., Tokenizer], pad: str) -> None:
    tokenizer = kind(size=4, pad=pad)
    ctx = context(tokenizer, (3, 7, 10))
    embedder = initialise(tokenizer.embedder(ctx), 0).eval()
    images = torch.rand(2, 3, 7, 10)
    top, left = (0, 1) if pad == "centre" else (0, 0)
    whole = torch.zeros(2, 3, 8, 12)
    whole[:, :, top : top + 7, left : left + 10] = images
    (x, seq), (expected, _) = embedder(images), embedder(whole)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(seq.features[:, 0], images[:, :, : 4 - top, : 4 - left].mean((2, 3)))
    torch.testing.assert_close(seq.features[:, -1], images[:, :, 4 - top :, 8 - left :].mean((2, 3)))
    assert ctx.tokens.padding == (left, 2 - left, top, 1 - top)


@pytest.mark.parametrize("pad", ["right", "centre"])
def test_values_of_padded_patches_are_cut_and_joined(pad: str) -> None:
    """Pixels that were added are missing values, and joining gives the image back."""
    tokens = Patch(size=4, pad=pad).spec(DataSpec("image", (3, 7, 10)))
    images = torch.randn(2, 3, 7, 10)
    values = cut(images, tokens)
    assert values.shape == (2, 6, 48)
    assert int(values.isnan().sum()) == 2 * 3 * (8 * 12 - 7 * 10)
    torch.testing.assert_close(values.nansum(), images.sum())
    torch.testing.assert_close(join(values, images, tokens), images)


def test_pixels_that_were_added_have_no_class() -> None:
    """One column of digits in a patch of four columns covers it whole: the added columns do not count."""
    data = DataSpec("image", (1, 4, 5), target="pixels", classes=3)
    objective = Segment(cover=0.9)
    objective.outputs(data, objective.tokens(Patch(size=4, pad="right").spec(data)))
    target = torch.zeros(1, 4, 5, dtype=torch.int64)
    target[..., 4] = 2
    assert objective.prepare(Batch(torch.zeros(1, 1, 4, 5), target)).target.tolist() == [[0, 2]]


def test_embedders_build_without_storage() -> None:
    for tokenizer in (Patch(), ConvPatch(), Pixel()):
        with torch.device("meta"):
            embedder = tokenizer.embedder(context(tokenizer))
        assert every(parameter.is_meta for parameter in embedder.parameters())
