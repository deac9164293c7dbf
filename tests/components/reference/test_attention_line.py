"""Variants of attention against torch.nn.MultiheadAttention and formulas, token by token."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Memory, Seq
from blockyard.position.rope import Rope
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.memory_attention import MemoryAttention
from blockyard.token_mixer.strict_attention import StrictAttention
from blockyard.token_mixer.windowed_attention import WindowedAttention
from blockyard.weight_init import initialise
from tests.components.properties.checks import cached_decoding, relative
from tests.components.reference.attention_inputs import CAUSAL, D, N, scores_and_values, tokens
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context, tiny, token_ids
from tests.support.tolerances import FLOAT32_STEPS


def paired(ours: Attention, **options: object) -> nn.MultiheadAttention:
    """torch's attention with our weights."""
    theirs = nn.MultiheadAttention(D, 4, batch_first=True, **options).double().eval()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.proj_in.weight)
        theirs.in_proj_bias.copy_(ours.proj_in.bias)
        theirs.out_proj.weight.copy_(ours.proj_out.weight)
        theirs.out_proj.bias.copy_(ours.proj_out.bias)
    return theirs


@CAUSAL
@pytest.mark.parametrize(("heads", "kv_heads", "key_dim", "value_dim"), [(1, 1, 3, 7), (4, 2, 5, 2), (2, 1, 8, 16)])
def test_distinct_widths(heads: int, kv_heads: int, key_dim: int, value_dim: int, causal: bool) -> None:
    """Keys, values and outputs of three different widths."""
    ctx = context(causal=causal, heads=heads)
    ours = stirred(Attention(ctx, num_kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim))
    x, out = tokens(), []
    for i in range(N):
        seen, heads_out = list(range(i + 1 if causal else N)), []
        for head in range(heads):
            scores, values = scores_and_values(x, ours, i, seen, head)
            heads_out.append((F.softmax(scores, -1)[..., None] * values).sum(1))
        out.append(torch.cat(heads_out, -1) @ ours.proj_out.weight.T)
    assert ours.proj_out.weight.shape == (D, heads * value_dim)
    assert_close(ours(x, sequence(N)), torch.stack(out, 1))
    if causal:
        cache = ours.init_cache(2)
        steps = [ours(x[:, i : i + 1], Seq(torch.tensor([i]), torch.zeros(1, 1, 1)), cache) for i in range(N)]
        assert_close(torch.cat(steps, 1), torch.stack(out, 1))
        assert cache.bytes == 2 * kv_heads * N * (key_dim + value_dim) * 8


@CAUSAL
@pytest.mark.parametrize(("heads", "key_dim"), [(1, 6), (1, 16), (4, 10)])
def test_keys_of_a_custom_width_rotate(heads: int, key_dim: int, causal: bool) -> None:
    """Channel pairs of the key rotate by p base^(-2i / key_dim), as complex numbers; when decoding too."""
    ctx = context(causal=causal, heads=heads)
    ours = stirred(Attention(ctx, key_dim=key_dim, value_dim=3))
    x, rope, half = tokens(), Rope(ctx), key_dim // 2
    q, k, v = (x @ w.T for w in ours.proj_in.weight.split(ours.widths))
    wave = torch.polar(torch.ones(N, half), torch.arange(N)[:, None] * 10000.0 ** (-torch.arange(half) / half))
    out = []
    for head in range(heads):
        a, b = (each[..., head * key_dim : (head + 1) * key_dim] for each in (q, k))
        a, b = (torch.complex(each[..., :half], each[..., half:]) * wave for each in (a, b))
        score = (a @ b.mH).real / math.sqrt(key_dim)
        score = score.masked_fill(torch.ones(N, N).triu(1).bool(), float("-inf")) if causal else score
        out.append(F.softmax(score, -1) @ v[..., head * 3 : head * 3 + 3])
    expected, seq = torch.cat(out, -1) @ ours.proj_out.weight.T, replace(sequence(N), position=rope)
    assert_close(ours(x, seq), expected, **FLOAT32_STEPS)
    if causal:
        cache, steps = ours.init_cache(2), []
        for i in range(N):
            place = torch.tensor([[[float(i)]]], dtype=torch.float64)
            steps.append(ours(x[:, i : i + 1], Seq(torch.tensor([i]), place, position=rope), cache))
        assert_close(torch.cat(steps, 1), expected, **FLOAT32_STEPS)


