"""The long convolution against torch's convolutions with explicit weights, and against a loop."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.ops.flops import counter
from blockyard.token_mixer.long_conv import LongConv
from blockyard.weight_init import initialise
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context, tiny

D, N, ROWS, COLUMNS = 16, 9, 4, 5


def mixer_of(ctx: object, **options: object) -> LongConv:
    """A mixer with large weights."""
    return stirred(LongConv(ctx, **options))


def g(mixer: LongConv, distance: Tensor, side: int) -> Tensor:
    """The weights of distances (..., A) on a grid with longest side `side`, from the equation: (..., D)."""
    net = mixer.weights
    # A hundredth remains at 1.5 sequence lengths in the first channel, at 0.3 in the last.
    rates = [math.log(100) * (1 / 1.5 + (1 / 0.3 - 1 / 1.5) * c / (D - 1)) for c in range(D)]
    taps = []
    for d in (distance / side).reshape(-1, distance.shape[-1]):
        angles = torch.stack([math.pi * k * far for far in d for k in range(1, 9)])
        hidden = torch.sin(net.enter.weight @ torch.cat([d, angles.sin(), angles.cos()]) + net.enter.bias)
        value = net.leave.weight @ torch.sin(net.inner.weight @ hidden + net.inner.bias)
        taps.append(value * torch.stack([torch.exp(-rate * d.abs().sum()) for rate in rates]))
    return torch.stack(taps).reshape(*distance.shape[:-1], D)


@pytest.mark.parametrize("cutoff", [1, 3, 4, None])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_a_convolution_with_a_cutoff(causal: bool, cutoff: int | None) -> None:
    """A kernel of k - 1 to both sides, or of k to the past; without a cutoff, as long as the sequence."""
    mixer, x = mixer_of(context(causal=causal, grid=(N,)), cutoff=cutoff), torch.randn(2, N, D, dtype=torch.float64)
    reach = N - 1 if cutoff is None else cutoff - 1
    back = torch.arange(reach, -1 if causal else -reach - 1, -1, dtype=torch.float64)  # i - j, from far behind on
    kernel = g(mixer, back[:, None], N).T[:, None]  # (D, 1, taps)
    line = F.pad(x.transpose(1, 2), (reach, 0 if causal else reach))
    assert_close(mixer(x, sequence(N)), F.conv1d(line, kernel, groups=D).transpose(1, 2))


def matrices(mixer: LongConv, distance: Tensor, side: int) -> Tensor:
    """The weights of distances (taps, A) with mixing=full, output by input channels: (taps, D, D)."""
    net = mixer.weights
    rates = [math.log(100) * (1 / 1.5 + (1 / 0.3 - 1 / 1.5) * c / (D - 1)) for c in range(D)]
    taps = []
    for d in distance / side:
        angles = torch.stack([math.pi * k * far for far in d for k in range(1, 9)])
        hidden = torch.sin(net.enter.weight @ torch.cat([d, angles.sin(), angles.cos()]) + net.enter.bias)
        value = net.leave.weight @ torch.sin(net.inner.weight @ hidden + net.inner.bias)
        rows = [value[c * D : (c + 1) * D] * torch.exp(-rates[c] * d.abs().sum()) for c in range(D)]
        taps.append(torch.stack(rows))
    return torch.stack(taps)


@pytest.mark.parametrize("cutoff", [3, None])
@pytest.mark.parametrize("causal", [False, True])
def test_full_mixing_is_a_convolution_over_all_channels(causal: bool, cutoff: int | None) -> None:
    mixer = mixer_of(context(causal=causal, grid=(N,)), cutoff=cutoff, mixing="full")
    x = torch.randn(2, N, D, dtype=torch.float64)
    reach = N - 1 if cutoff is None else cutoff - 1
    back = torch.arange(reach, -1 if causal else -reach - 1, -1, dtype=torch.float64)
    kernel = matrices(mixer, back[:, None], N).permute(1, 2, 0)  # (D, D, taps)
    line = F.pad(x.transpose(1, 2), (reach, 0 if causal else reach))
    expected = F.conv1d(line, kernel).transpose(1, 2)
    assert_close(mixer(x, sequence(N)), expected)
    documents = sequence(N, segment=torch.zeros(2, N, dtype=torch.long))
    assert_close(mixer(x, documents), expected)  # by pairs of tokens
    with pytest.raises(AssertionError):  # planted: input and output channels exchanged
        assert_close(F.conv1d(line, kernel.transpose(0, 1)).transpose(1, 2), expected)


def test_full_mixing_on_a_grid() -> None:
    mixer = mixer_of(context(axes=2, grid=(ROWS, COLUMNS)), mixing="full")
    x = torch.randn(2, ROWS * COLUMNS, D, dtype=torch.float64)
    far = [torch.arange(side - 1, -side, -1, dtype=torch.float64) for side in (ROWS, COLUMNS)]
    between = torch.cartesian_prod(*far)
    kernel = matrices(mixer, between, COLUMNS).permute(1, 2, 0).unflatten(2, (2 * ROWS - 1, 2 * COLUMNS - 1))
    image = x.transpose(1, 2).unflatten(2, (ROWS, COLUMNS))
    expected = F.conv2d(image, kernel, padding=(ROWS - 1, COLUMNS - 1)).flatten(2).transpose(1, 2)
    coords = torch.cartesian_prod(torch.arange(ROWS), torch.arange(COLUMNS)).double()[None]
    for grid in ((ROWS, COLUMNS), None):
        assert_close(mixer(x, Seq(torch.arange(ROWS * COLUMNS), coords, grid=grid)), expected)


def test_full_mixing_has_the_declared_properties() -> None:
    options = {"token_mixer": {"mixing": "full"}}
    for axes in (1, 2):
        model = tiny(causal=True, axes=axes, token_mixer="long_conv", options=options)
        for promise in (causality, padding, cached_decoding):
            promise(model, 6)
    for causal in (False, True):
        packing(tiny(causal=causal, token_mixer="long_conv", options=options), 6)


def test_full_mixing_of_wide_models_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mixing=full computes 268,435,456 weights for 512 tokens of 512 channels"):
        LongConv(context(grid=(512,), dim=512), mixing="full")


@pytest.mark.parametrize("cutoff", [2, None])
def test_on_a_grid(cutoff: int | None) -> None:
    mixer = mixer_of(context(axes=2, grid=(ROWS, COLUMNS)), cutoff=cutoff)
    x = torch.randn(2, ROWS * COLUMNS, D, dtype=torch.float64)
    reach = (ROWS - 1, COLUMNS - 1) if cutoff is None else (cutoff - 1, cutoff - 1)
    far = [torch.arange(side, -side - 1, -1, dtype=torch.float64) for side in reach]
    between = torch.stack(torch.meshgrid(*far, indexing="ij"), -1)  # (taps, taps, 2)
    kernel = g(mixer, between, COLUMNS).permute(2, 0, 1)[:, None]
    image = x.transpose(1, 2).unflatten(2, (ROWS, COLUMNS))
    expected = F.conv2d(image, kernel, padding=reach, groups=D).flatten(2).transpose(1, 2)
    coords = torch.cartesian_prod(torch.arange(ROWS), torch.arange(COLUMNS)).double()[None]
    for grid in ((ROWS, COLUMNS), None):
        assert_close(mixer(x, Seq(torch.arange(ROWS * COLUMNS), coords, grid=grid)), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_and_documents(causal: bool) -> None:
    """A loop over pairs of tokens."""
    mixer, x = mixer_of(context(causal=causal, grid=(N,)), cutoff=6), torch.randn(2, N, D, dtype=torch.float64)
    valid = torch.arange(N) < torch.tensor([[N], [6]])
    segment = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1, 1]])
    for real, parts in ((valid, segment), (None, segment), (valid, None)):
        out = mixer(x, sequence(N, real, parts))
        for b in range(2):
            for i in range(N if real is None else int(real[b].sum())):
                expected = torch.zeros(D, dtype=torch.float64)
                for j in range(N):
                    seen = (real is None or real[b, j]) and (parts is None or parts[b, i] == parts[b, j])
                    if seen and abs(i - j) < 6 and (j <= i or not causal):
                        expected = expected + g(mixer, torch.tensor([i - j]).double(), N) * x[b, j]
                assert_close(out[b, i], expected)


def test_parameters_do_not_depend_on_the_length() -> None:
    sizes = {sum(p.numel() for p in LongConv(context(grid=(n,))).parameters()) for n in (6, 600)}
    assert len(sizes) == 1


def test_a_cutoff_bounds_the_cache() -> None:
    for cutoff, kept in ((4, 3), (None, N)):
        mixer = mixer_of(context(causal=True, grid=(N,)), cutoff=cutoff)
        cache, x, parts = mixer.init_cache(1), torch.randn(1, N, D, dtype=torch.float64), []
        for t in range(N):
            here = Seq(torch.tensor([t]), torch.full((1, 1, 1), float(t), dtype=torch.float64))
            parts.append(mixer(x[:, t : t + 1], here, cache))
        assert_close(torch.cat(parts, 1), mixer(x, sequence(N)))
        assert cache.parts[0].shape[1] == kept


@pytest.mark.parametrize("cutoff", [1, 3])
def test_a_cutoff_has_the_declared_properties(cutoff: int) -> None:
    options = {"token_mixer": {"cutoff": cutoff}}
    for axes in (1, 2):
        model = tiny(causal=True, axes=axes, token_mixer="long_conv", options=options)
        for promise in (causality, padding, cached_decoding):
            promise(model, 6)
    for causal in (False, True) if cutoff > 1 else ():
        packing(tiny(causal=causal, token_mixer="long_conv", options=options), 6)


def test_its_ffts_are_counted() -> None:
    """5 / 2 n log2 n for a real sequence of twice the length: the weights, two sequences, and their inverse."""
    mixer, n = LongConv(context(grid=(16,))), 16
    linear = sum(2 * 2 * n * w.in_features * w.out_features for w in mixer.modules() if isinstance(w, nn.Linear))
    with counter() as counted:
        initialise(mixer, 0)(torch.randn(2, n, D), sequence(n))
    assert counted.get_total_flops() == linear + (1 + 2 + 2) * D * (2 * n) * 5 * 5 // 2


class Wraps(LongConv):
    """Planted: the FFT is only as long as the sequence, so it wraps around."""

    def _by_fft(self, x: Tensor, grid: tuple[int, ...]) -> Tensor:
        (n,) = grid
        distance = torch.arange(n, dtype=x.dtype)[:, None]
        weights = torch.fft.rfft(self.kernel(distance)[None], dim=1)
        return torch.fft.irfft(torch.fft.rfft(x, dim=1) * weights, n=n, dim=1)


def test_planted_wrap_is_caught() -> None:
    with pytest.raises(AssertionError):
        causality(tiny(causal=True, replace={"token_mixer": Wraps}), 6)


def test_half_precision_does_not_reach_the_fft() -> None:
    mixer = nn.Sequential(mixer_of(context(causal=True, grid=(N,))).float())[0]
    x = torch.randn(2, N, D)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(mixer(x, sequence(N)), mixer(x.double().float(), sequence(N)))
        assert mixer(x.bfloat16(), sequence(N)).dtype == torch.bfloat16
    assert_close(mixer(x.bfloat16(), sequence(N)).float(), mixer(x, sequence(N)), rtol=3e-2, atol=3e-2)


def smooth(rows: int, columns: int) -> Tensor:
    """A smooth function of the place in an image, sampled in the middle of each token: (2, rows * columns, D)."""
    y = ((torch.arange(rows, dtype=torch.float64) + 0.5) / rows)[:, None, None, None]
    x = ((torch.arange(columns, dtype=torch.float64) + 0.5) / columns)[:, None, None]
    phase = torch.arange(2 * D, dtype=torch.float64).view(2, D)
    return torch.sin(3 * y + 2 * x + phase).permute(2, 0, 1, 3).flatten(1, 2)


def image(rows: int, columns: int) -> Seq:
    """The `Seq` of a full grid."""
    coords = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()[None]
    return Seq(torch.arange(rows * columns), coords, grid=(rows, columns))


@pytest.mark.parametrize("mixing", ["channel", "full"])
def test_relative_coordinates_are_those_of_tokens_at_the_trained_size(mixing: str) -> None:
    ctx = context(axes=2, grid=(ROWS, COLUMNS))
    index, relative = (mixer_of(ctx, mixing=mixing, coordinates=kind) for kind in ("index", "relative"))
    x = smooth(ROWS, COLUMNS)
    assert_close(relative(x, image(ROWS, COLUMNS)), index(x, image(ROWS, COLUMNS)), rtol=0, atol=0)


@pytest.mark.parametrize(("rows", "columns"), [(8, 10), (6, 5), (2, 3)])
def test_relative_coordinates_at_another_size(rows: int, columns: int) -> None:
    """prod_a r_a sum_j g(r (i - j)) x_j by a loop, with distances between the tokens of training."""
    mixer, x = mixer_of(context(axes=2, grid=(ROWS, COLUMNS)), coordinates="relative"), smooth(rows, columns)
    seq = image(rows, columns)
    ratios = torch.tensor([ROWS / rows, COLUMNS / columns], dtype=torch.float64)
    out = mixer(x, seq)
    for i in range(0, rows * columns, 7):
        taps = g(mixer, (seq.coords[0, i] - seq.coords[0]) * ratios, COLUMNS)
        assert_close(out[:, i], ratios.prod() * (taps * x).sum(1))


def test_relative_coordinates_approximate_an_integral() -> None:
    """What an image reads on average changes less and less with the resolution."""
    mixer = mixer_of(context(axes=2, grid=(4, 4)), coordinates="relative", waves=1)
    means = [mixer(smooth(n, n), image(n, n)).mean(1) for n in (4, 8, 16, 32)]
    apart = [(after - before).norm().item() / means[-1].norm().item() for before, after in pairwise(means)]
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < 0.05


def test_on_a_line_of_another_length() -> None:
    mixer = mixer_of(context(grid=(N,)), coordinates="relative", cutoff=4)
    x = torch.randn(2, 2 * N, D, dtype=torch.float64)
    back = torch.arange(7, -8, -1, dtype=torch.float64)  # less than four tokens of training
    kernel = 0.5 * g(mixer, back[:, None] / 2, N).T[:, None]
    assert_close(
        mixer(x, sequence(2 * N)), F.conv1d(F.pad(x.transpose(1, 2), (7, 7)), kernel, groups=D).transpose(1, 2)
    )


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"causal": True}, "a causal model does not know how long its sequence will be"),
        ({"variable": True}, "sequences are of different lengths"),
        ({"packed": True}, "sequences are packed with others"),
    ],
    ids=str,
)
def test_relative_coordinates_need_one_length(sizes: dict[str, bool], why: str) -> None:
    with pytest.raises(ValueError, match=f"coordinates=relative: {why}.*; use coordinates=index"):
        LongConv(context(**sizes), coordinates="relative")
