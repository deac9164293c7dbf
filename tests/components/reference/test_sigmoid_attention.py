"""Sigmoid attention against its equation, query by query, and against x-transformers; its bias under masks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from x_transformers.attend import Attend

from blockyard.contracts import Memory
from blockyard.ops import custom_weights, maps
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.sigmoid_attention import SigmoidAttention
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.components.reference.attention_inputs import CAUSAL, D, N, scores_and_values, tokens
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context, tiny

KINDS = pytest.mark.parametrize("score_bias", ["length", "keys"])


def mixer_of(causal: bool, **options: Any) -> SigmoidAttention:
    """A mixer with large weights, of sequences of up to `N` tokens."""
    return stirred(SigmoidAttention(context(causal=causal), **options))


def by_hand(ours: SigmoidAttention, x: Tensor, i: int, visible: list[int], n: int) -> Tensor:
    """What token i of x (B, N, D) reads from the visible tokens: (B, D)."""
    out = []
    for head in range(4):
        scores, values = scores_and_values(x, ours, i, visible, head)
        weights = 1 / (1 + n * torch.exp(-scores))  # sigmoid(s - ln n)
        out.append((weights[..., None] * values).sum(1))
    return torch.cat(out, -1) @ ours.proj_out.weight.T


@CAUSAL
@KINDS
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_the_equation(kv_heads: int, score_bias: str, causal: bool) -> None:
    ours, x, out = mixer_of(causal, score_bias=score_bias, num_kv_heads=kv_heads), tokens(), []
    for i in range(N):
        visible = list(range(i + 1 if causal else N))
        out.append(by_hand(ours, x, i, visible, N if score_bias == "length" else len(visible)))
    assert_close(ours(x, sequence(N)), torch.stack(out, 1))


@CAUSAL
def test_of_x_transformers(causal: bool) -> None:
    """On equal queries, keys and values, with the bias of the paper."""
    ours, x = mixer_of(causal), tokens()
    q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in (x @ ours.proj_in.weight.T).chunk(3, -1))
    theirs = Attend(heads=4, causal=causal, sigmoid=True)
    read, _ = theirs(q, k, v, attn_bias=torch.full((4, N, N), -math.log(N), dtype=torch.float64))
    assert_close(ours(x, sequence(N)), read.transpose(1, 2).flatten(2) @ ours.proj_out.weight.T)


@KINDS
def test_padding_and_documents(score_bias: str) -> None:
    """Padding has no weight, and neither padding nor another document counts as a key."""
    ours, x = mixer_of(False, score_bias=score_bias), tokens()
    valid = torch.arange(N) < torch.tensor([[4], [6]])
    out = ours(x, sequence(N, valid))
    for i in range(4):
        assert_close(out[:1, i], by_hand(ours, x[:1], i, [0, 1, 2, 3], 4 if score_bias == "keys" else N))
    segment = torch.tensor([[0, 0, 1, 1, 1, 1]] * 2)
    out = ours(x, sequence(N, segment=segment))
    for i in range(N):
        visible = [0, 1] if i < 2 else [2, 3, 4, 5]
        assert_close(out[:, i], by_hand(ours, x, i, visible, len(visible) if score_bias == "keys" else N))


@KINDS
@pytest.mark.parametrize("position", ["none", "rope", "alibi"])
def test_declared_properties(position: str, score_bias: str) -> None:
    picks = {"token_mixer": "sigmoid_attention", "position": position}
    options = {"token_mixer": {"score_bias": score_bias, "gate": "head", "qk_norm": True}}
    model = tiny(causal=True, options=options, **picks)
    for promise in (causality, padding, packing, cached_decoding):
        promise(model, N)
    padding(tiny(options=options, **picks), N)


def test_a_memory_counts_its_own_keys() -> None:
    """With the bias of the keys; that of a sequence's own length does not fit another one and is refused."""
    ours, memory, x = mixer_of(True, score_bias="keys"), tokens(9).flip(0), tokens()
    out = ours(x, sequence(N), memory=Memory(memory, sequence(9)))
    both = torch.cat([x, memory], 1)
    for i in range(N):
        assert_close(out[:, i], by_hand(ours, both, i, list(range(N, N + 9)), 9))
    with pytest.raises(ValueError, match="cross"):
        mixer_of(True)(x, sequence(N), memory=Memory(memory, sequence(9)))


def test_the_sum_of_weights_is_nearly_one_at_first() -> None:
    """n / (n + 1) for scores of zero; and more where keys agree with a query, as a softmax cannot have."""
    ours, x = mixer_of(False), tokens()
    with torch.no_grad():
        ours.proj_in.weight[:D] = 0  # all queries are zero
    with maps.listen(ours) as seen:
        ours(x, sequence(N))
        with torch.no_grad():
            ours.proj_in.weight[:D] = 50 * ours.proj_in.weight[D : 2 * D]
        ours(x, sequence(N))
    flat, sharp = (one.weights() for one in seen)
    assert_close(flat.sum(-1), torch.full_like(flat[..., 0], N / (N + 1)))
    assert sharp.sum(-1).max() > 1.5


def test_gradients_do_not_vanish_into_nan_where_a_key_is_hidden() -> None:
    ours, x = mixer_of(True), tokens().requires_grad_()
    ours(x, sequence(N))[:, 2].sum().backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad[:, 3:].abs().max() == 0
    assert x.grad[:, :3].abs().min() > 0


def test_planted_softmax_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SigmoidAttention, "_attend", Attention._attend)
    with pytest.raises(AssertionError):
        test_the_equation(4, "length", False)


def test_planted_count_of_padding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_weights.mask, "count", lambda seq, k_seq, _: torch.tensor(len(k_seq)))
    test_padding_and_documents("length")
    with pytest.raises(AssertionError):
        test_padding_and_documents("keys")
