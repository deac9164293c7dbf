"""Convolutions against torch and loops; shift and MONet against slices; gMLP and fully connected against libraries."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from timm.layers.mlp import GatedMlp
from timm.models.mlp_mixer import SpatialGatingUnit
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.token_mixer.conv import Conv
from blockyard.token_mixer.depthwise_conv import DepthwiseConv
from blockyard.token_mixer.fully_connected import FullyConnected
from blockyard.token_mixer.gmlp import GMLP
from blockyard.token_mixer.monet import MONet
from blockyard.token_mixer.shift import Shift
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context

D = 16
ROWS, COLUMNS = 4, 5


def plane(whole: bool = True) -> Seq:
    """The `Seq` of a full grid, or of the same tokens without `grid`."""
    coords = torch.cartesian_prod(torch.arange(ROWS), torch.arange(COLUMNS)).double()[None]
    return Seq(torch.arange(ROWS * COLUMNS), coords, grid=(ROWS, COLUMNS) if whole else None)


def grid_context(**sizes: object) -> object:
    """A Context of tokens on that grid."""
    return context(axes=2, grid=(ROWS, COLUMNS), **sizes)


KINDS = [(Conv, 1), (DepthwiseConv, D)]


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize(("kind", "groups"), KINDS)
def test_on_a_line(kind: type, groups: int, kernel: int) -> None:
    ours = stirred(kind(context(), kernel=kernel))
    theirs = nn.Conv1d(D, D, kernel, padding=kernel // 2, groups=groups).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 7, D, dtype=torch.float64)
    assert_close(ours(x, sequence(7)), theirs(x.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize(("kind", "groups"), KINDS)
def test_on_a_causal_line(kind: type, groups: int, kernel: int) -> None:
    """torch pads both ends, so the end is cut off."""
    ours = stirred(kind(context(causal=True), kernel=kernel))
    theirs = nn.Conv1d(D, D, kernel, padding=kernel - 1, groups=groups).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 7, D, dtype=torch.float64)
    expected = theirs(x.transpose(1, 2))[..., :7].transpose(1, 2)
    assert_close(ours(x, sequence(7)), expected)
    cache, parts = ours.init_cache(2), []
    for t in range(7):
        here = Seq(torch.tensor([t]), torch.full((1, 1, 1), float(t), dtype=torch.float64))
        parts.append(ours(x[:, t : t + 1], here, cache))
        assert cache.parts[0].shape[1] == min(t + 1, kernel - 1), "the last kernel - 1 inputs"
    assert_close(torch.cat(parts, 1), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize(("kind", "groups"), KINDS)
def test_on_a_grid(kind: type, groups: int, kernel: int, causal: bool) -> None:
    ours = stirred(kind(grid_context(causal=causal), kernel=kernel))
    theirs = nn.Conv2d(D, D, kernel, padding=kernel // 2, groups=groups).double()
    square = torch.zeros(*theirs.weight.shape[:2], kernel**2, dtype=torch.float64)
    kept = kernel**2 // 2 + 1 if causal else kernel**2
    square[..., :kept] = ours.weight.detach()  # a causal kernel ends in its middle
    theirs.load_state_dict({"weight": square.view_as(theirs.weight), "bias": ours.bias.detach()})
    x = torch.randn(2, ROWS * COLUMNS, D, dtype=torch.float64)
    expected = theirs(x.transpose(1, 2).unflatten(2, (ROWS, COLUMNS))).flatten(2).transpose(1, 2)
    for whole in (True, False):
        assert_close(ours(x, plane(whole)), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "groups"), KINDS)
def test_padding_and_documents(kind: type, groups: int, causal: bool) -> None:
    """A loop over tokens."""
    n, ours = 7, stirred(kind(context(causal=causal), kernel=3))
    x = torch.randn(2, n, D, dtype=torch.float64)
    valid = torch.arange(n) < torch.tensor([[7], [5]])
    segment = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])
    reach = range(-2, 1) if causal else range(-1, 2)
    for real, parts in ((valid, segment), (None, segment), (valid, None)):
        out = ours(x, sequence(n, real, parts))
        for b in range(2):
            for t in range(n if real is None else int(real[b].sum())):
                expected = ours.bias
                for number, step in enumerate(reach):
                    s = t + step
                    if not 0 <= s < n or (real is not None and not real[b, s]):
                        continue
                    if parts is None or parts[b, s] == parts[b, t]:
                        weight = ours.weight[..., number]
                        expected = expected + (weight[:, 0] * x[b, s] if groups > 1 else weight @ x[b, s])
                assert_close(out[b, t], expected)


def test_a_centred_kernel_must_be_odd() -> None:
    with pytest.raises(ValueError, match="kernel=4 must be odd to have a middle; use 5"):
        Conv(context(), kernel=4)
    with pytest.raises(ValueError, match="kernel=2 must be odd"):
        DepthwiseConv(grid_context(causal=True), kernel=2)


def test_planted_flip_is_caught() -> None:
    """Planted: a convolution as in signal processing, with a flipped kernel."""
    ours = stirred(Conv(context()))
    theirs = nn.Conv1d(D, D, 3, padding=1).double()
    theirs.load_state_dict({"weight": ours.weight.detach().flip(-1), "bias": ours.bias.detach()})
    x = torch.randn(2, 7, D, dtype=torch.float64)
    with pytest.raises(AssertionError):
        assert_close(ours(x, sequence(7)), theirs(x.transpose(1, 2)).transpose(1, 2))


def paper_shift(images: Tensor) -> Tensor:
    """Algorithm 1 of S2-MLP by slices: images (B, rows, columns, C)."""
    out, part = images.clone(), images.shape[-1] // 4
    out[:, 1:, :, :part] = images[:, :-1, :, :part]
    out[:, :-1, :, part : 2 * part] = images[:, 1:, :, part : 2 * part]
    out[:, :, 1:, 2 * part : 3 * part] = images[:, :, :-1, 2 * part : 3 * part]
    out[:, :, :-1, 3 * part :] = images[:, :, 1:, 3 * part :]
    return out


def test_shift_on_a_grid() -> None:
    ours = stirred(Shift(grid_context()))
    x = torch.randn(2, ROWS * COLUMNS, D, dtype=torch.float64)
    hidden = F.gelu(ours.proj_in(x)).unflatten(1, (ROWS, COLUMNS))
    expected = ours.proj_out(paper_shift(hidden).flatten(1, 2))
    for whole in (True, False):
        assert_close(ours(x, plane(whole)), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_shift_on_a_line(causal: bool) -> None:
    ours = stirred(Shift(context(causal=causal)))
    x = torch.randn(2, 7, D, dtype=torch.float64)
    hidden = F.gelu(ours.proj_in(x))
    moved = hidden.clone()
    moved[:, 1:, : D // 2] = hidden[:, :-1, : D // 2]
    if not causal:
        moved[:, :-1, D // 2 :] = hidden[:, 1:, D // 2 :]
    assert_close(ours(x, sequence(7)), ours.proj_out(moved))


@pytest.mark.parametrize("layer", [0, 1])
def test_monet(layer: int) -> None:
    """The unit written with separate maps; only the first, third, ... layer shifts."""
    ours = stirred(MONet(grid_context().at(layer), expansion=2.0, compression=4))
    x = torch.randn(2, ROWS * COLUMNS, D, dtype=torch.float64)
    (wa, wd), (ba, bd) = (each.split([32, 8]) for each in (ours.proj_in.weight, ours.proj_in.bias))
    first, second = x @ wa.T + ba, x @ wd.T + bd
    if layer == 0:
        first, second = (paper_shift(h.unflatten(1, (ROWS, COLUMNS))).flatten(1, 2) for h in (first, second))
    second = second @ ours.expand.weight.T + ours.expand.bias

    def norm(h: Tensor, layer_norm: nn.LayerNorm) -> Tensor:
        spread = (h.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        return (h - h.mean(-1, keepdim=True)) / spread * layer_norm.weight + layer_norm.bias

    a, b = norm(first, ours.first_norm), norm(second, ours.second_norm)
    expected = (a + ours.alpha * a * b) @ ours.proj_out.weight.T + ours.proj_out.bias
    assert_close(ours(x, plane()), expected)


def monet_by_formula(x: Tensor, ours: MONet) -> Tensor:
    """E (A x * B x + D x) of MONet's polynomial of degree two, B a product of two matrices."""
    a, low, own = ours.proj_in.weight.split([32, 8, 32])
    b = ours.expand.weight @ low
    return ((x @ a.T) * (x @ b.T) + x @ own.T) @ ours.proj_out.weight.T