def test_keys_of_a_custom_width_rotate_in_models() -> None:
    for position in ("rope", "xpos", "alibi"):
        picks = {"position": position, "options": {"token_mixer": {"key_dim": 6, "value_dim": 3, "output_dim": 5}}}
        cached_decoding(tiny(causal=True, sizes={"heads": 1}, **picks), 6)
        relative(tiny(causal=True, **picks), 6)
    # Heads of 3 channels have no pairs, queries of 4 do.
    tiny(position="rope", sizes={"dim": 12}, options={"token_mixer": {"key_dim": 4}})
    with pytest.raises(ValueError, match=r"width of queries and keys .* multiple of 2, not 5; change token_mixer.key_"):
        tiny(position="rope", options={"token_mixer": {"key_dim": 5}})
    with pytest.raises(ValueError, match="multiple of 4, not 6"):
        tiny(position="rope", axes=2, options={"token_mixer": {"key_dim": 6}})


@CAUSAL
@pytest.mark.parametrize(("heads", "output_dim"), [(1, 5), (4, 24)])
def test_an_output_width(heads: int, output_dim: int, causal: bool) -> None:
    """The joined heads pass through two matrices, the first to `output_dim` channels."""
    ctx = context(causal=causal, heads=heads)
    options = {"key_dim": 3, "value_dim": 7, "bias": True}
    ours = stirred(Attention(ctx, output_dim=output_dim, **options))
    plain, x = Attention(ctx, **options).double(), tokens()
    assert ours.join.weight.shape == (output_dim, heads * 7)
    assert ours.proj_out.weight.shape == (D, output_dim)
    plain.proj_in.load_state_dict(ours.proj_in.state_dict())
    with torch.no_grad():
        plain.proj_out.weight.copy_(ours.proj_out.weight @ ours.join.weight)
        plain.proj_out.bias.copy_(ours.proj_out.bias)
    assert_close(ours(x, sequence(N)), plain(x, sequence(N)))
    memory = Memory(tokens(9), sequence(9))
    assert_close(ours(x, sequence(N), memory=memory), plain(x, sequence(N), memory=memory))


def test_an_output_width_changes_counts_and_initial_weights() -> None:
    ctx = context(dim=64, depth=8)

    def count(**options: int) -> int:
        return sum(p.numel() for p in Attention(ctx, **options).parameters())

    assert count(output_dim=8) == count() - 64 * 64 + 2 * 8 * 64
    assert count(output_dim=64) == count()
    mixer = initialise(Attention(ctx, output_dim=32), 0)
    assert mixer.join.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert mixer.proj_out.weight.std().item() == pytest.approx(0.02 / math.sqrt(2 * 8), rel=0.1)
    fused = {"options": {"token_mixer": {"output_dim": 5}, "block": {"fused": True}}}
    apart = {"options": {"token_mixer": {"output_dim": 5}, "block": {"fused": False}}}
    ids = token_ids(2, 6)
    assert_close(tiny(block="parallel", **fused)(ids), tiny(block="parallel", **apart)(ids))


@CAUSAL
@pytest.mark.parametrize("window", [1, 2, 4, 99])
def test_windowed(window: int, causal: bool) -> None:
    ours = stirred(WindowedAttention(context(causal=causal), window=window, bias=True))
    i, j = torch.arange(N)[:, None], torch.arange(N)
    hidden = (i - j >= window) | (j - i >= (1 if causal else window))
    x = tokens()
    assert_close(ours(x, sequence(N)), paired(ours)(x, x, x, attn_mask=hidden)[0])


