"""The state of keys and values in chunks and token by token, against loops over its equation and transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from blockyard.ops import fast_weights
from blockyard.ops.documents import document_starts
from blockyard.ops.fast_weights import chunked, recurrent
from tests.support.every import every
from tests.support.tolerances import float32

B, H, K, V = 2, 3, 4, 5
EXACT = {"rtol": 1e-9, "atol": 1e-9}
KINDS = [(delta, channels) for delta in (False, True) for channels in (1, K)]


def parts(size: int, delta: bool, channels: int, *, strong: float = 2.0, dtype: torch.dtype = torch.float64) -> Any:
    """Unit queries and keys, values, logarithms of decays, and beta between 0 and 2."""
    torch.manual_seed(size)
    q, k = (F.normalize(torch.randn(B, H, size, K, dtype=dtype), dim=-1) for _ in range(2))
    v, log = torch.randn(B, H, size, V, dtype=dtype), -strong * torch.rand(B, H, size, channels, dtype=dtype)
    return (q, k, v, log, 2 * torch.rand(B, H, size, 1, dtype=dtype) if delta else None)


def loop(
    q: Tensor, k: Tensor, v: Tensor, log: Tensor, beta: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The equation of one document as it stands in the papers: transitions are matrices of keys by keys."""
    outputs = torch.zeros(B, H, q.shape[2], V, dtype=q.dtype)
    last = torch.zeros(B, H, K, V, dtype=q.dtype)
    for b in range(B):
        for h in range(H):
            s = torch.zeros(K, V, dtype=q.dtype) if state is None else state[b, h]
            for t in range(q.shape[2]):
                key, decay = k[b, h, t], torch.diag(log[b, h, t].exp().expand(K))
                rate = torch.ones(()) if beta is None else beta[b, h, t, 0]
                erase = torch.eye(K, dtype=q.dtype) - (0 if beta is None else rate) * torch.outer(key, key)
                s = erase @ decay @ s + rate * torch.outer(key, v[b, h, t])
                outputs[b, h, t] = s.T @ q[b, h, t]
            last[b, h] = s
    return outputs, last


@pytest.mark.parametrize(("delta", "channels"), KINDS)
def test_chunks_and_single_tokens_give_what_the_equation_gives(delta: bool, channels: int) -> None:
    start = torch.randn(B, H, K, V, dtype=torch.float64)
    for size in (1, 2, 7, 16):
        inputs = parts(size, delta, channels)
        for state in (None, start):
            expected = loop(*inputs, state)
            assert_close(recurrent(*inputs, state=state), expected, **EXACT)
            for chunk in (1, 2, 3, 4, 64):
                assert_close(chunked(*inputs, state=state, chunk=chunk), expected, **EXACT)


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize(("delta", "channels"), KINDS)
def test_every_document_starts_from_the_state_after_the_prefix(delta: bool, channels: int, prefix: int) -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 3, 3, 3, 3], [4, 5, 5, 5, 5, 5, 5, 5, 5, 6]])
    segment = F.pad(documents, (prefix, 0))
    inputs = parts(segment.shape[1], delta, channels)
    expected = torch.zeros(B, H, segment.shape[1], V, dtype=torch.float64)
    for b, row in enumerate(documents):
        own = [None if part is None else part[b : b + 1].expand(B, -1, -1, -1) for part in inputs]
        expected[b, :, :prefix] = loop(*(None if part is None else part[:, :, :prefix] for part in own))[0][0]
        for document in row.unique():
            tokens = torch.cat([torch.arange(prefix), prefix + (row == document).nonzero()[:, 0]])
            out, _ = loop(*(None if part is None else part[:, :, tokens] for part in own))
            expected[b, :, tokens[prefix:]] = out[0, :, prefix:]
    for chunk in (1, 2, 4, 8, 64):
        out, _ = chunked(*inputs, segment=segment, num_prefix=prefix, chunk=chunk)
        assert_close(out, expected, **EXACT)


