"""Variants of rotary positions: fractions of a head, scaled frequencies, decaying scores."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from blockyard.contracts import Position
from blockyard.position.rope import Rope
from blockyard.position.xpos import XPos
from tests.components.reference.inputs import lattice, line
from tests.support.every import every
from tests.support.helpers import context
from tests.support.tolerances import FLOAT64

TRAINED = 64  # tokens of a training sequence


def by_transformers(
    q: Tensor, kind: str, factor: float, share: float, seq_len: int | None = None, **further: object
) -> Tensor:
    """q (B, H, N, K) rotated by the frequencies of transformers, its last channels unchanged."""
    width = q.shape[-1]
    parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": factor, "partial_rotary_factor": share, **further}
    if kind in ("yarn", "llama3", "longrope"):
        parameters["original_max_position_embeddings"] = TRAINED
    if kind == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "longrope":
        parameters |= {"short_factor": [1.0] * 99, "long_factor": list(searched(int(width * share) // 2))}
        seq_len = TRAINED + 1  # so that they take the long ones
    config = LlamaConfig(
        hidden_size=4 * width, num_attention_heads=4, max_position_embeddings=TRAINED, rope_parameters=parameters
    )
    frequencies, longer = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len)
    angle = torch.arange(q.shape[2])[:, None] * frequencies.double()
    angle = torch.cat([angle, angle], -1)[None]
    turned, rest = q.split([angle.shape[-1], width - angle.shape[-1]], -1)
    turned, _ = apply_rotary_pos_emb(turned, turned, angle.cos() * longer, angle.sin() * longer)
    return torch.cat([turned, rest], -1)


def searched(pairs: int) -> tuple[float, ...]:
    """Factors of LongRoPE that grow with the pair."""
    return tuple(1 + 0.37 * pair for pair in range(pairs))


def scheme(**options: object) -> Rope:
    """Rope for heads of 32 channels."""
    return Rope(context(dim=128, grid=(TRAINED,)), **options)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("kind", ["linear", "yarn", "ntk", "llama3", "longrope"])
@pytest.mark.parametrize("how", ["factor", "length_scale"])
def test_scaled(kind: str, factor: float, share: float, how: str) -> None:
    """The factor is set in the config, or by an evaluation at longer sequences."""
    q = torch.randn(1, 4, 200, 32, dtype=torch.float64)
    own = {"factors": searched(int(32 * share) // 2)} if kind == "longrope" else {}
    named = "none" if kind == "longrope" else kind
    ours = scheme(scaling=named, fraction=share, factor=1.0, **own)
    ours.length_scale = factor
    if how == "factor":  # the configured length is then longer than the frequencies are for
        long = context(dim=128, grid=(int(TRAINED * factor),))
        ours = Rope(long, scaling=named, fraction=share, factor=factor, **own)
    if kind == "ntk":
        # Their base grows with the length: a sequence longer by our factor, with their own factor 1.
        expected = by_transformers(q, "dynamic", 1.0, share, int(TRAINED * factor))
    else:
        expected = by_transformers(q, kind, factor, share)
    assert_close(ours.rotate(q, q, line(200), line(200))[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["yarn", "llama3", "longrope"])
def test_the_original_length_may_be_another_than_that_of_the_data(kind: str) -> None:
    """As in Llama 3.1, whose factor is 8 and whose longest sequences are 16 times the original ones."""
    q = torch.randn(1, 4, 200, 32, dtype=torch.float64)
    own = {"factors": searched(16)} if kind == "longrope" else {"scaling": kind}
    ours = Rope(context(dim=128, grid=(16 * TRAINED,)), factor=8.0, original=TRAINED, **own)
    expected = by_transformers(q, kind, 8.0, 1.0)
    assert_close(ours.rotate(q, q, line(200), line(200))[0], expected, rtol=1e-4, atol=1e-4)
    ours = Rope(context(dim=128, grid=(16 * TRAINED,)), factor=8.0, **own)  # that of the data over 8
    with pytest.raises(AssertionError):
        assert_close(ours.rotate(q, q, line(200), line(200))[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factor", [4.0, 32.0])
def test_yarn_between_fractions_of_pairs(factor: float) -> None:
    """As in gpt-oss."""
    q = torch.randn(1, 4, 200, 32, dtype=torch.float64)
    ours = scheme(scaling="yarn", factor=factor, original=TRAINED, truncate=False)
    expected = by_transformers(q, "yarn", factor, 1.0, truncate=False)
    assert_close(ours.rotate(q, q, line(200), line(200))[0], expected, rtol=1e-4, atol=1e-4)
    rounded = scheme(scaling="yarn", factor=factor, original=TRAINED)
    with pytest.raises(AssertionError):
        assert_close(rounded.rotate(q, q, line(200), line(200))[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("theirs", "gain"), [({"attention_factor": 1.7}, 1.7), ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0)]
)
def test_the_gain_of_yarn(theirs: dict[str, float], gain: float) -> None:
    """As in DeepSeek V3, which has one of 1."""
    q = torch.randn(1, 4, 200, 32, dtype=torch.float64)
    ours = scheme(scaling="yarn", factor=4.0, original=TRAINED, gain=gain)
    expected = by_transformers(q, "yarn", 4.0, 1.0, **theirs)
    assert_close(ours.rotate(q, q, line(200), line(200))[0], expected, rtol=1e-4, atol=1e-4)
    usual = scheme(scaling="yarn", factor=4.0, original=TRAINED)
    with pytest.raises(AssertionError):
        assert_close(usual.rotate(q, q, line(200), line(200))[0], expected, rtol=1e-4, atol=1e-4)


def test_options_of_llama3_and_longrope_that_cannot_be_are_refused() -> None:
    for options, message in (
        ({"original": 64}, "has no effect with position.scaling=none"),
        ({"scaling": "linear", "gain": 2.0}, "has no effect with position.scaling=linear"),
        ({"scaling": "linear", "truncate": False}, "has no effect with position.scaling=linear"),
        ({"scaling": "llama3", "low": 4.0}, "must be less than position.high=4"),
        ({"scaling": "yarn", "factors": (1.0,) * 16}, "leave out position.scaling=yarn"),
    ):
        with pytest.raises(ValueError, match=message):
            scheme(**options)
    with pytest.raises(ValueError, match="has 15 factors, and 16 pairs"):
        scheme(factors=(2.0,) * 15).check_width(32)


@pytest.mark.parametrize("kind", ["linear", "yarn", "ntk", "llama3"])
def test_no_factor_changes_nothing(kind: str) -> None:
    q = torch.randn(1, 4, 9, 32)
    plain, same = (s.rotate(q, q, line(9), line(9))[0] for s in (scheme(), scheme(scaling=kind)))
    assert torch.equal(plain, same)


def test_yarn_at_both_ends_of_its_ramp() -> None:
    """Pairs that rotate often within a training sequence are unchanged, those below one rotation slowed fully."""
    ours = Rope(context(dim=256, heads=1, grid=(2048,)), scaling="yarn")
    ours.length_scale = 4.0
    step = torch.arange(128, dtype=torch.float64) / 128
    kept = ours.frequencies(step)[0] / 10000.0**-step
    turns = 2048 * 10000.0**-step / (2 * math.pi)
    assert_close(kept[turns > 36], torch.ones_like(kept[turns > 36]))
    assert_close(kept[turns < 0.9], torch.full_like(kept[turns < 0.9], 0.25))
    assert ((kept[1:] - kept[:-1]) <= 1e-12).all()


def test_a_fraction_rotates_on_a_grid() -> None:
    """The rotated part equals that of a narrower head; the rest is unchanged."""
    q = torch.randn(2, 4, 15, 16, dtype=torch.float64)
    part = Rope(context(dim=64, axes=2), fraction=0.5).rotate(q, q, lattice(3, 5), lattice(3, 5))[0]
    narrow = Rope(context(dim=32, axes=2)).rotate(q[..., :8], q[..., :8], lattice(3, 5), lattice(3, 5))[0]
    assert_close(part, torch.cat([narrow, q[..., 8:]], -1))


def test_options_without_effect_and_bad_widths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"position\.factor=2 has no effect with position\.scaling=none"):
        scheme(factor=2.0)
    with pytest.raises(ValueError, match=r"fraction=0\.3 of the head width .* is 9\.6, .*fraction=0\.25 or 0\.3125"):
        scheme(fraction=0.3).check_width(32)
    with pytest.raises(ValueError, match=r"is 4\.8, not a multiple of 2; use position\.fraction=0\.25 or 0\.375"):
        Rope(context(dim=64), fraction=0.3).check_width(16)
    with pytest.raises(ValueError, match=r"is 15\.84, .*use position\.fraction=0\.875 or 1$"):
        Rope(context(dim=64), fraction=0.99).check_width(16)
    with pytest.raises(ValueError, match="one pair for each axis"):
        Rope(context(dim=16), scaling="ntk", fraction=0.5).check_width(4)


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("width", [8, 12, 24, 100, 128])
def test_fractions_rotate_the_stated_number_of_channels(axes: int, width: int) -> None:
    """Whole numbers of pairs, however the fraction is rounded: 0.29 of 100 is 28.999999999999996."""
    coords = line(5) if axes == 1 else lattice(1, 5)
    q = torch.randn(1, 1, 5, width, dtype=torch.float64)
    accepted = 0
    for percent in range(1, 101):
        ours, part = Rope(context(dim=width, heads=1, axes=axes), fraction=percent / 100), width * percent / 100
        try:
            ours.check_width(width)
        except ValueError as error:
            assert abs(part - round(part)) > 0.005 or round(part) % (2 * axes)
            for advised in str(error).partition("use position.fraction=")[2].split(" or "):
                Rope(context(dim=width, heads=1, axes=axes), fraction=float(advised)).check_width(width)
            continue
        accepted += 1
        moved = (ours.rotate(q, q, coords, coords)[0] != q).any((0, 1, 2))
        assert round(part) == pytest.approx(part, abs=0.02)
        assert not moved[round(part) :].any()
        assert ours.rotated_width(width) == round(part)
    assert accepted


def scores(ours: Position, q: Tensor, k: Tensor, coords: Tensor) -> Tensor:
    """Q K^T after rotation."""
    turned = ours.rotate(q, k, coords, coords)
    return turned[0] @ turned[1].transpose(-1, -2)


@pytest.mark.parametrize("shift", [0.0, 3000.0])
def test_xpos_by_complex_numbers(shift: float) -> None:
    """Score of pair i: Re(q k* e^(i (n - m) w)) z^((n - m) / span), summed over pairs; at large positions too."""
    q, k = torch.randn(2, 1, 2, 9, 8, dtype=torch.float64).unbind(0)
    ours = scores(XPos(context(dim=32), gamma=0.3, span=64.0), q, k, line(9) + shift)
    expected = torch.zeros(1, 2, 9, 9, dtype=torch.float64)
    for pair in range(4):
        a = torch.complex(q[..., pair], q[..., pair + 4])
        b = torch.complex(k[..., pair], k[..., pair + 4])
        apart = torch.arange(9.0).double()[:, None] - torch.arange(9.0).double()
        wave = torch.polar(torch.ones_like(apart), apart * 10000.0 ** (-pair / 4))
        fade = ((pair / 4 + 0.3) / 1.3) ** (apart / 64)
        expected += (a[..., :, None] * b.conj()[..., None, :] * wave).real * fade
    assert_close(ours, expected, **FLOAT64)


@pytest.mark.parametrize("width", [2, 8, 24])
@pytest.mark.parametrize("kind", [Rope, XPos])
def test_the_width_is_that_of_the_queries(kind: type[Position], width: int) -> None:
    """A scheme built for heads of 4 channels rotates wider ones like one built for them."""
    q, k = torch.randn(2, 1, 1, 9, width, dtype=torch.float64).unbind(0)
    own = kind(context(dim=width, heads=1))
    assert_close(scores(kind(context(dim=16)), q, k, line(9)), scores(own, q, k, line(9)))


def test_xpos_is_finite_over_long_texts_and_refused_where_it_could_not_be() -> None:
    """Exponents counted from the first token would overflow in float32 after some 36,000 tokens."""
    q = torch.randn(1, 1, 3, 8)
    ctx = context(dim=32, grid=(50_000,))
    ends = torch.tensor([0.0, 25_000.0, 49_999.0])[None, :, None]
    rotated = XPos(ctx).rotate(q, q, ends, ends)
    assert every(each.isfinite().all() for each in rotated)
    with pytest.raises(ValueError, match=r"over 50,000 tokens keys would grow .* use position.span=392 or more"):
        XPos(ctx, span=8.0)


def test_xpos_says_how_large_keys_get_in_longer_texts() -> None:
    """The factor of the last key, in sequences of the length of training and of eight times that."""
    scheme = XPos(context(dim=32, grid=(4096,)))
    for times in (1, 8):
        last = torch.full((1, 1, 1), 4096.0 * times)
        key = torch.ones(1, 1, 1, 8, dtype=torch.float64)
        _, rotated = scheme.rotate(key, key, last.double(), last.double())
        pairs = rotated.flatten().unflatten(0, (2, -1)).square().sum(0).sqrt() / 2**0.5
        assert float(pairs.max().log()) == pytest.approx(scheme.largest(times), rel=1e-3)


def test_xpos_without_decay_is_rope() -> None:
    q = torch.randn(1, 4, 15, 8, dtype=torch.float64)
    for axes, coords in ((1, line(15)), (2, lattice(3, 5))):
        ctx = context(dim=32, axes=axes)
        slow = scores(XPos(ctx, span=1e15), q, q, coords)
        assert_close(slow, scores(Rope(ctx), q, q, coords))
        with pytest.raises(AssertionError):
            assert_close(scores(XPos(ctx), q, q, coords), slow)


def test_planted_unblended_yarn_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every pair slowed equally, which is linear scaling."""
    q = torch.randn(1, 4, 200, 32, dtype=torch.float64)
    monkeypatch.setattr(Rope, "_slowed", lambda _self, _side, step: torch.ones_like(step))
    ours = scheme(scaling="yarn")
    ours.length_scale = 4.0
    with pytest.raises(AssertionError):
        assert_close(
            ours.rotate(q, q, line(200), line(200))[0], by_transformers(q, "yarn", 4.0, 1.0), rtol=1e-4, atol=1e-4
        )


def test_planted_truncated_fractions_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rope, "rotated_width", lambda self, width: int(width * self.fraction))
    with pytest.raises(ValueError, match=r"position\.fraction=0\.58 of .* 100, is 58, not a multiple"):
        test_fractions_rotate_the_stated_number_of_channels(1, 100)