@CAUSAL
def test_strict(causal: bool) -> None:
    ours = stirred(StrictAttention(context(causal=causal), bias=True))
    hidden = torch.eye(N).bool() | (torch.ones(N, N).triu(1).bool() if causal else torch.zeros(N, N).bool())
    x = tokens()
    out, expected = ours(x, sequence(N)), paired(ours)(x, x, x, attn_mask=hidden)[0]
    first = 1 if causal else 0  # torch gives NaN where nothing is seen
    assert_close(out[:, first:], expected[:, first:])
    if causal:
        assert_close(out[:, 0], ours.proj_out.bias.expand(2, -1))


def reaches(mixer: StrictAttention) -> list[list[bool]]:
    """Which tokens affect each output."""
    x = tokens().requires_grad_()
    slopes = [torch.autograd.grad(mixer(x, sequence(N))[:, i].sum(), x)[0] for i in range(N)]
    return [(slope.abs().amax((0, 2)) > 1e-12).tolist() for slope in slopes]


@CAUSAL
@pytest.mark.parametrize("layers", ["first", "all"])
def test_strict_layers(layers: str, causal: bool) -> None:
    """With a learned query, nothing of a token reaches its own output."""
    strict = [StrictAttention(context(depth=3).at(layer), layers=layers).strict for layer in range(3)]
    assert strict == [True, layers == "all", layers == "all"]
    blind = stirred(StrictAttention(context(causal=causal), layers=layers, asks="learned", bias=True))
    others = [[j < i or (j > i and not causal) for j in range(N)] for i in range(N)]
    assert reaches(blind) == others
    own = [[seen or i == j for j, seen in enumerate(sees)] for i, sees in enumerate(others)]
    own[0] = others[0] if causal else own[0]
    own[1] = others[1] if causal else own[1]  # one key only, whatever the query
    assert reaches(stirred(StrictAttention(context(causal=causal), layers=layers))) == own
    with torch.no_grad():
        twin = StrictAttention(context(causal=causal), bias=True).double()
        twin.load_state_dict(blind.state_dict(), strict=False)
        query = F.linear(blind.question, blind.proj_in.weight[:D], blind.proj_in.bias[:D])
        twin.proj_in.weight[:D], twin.proj_in.bias[:D] = 0, query
    assert_close(blind(tokens(), sequence(N)), twin(tokens(), sequence(N)))


@CAUSAL
@pytest.mark.parametrize("padded", [False, True])
def test_memory_attention_with_one_slot_is_torchs_bias_kv(padded: bool, causal: bool) -> None:
    ours = stirred(MemoryAttention(context(causal=causal), slots=1, bias=True))
    theirs = paired(ours, add_bias_kv=True)
    with torch.no_grad():
        theirs.bias_k.copy_(ours.keys.flatten()[None, None])
        theirs.bias_v.copy_(ours.values.flatten()[None, None])
    valid = torch.arange(N) < torch.tensor([[4], [6]]) if padded else None
    hidden = torch.ones(N, N).triu(1).bool() if causal else None
    x = tokens()
    out = ours(x, sequence(N, valid))
    assert_close(out, theirs(x, x, x, attn_mask=hidden, key_padding_mask=None if valid is None else ~valid)[0])


def test_planted_window_without_itself_is_caught() -> None:
    """Planted: a window that excludes the token itself."""
    ours = stirred(WindowedAttention(context(causal=True), window=3, bias=True))
    ours.window = 4
    i, j = torch.arange(N)[:, None], torch.arange(N)
    x = tokens()
    with pytest.raises(AssertionError):
        assert_close(ours(x, sequence(N)), paired(ours)(x, x, x, attn_mask=(i - j >= 3) | (j > i))[0])