def test_starts_of_documents() -> None:
    segment = torch.tensor([[0, 0, 0, 1, 1, 0], [2, 2, 3, 3, 3, 3]])
    assert document_starts(segment).tolist() == [[0, 0, 0, 3, 3, 5], [0, 0, 2, 2, 2, 2]]
    assert document_starts(segment, 1).tolist() == [[0, 1, 1, 3, 3, 5], [0, 1, 2, 2, 2, 2]]


@pytest.mark.parametrize("heads_of_keys", [1, H])
def test_gated_delta_rule_of_transformers(heads_of_keys: int) -> None:
    """Its chunks and its loop compute in float32."""
    q, k, v, log, beta = parts(70, True, 1, dtype=torch.float32)
    q, k = q[:, :heads_of_keys], k[:, :heads_of_keys]
    theirs = [part.transpose(1, 2) for part in (q, k, v)]
    rest = {"g": log[..., 0].transpose(1, 2), "beta": beta[..., 0].transpose(1, 2), "output_final_state": True}
    q, k = (part.repeat_interleave(H // heads_of_keys, 1) for part in (q, k))
    for rule in (qwen.torch_chunk_gated_delta_rule, qwen.torch_recurrent_gated_delta_rule):
        out, state = rule(*theirs, **rest)
        ours = chunked(q * K**-0.5, k, v, log, beta)
        assert_close(ours, (out.transpose(1, 2), state), **float32(terms=70))


def test_kimi_delta_attention_of_transformers() -> None:
    q, k, v, log, beta = parts(70, True, K, dtype=torch.float32)
    theirs = [part.transpose(1, 2) for part in (q, k, v, log, beta[..., 0])]
    for rule in (kimi.chunk_kimi_delta_attention, kimi.recurrent_kimi_delta_attention):
        out, state = rule(*theirs, initial_state=None, output_final_state=True)
        ours = chunked(q * K**-0.5, k, v, log, beta)
        assert_close(ours, (out.transpose(1, 2), state), **float32(terms=70))


@pytest.mark.parametrize(("delta", "channels"), KINDS)
def test_strong_decays_stay_finite(delta: bool, channels: int) -> None:
    """A factor such as 1 / G of a chunk would overflow."""
    inputs = [None if part is None else part.requires_grad_() for part in parts(64, delta, channels, strong=1e3)]
    out, _ = chunked(*inputs, chunk=64)
    out.sum().backward()
    assert_close(out, recurrent(*inputs)[0], **EXACT)
    assert every(part.grad.isfinite().all() for part in inputs if part is not None)


@pytest.mark.parametrize(("delta", "channels"), KINDS)
def test_gradients(delta: bool, channels: int) -> None:
    inputs = [None if part is None else part.requires_grad_() for part in parts(11, delta, channels)]
    leaves = [part for part in inputs if part is not None]
    grads = [
        torch.autograd.grad(out.square().sum(), leaves)
        for out in (loop(*inputs)[0], recurrent(*inputs)[0], chunked(*inputs, chunk=4)[0])
    ]
    assert_close(grads[1], grads[0], **EXACT)
    assert_close(grads[2], grads[0], **EXACT)


@pytest.mark.parametrize("planted", ["inverse", "documents"])
def test_planted_faults_are_caught(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the delta rule of a chunk is its first-order part; documents end where their numbers differ, unseen."""
    if planted == "inverse":
        monkeypatch.setattr(fast_weights, "_inverse", lambda a: torch.eye(a.shape[-1], dtype=a.dtype) - a.tril(-1))
        with pytest.raises(AssertionError):
            test_chunks_and_single_tokens_give_what_the_equation_gives(delta=True, channels=1)
    else:
        monkeypatch.setattr(fast_weights, "document_starts", torch.zeros_like)
        with pytest.raises(AssertionError):
            test_every_document_starts_from_the_state_after_the_prefix(delta=False, channels=1, prefix=0)