def test_monet_with_a_skip_of_its_own_is_the_polynomial() -> None:
    ours = stirred(MONet(grid_context().at(1), expansion=2.0, compression=4, bias=False, skip="own", norms=False))
    assert {name for name, _ in ours.named_parameters()} == {"proj_in.weight", "expand.weight", "proj_out.weight"}
    x = torch.randn(2, ROWS * COLUMNS, D, dtype=torch.float64)
    assert_close(ours(x, plane()), monet_by_formula(x, ours))


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("layer", [0, 1])
def test_monets_own_skip_with_tied_weights_is_the_tied_one(layer: int, norms: bool) -> None:
    tied, own = (
        stirred(MONet(grid_context().at(layer), expansion=2.0, compression=4, skip=skip, norms=norms))
        for skip in ("tied", "own")
    )
    weights = dict(tied.state_dict())
    for name in ("proj_in.weight", "proj_in.bias"):
        weights[name] = torch.cat([weights[name], weights[name][:32]])
    weights |= {name.replace("first", "skip"): value for name, value in weights.items() if "first_norm" in name}
    own.load_state_dict(weights)
    x = torch.randn(2, ROWS * COLUMNS, D, dtype=torch.float64)
    assert_close(own(x, plane()), tied(x, plane()))


def test_gmlp_is_timms() -> None:
    ours = stirred(GMLP(context(), expansion=2.0))
    theirs = GatedMlp(D, 2 * D, gate_layer=partial(SpatialGatingUnit, seq_len=6)).double()
    for name, part in (("fc1", ours.proj_in), ("fc2", ours.proj_out), ("gate.norm", ours.gate.norm)):
        theirs.get_submodule(name).load_state_dict(part.state_dict())
    theirs.gate.proj.load_state_dict({"weight": ours.gate.weight.detach(), "bias": ours.gate.bias.detach()})
    x = torch.randn(2, 6, D, dtype=torch.float64)
    assert_close(ours(x, sequence(6)), theirs(x))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("channels", ["shared", "full"])
