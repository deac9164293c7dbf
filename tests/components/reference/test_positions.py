"""Position schemes against timm, transformers and formulas."""

from __future__ import annotations

import math

import pytest
import torch
from timm.layers import build_rotary_pos_embed, build_sincos2d_pos_embed, resample_abs_pos_embed
from torch.nn import functional as F
from torch.testing import assert_close
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from blockyard.contracts import Context, Inputs
from blockyard.ops.mask import bias_table
from blockyard.position.alibi import Alibi
from blockyard.position.learned import Learned
from blockyard.position.rope import Rope
from blockyard.position.sinusoidal import Sinusoidal
from tests.components.reference.inputs import lattice, line, sequence
from tests.support.helpers import context, tiny, token_ids
from tests.support.tolerances import FLOAT32_STEPS


def test_rope_on_a_line() -> None:
    """Llama's: halves layout, base 10,000."""
    q, k = torch.randn(2, 4, 9, 8, dtype=torch.float64), torch.randn(2, 2, 9, 8, dtype=torch.float64)
    angle = torch.outer(torch.arange(9).double(), 10000.0 ** -(torch.arange(0, 8, 2).double() / 8))
    angle = torch.cat([angle, angle], -1)[None]
    expected = apply_rotary_pos_emb(q, k, angle.cos(), angle.sin())
    ours = Rope(context(dim=32)).rotate(q, k, line(9), line(9))
    assert_close(ours, expected)


