"""Absolute encodings: their formulas, translation as a rotation, and concatenated encodings."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Context
from blockyard.model._prefix import Prefix
from blockyard.position._absolute import Absolute
from blockyard.position.learned import Learned
from blockyard.position.one_hot import OneHot
from blockyard.position.scalar import Scalar
from blockyard.position.sinusoidal import Sinusoidal
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.components.reference.inputs import lattice, line
from tests.support.helpers import LENGTH, choices, context, node, tiny, token_ids

ABSOLUTE = [name for name in choices("position") if "combine" in node("position", name)[1]]


def encoding(scheme: Absolute, coords: Tensor) -> Tensor:
    """The encoding of coords: (N, channels)."""
    return scheme.encoding(coords, torch.zeros(1, dtype=torch.float64))[0].detach()


def test_every_absolute_scheme_can_be_concatenated() -> None:
    assert {*ABSOLUTE} == {name for name in choices("position") if "embed" in node("position", name)[0].acts_on}


@pytest.mark.parametrize("axes", [1, 2])
def test_scalar(axes: int) -> None:
    """One number per axis: the norm of a token embedding at the far end, or multiples of the model step."""
    ctx = context(axes=axes, init_std=0.25)  # a token's vector of 16 channels has length 1
    positions = line(LENGTH) if axes == 1 else lattice(2, 3)
    steps = torch.tensor([1 / 5] if axes == 1 else [1.0, 1 / 2], dtype=torch.float64)
    expected = torch.zeros(6, 16, dtype=torch.float64)
    expected[:, :axes] = positions[0] * steps
    assert_close(encoding(Scalar(ctx), positions), expected)
    assert_close(encoding(Scalar(ctx, combine="concat"), positions), positions[0] * steps)
    assert_close(encoding(Scalar(ctx, step=3.0, combine="concat"), positions), positions[0] * 3)


def test_one_hot() -> None:
    """As torch.nn.functional.one_hot; on a grid, the row beside the column."""
    scheme = OneHot(context(), scale=1.0, combine="concat")
    assert_close(encoding(scheme, line(6)), torch.eye(6, dtype=torch.float64))
    positions = lattice(2, 3)
    rows, cols = (F.one_hot(axis.long()).double() for axis in positions[0].unbind(-1))
    assert_close(
        encoding(OneHot(context(axes=2), scale=2.0), positions), 2 * F.pad(torch.cat([rows, cols], -1), (0, 11))
    )
    between = encoding(scheme, torch.tensor([[[1.25], [9.0]]], dtype=torch.float64))
    assert_close(between, torch.tensor([[0, 0.75, 0.25, 0, 0, 0], [0, 0, 0, 0, 0, 1]], dtype=torch.float64))
    assert OneHot(context(init_std=0.5)).scale == 0.5 * 16**0.5


def test_one_hot_times_a_matrix_is_a_learned_table() -> None:
    ctx = context(dim=16)
    table = Learned(ctx).double()
    torch.nn.init.normal_(table.table)
    positions = torch.tensor([[[0.0], [2.5], [5.0], [4.25]]], dtype=torch.float64)
    assert_close(
        encoding(OneHot(ctx, scale=1.0, combine="concat"), positions) @ table.table.detach(), encoding(table, positions)
    )


def test_one_hot_needs_a_channel_per_position() -> None:
    with pytest.raises(ValueError, match=r"17 in all, and model\.dim=16 has fewer"):
        tiny(position="one_hot", sizes={"grid": (17,)})
    with pytest.raises(ValueError, match=r"takes 16 of model\.dim=16 channels, which leaves none for the tokens"):
        tiny(position="one_hot", sizes={"grid": (16,)}, options={"position": {"combine": "concat"}})


def test_other_sinusoids() -> None:
    """Entry by entry: alternating sines and cosines, and sines only of twice as many frequencies."""
    turns = encoding(Sinusoidal(context(dim=16), waves="interleaved", base=100.0, scale=1.0), line(9))
    sines = encoding(Sinusoidal(context(dim=15, heads=3), waves="sines", scale=0.5), line(9))
    for p in range(9):
        for i in range(8):
            angle = p / 100 ** (2 * i / 16)
            assert turns[p, 2 * i].item() == pytest.approx(math.sin(angle))
            assert turns[p, 2 * i + 1].item() == pytest.approx(math.cos(angle))
        for i in range(15):
            assert sines[p, i].item() == pytest.approx(math.sin(p / 10000 ** (i / 15)) / 2)


def test_sinusoids_on_a_grid_are_those_of_each_axis() -> None:
    positions = lattice(3, 5)
    for waves in ("halves", "interleaved", "sines"):
        both = encoding(Sinusoidal(context(axes=2), waves=waves), positions)
        one = Sinusoidal(context(dim=8, heads=2), waves=waves)
        parts = [encoding(one, positions[..., [axis]]) for axis in (0, 1)]
        assert_close(both, torch.cat(parts, -1))


def rotated(waves: Tensor, layout: str, angles: Tensor) -> Tensor:
    """Each pair (sin a, cos a) of waves (N, C) rotated by its angle: (sin (a + t), cos (a + t))."""
    shape = (2, -1) if layout == "halves" else (-1, 2)
    pairs = waves.unflatten(-1, shape)
    sin, cos = pairs.unbind(-2 if layout == "halves" else -1)
    moved = [sin * angles.cos() + cos * angles.sin(), cos * angles.cos() - sin * angles.sin()]
    return torch.stack(moved, -2 if layout == "halves" else -1).flatten(-2)


@pytest.mark.parametrize("step", [1.0, -7.0, 1000.0, 0.5])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_a_translation_is_a_rotation(layout: str, step: float) -> None:
    """One rotation per distance, whatever the starting point (Vaswani et al. 2017, section 3.5)."""
    scheme, positions = Sinusoidal(context(dim=16), waves=layout, scale=0.3), line(40)
    frequencies = 10000.0 ** -(torch.arange(0, 16, 2).double() / 16)
    assert_close(encoding(scheme, positions + step), rotated(encoding(scheme, positions), layout, step * frequencies))


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_a_translation_on_a_grid_is_a_rotation_of_each_axis(layout: str) -> None:
    scheme, positions = Sinusoidal(context(axes=2), waves=layout), lattice(4, 5)
    frequencies = 10000.0 ** -(torch.arange(0, 8, 2).double() / 8)
    moved = encoding(scheme, positions + torch.tensor([2.0, -3.0], dtype=torch.float64))
    for axis, step in ((slice(0, 8), 2.0), (slice(8, 16), -3.0)):
        assert_close(moved[:, axis], rotated(encoding(scheme, positions)[:, axis], layout, step * frequencies))


def linear_map_residual(scheme: Absolute) -> float:
    """The error of the best linear map from each position to the next, over 40 positions."""
    here, there = encoding(scheme, line(40)), encoding(scheme, line(40) + 1)
    solution = torch.linalg.lstsq(here, there, driver="gelsd").solution
    return (here @ solution - there).abs().max().item()


def test_sines_alone_and_learned_tables_do_not_rotate() -> None:
    """Planted: encodings for which no single linear map takes each position to the next."""
    sizes = {"dim": 16, "grid": (41,)}
    table = Learned(context(**sizes)).double()
    torch.nn.init.normal_(table.table)
    assert linear_map_residual(Sinusoidal(context(**sizes), base=20.0, scale=1.0)) < 1e-9
    assert linear_map_residual(Sinusoidal(context(**sizes), waves="sines", base=20.0, scale=1.0)) > 1e-3
    assert linear_map_residual(table) > 0.1


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("name", ABSOLUTE)
def test_concatenated_encodings_follow_the_token_channels(name: str, axes: int) -> None:
    model = tiny(position=name, axes=axes, options={"position": {"combine": "concat"}})
    steps, width = model.steps(token_ids(2, LENGTH)), model.position.width
    assert 0 < width < 16
    assert steps["embedded"].shape == (2, LENGTH, 16 - width)
    assert model.embedder.table.shape == (11, 16 - width)
    tokens, codes = steps["placed"].split([16 - width, width], dim=-1)
    assert_close(tokens, steps["embedded"], rtol=0, atol=0)
    assert_close(codes[0], encoding(model.position, steps["seq"].coords).expand(LENGTH, width))
    assert_close(codes[1], codes[0])
    assert codes.abs().max() > 0


@pytest.mark.parametrize("name", ABSOLUTE)
def test_concatenated_encodings_have_the_declared_properties(name: str) -> None:
    concat = {"options": {"position": {"combine": "concat"}}}
    causality(tiny(position=name, causal=True, **concat), LENGTH)
    cached_decoding(tiny(position=name, causal=True, prefix=Prefix(registers=2), **concat), LENGTH)
    padding(tiny(position=name, **concat), LENGTH)
    packing(tiny(position=name, **concat), LENGTH)


def test_the_width_of_an_encoding_is_configurable() -> None:
    for name in ("learned", "sinusoidal"):
        model = tiny(position=name, options={"position": {"combine": "concat", "width": 6}})
        assert model.position.width == 6
        assert tiny(position=name, options={"position": {"combine": "concat"}}).position.width == 4
        with pytest.raises(ValueError, match=r"position\.width=6 has no effect with position\.combine=add"):
            tiny(position=name, options={"position": {"width": 6}})
    with pytest.raises(ValueError, match=r"position\.width=5: sinusoidal divides .* multiple of 2"):
        tiny(position="sinusoidal", options={"position": {"combine": "concat", "width": 5}})


@pytest.mark.parametrize("name", ABSOLUTE)
def test_a_tied_head_with_a_concatenated_encoding_is_refused(name: str) -> None:
    options = {"position": {"combine": "concat"}, "head": {"tied": True}}
    with pytest.raises(ValueError, match=r"use head\.tied=false"):
        tiny(position=name, options=options)


def test_defaults_add_scaled_sinusoids() -> None:
    """Bitwise: x + scale [sin, cos], computed in float32."""
    ctx: Context = context(dim=48, axes=2, grid=(7, 9))
    x = torch.randn(2, 63, 48)
    coords = lattice(7, 9).float()
    step = torch.arange(12, dtype=torch.float32) / 12
    angle = coords[..., None] * 10000.0**-step
    waves = torch.cat([angle.sin(), angle.cos()], dim=-1).flatten(2)
    assert torch.equal(Sinusoidal(ctx).embed(x, coords), x + ctx.init_std * waves)