def test_fully_connected(channels: str, causal: bool) -> None:
    """torch's linear layer over tokens, or tokens and channels; causal: later tokens have no weight."""
    ours = stirred(FullyConnected(context(causal=causal), channels=channels))
    x = torch.randn(2, 6, D, dtype=torch.float64)
    width = D if channels == "full" else 1
    theirs = nn.Linear(6 * width, 6 * width).double()
    weight = ours.weight.detach().clone()
    for t in range(6) if causal else ():
        weight[t, :, t + 1 :] = 0.0
    theirs.load_state_dict({"weight": weight.reshape(6 * width, -1), "bias": ours.bias.detach().flatten()})
    expected = theirs(x.flatten(1)).view_as(x) if channels == "full" else theirs(x.transpose(1, 2)).transpose(1, 2)
    assert_close(ours(x, sequence(6)), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_fully_connected_with_a_bias_for_each_channel(causal: bool) -> None:
    """Shared weights W (N, N) and biases b (N, D), by a loop."""
    ours = stirred(FullyConnected(context(causal=causal), bias="full"))
    x = torch.randn(2, 6, D, dtype=torch.float64)
    assert ours.bias.shape == (6, D)
    w = ours.weight[:, 0, :, 0]
    outputs = [sum(w[i, j] * x[:, j] for j in range(i + 1 if causal else 6)) + ours.bias[i] for i in range(6)]
    assert_close(ours(x, sequence(6)), torch.stack(outputs, 1))


def test_fully_connected_channels_have_their_biases_already() -> None:
    with pytest.raises(ValueError, match="each channel has a bias of its own already; use bias=true"):
        FullyConnected(context(), channels="full", bias="full")


@pytest.mark.parametrize("mixer", [GMLP, FullyConnected])
def test_other_lengths_are_refused(mixer: type) -> None:
    with pytest.raises(ValueError, match="was built for 6 tokens and got 5"):
        mixer(context())(torch.randn(1, 5, D), sequence(5))