@pytest.mark.parametrize(("base", "temperature"), [(None, 100.0), (100.0, 100.0), (10000.0, 10000.0)])
def test_rope_on_a_grid(base: float | None, temperature: float) -> None:
    """Axial as in timm (language frequencies), whose pairs are neighbours and not halves; base 100 by default."""
    rows, cols, width = 3, 5, 16
    sin, cos = build_rotary_pos_embed(
        [rows, cols], dim=width, temperature=temperature, in_pixels=False, dtype=torch.float64
    )
    q = torch.randn(1, 4, rows * cols, width, dtype=torch.float64)
    # Ours: axis, half, pair. Theirs: axis, pair, half.
    pairs = q.unflatten(-1, (2, 2, width // 4)).transpose(-1, -2).flatten(-3)
    turned = torch.stack([-pairs[..., 1::2], pairs[..., ::2]], -1).flatten(-2)
    theirs = pairs * cos + turned * sin
    back = theirs.unflatten(-1, (2, width // 4, 2)).transpose(-1, -2).flatten(-3)
    ours = Rope(context(dim=64, axes=2), base=base).rotate(q, q, lattice(rows, cols), lattice(rows, cols))
    assert_close(ours[0], back, **FLOAT32_STEPS)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_rope_is_exact_at_a_thousand_positions_in_half_precision(kind: torch.dtype) -> None:
    """Angles are computed in float32; only the output is rounded."""
    q, k = torch.randn(2, 4, 9, 8).to(kind), torch.randn(2, 2, 9, 8).to(kind)
    coords = (line(9) + 995).float()
    ours = Rope(context(dim=32)).rotate(q, k, coords, coords)
    expected = Rope(context(dim=32)).rotate(q.float(), k.float(), coords, coords)
    for got, exact in zip(ours, expected, strict=True):
        assert got.dtype == kind
        assert_close(got, exact.to(kind), rtol=0, atol=0)


@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12])
def test_alibi_slopes(heads: int) -> None:
    """Bloom adds -slope * (last - j) up to a constant per query, which a softmax ignores."""
    ctx = context(dim=48, heads=heads)
    seq = sequence(12, position=Alibi(ctx))
    n = len(seq)
    theirs = build_alibi_tensor(torch.ones(1, n), heads, torch.float32).view(1, heads, 1, n)
    hidden = torch.ones(n, n).triu(1).bool()
    ours = bias_table(seq, seq, heads)
    assert ours.shape == (1, heads, n, n)
    weights = [F.softmax(b.double().expand(1, heads, n, n).masked_fill(hidden, -torch.inf), -1) for b in (ours, theirs)]
    assert_close(weights[0], weights[1], **FLOAT32_STEPS)


@pytest.mark.parametrize("distance", ["euclidean", "manhattan"])
def test_alibi_on_a_grid(distance: str) -> None:
    scheme, coords = Alibi(context(axes=2), distance=distance), lattice(2, 3)
    ours = scheme.bias(
        torch.arange(4)[None, :, None, None], coords[:, None, :, None].unbind(-1), coords[:, None, None].unbind(-1)
    )
    for head in range(4):
        for i, (a, b) in enumerate(coords[0].tolist()):
            for j, (c, d) in enumerate(coords[0].tolist()):
                far = math.hypot(a - c, b - d) if distance == "euclidean" else abs(a - c) + abs(b - d)
                assert ours[0, head, i, j].item() == pytest.approx(-(2.0 ** (-2 * (head + 1))) * far)


def test_sinusoidal_on_a_line() -> None:
    """Vaswani et al.'s formula, entry by entry; sines in the first half, cosines in the second."""
    ours = Sinusoidal(context(dim=16), scale=1.0).embed(torch.zeros(1, 9, 16, dtype=torch.float64), line(9))
    for p in range(9):
        for i in range(8):
            angle = p / 10000 ** (2 * i / 16)
            assert ours[0, p, i].item() == pytest.approx(math.sin(angle))
            assert ours[0, p, 8 + i].item() == pytest.approx(math.cos(angle))


def test_sinusoidal_on_a_grid() -> None:
    ours = Sinusoidal(context(dim=16, axes=2), scale=1.0).embed(
        torch.zeros(1, 15, 16, dtype=torch.float64), lattice(3, 5)
    )
    theirs = build_sincos2d_pos_embed([3, 5], dim=16, dtype=torch.float64)
    # timm's channels: wave, axis, frequency. Ours: axis, wave, frequency.
    theirs = theirs.unflatten(-1, (2, 2, 4)).transpose(-3, -2).flatten(-3)
    assert_close(ours[0], theirs, **FLOAT32_STEPS)


def random_table(ctx: Context) -> Learned:
    """A table with random vectors."""
    scheme = Learned(ctx).double()
    torch.nn.init.normal_(scheme.table)
    return scheme


def test_learned_is_a_lookup_on_its_own_grid() -> None:
    scheme = random_table(context(axes=2, grid=(3, 4)))
    out = scheme.embed(torch.zeros(2, 12, 16, dtype=torch.float64), lattice(3, 4))
    assert_close(out, scheme.table.detach().expand(2, -1, -1), rtol=0, atol=0)
    line_scheme = random_table(context(grid=(1,)))
    assert_close(line_scheme.embed(torch.zeros(1, 1, 16, dtype=torch.float64), line(1))[0], line_scheme.table)


def test_learned_interpolates_to_larger_grids() -> None:
    """A model built for 2 x 3 and applied to 4 x 6 resizes its table as timm does, with linear weights."""
    model = tiny(axes=2, position="learned")
    model.embedder.grid = (4, 6)
    inputs = token_ids(1, 24)
    steps = model.steps(inputs)
    added = steps["placed"] - steps["embedded"]
    expected = resample_abs_pos_embed(
        model.position.table[None].float(),
        [4, 6],
        [2, 3],
        num_prefix_tokens=0,
        interpolation="bilinear",
        antialias=False,
    )
    assert_close(added, expected.double(), **FLOAT32_STEPS)  # timm resizes in float32


def test_learned_interpolates_to_longer_sequences() -> None:
    model = tiny(position="learned")
    steps = model.steps(token_ids(1, 12))
    table = model.position.table.T[None]
    expected = F.interpolate(table, size=12, mode="linear", align_corners=False)[0].T
    assert_close(steps["placed"] - steps["embedded"], expected[None])


@pytest.mark.parametrize("how", ["causal", "padded", "packed"])
def test_learned_refuses_sequences_it_cannot_interpolate(how: str) -> None:
    model = tiny(causal=how == "causal", position="learned")
    lengths = torch.tensor([8]) if how == "padded" else None
    segment = torch.zeros(1, 8, dtype=torch.long) if how == "packed" else None
    with pytest.raises(ValueError, match="supports 6 positions and the sequence has 8"):
        model(Inputs(token_ids(1, 8), lengths=lengths, segment=segment))
    cache = tiny(causal=True, position="learned").init_cache(1)
    cache.length = 6
    with pytest.raises(ValueError, match="the sequence has 7"):
        tiny(causal=True, position="learned")(token_ids(1, 1), cache=cache)


def test_planted_frequency_is_caught() -> None:
    q = torch.randn(1, 4, 9, 8, dtype=torch.float64)
    right = Rope(context(dim=32)).rotate(q, q, line(9), line(9))
    with pytest.raises(AssertionError):
        assert_close(Rope(context(dim=32), base=9999.0).rotate(q, q, line(9), line(9)), right)
