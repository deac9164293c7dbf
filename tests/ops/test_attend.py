"""Every path of `ops.attend` against both references, in float64 and float32."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.ops import kernel, mask
from blockyard.ops.attend import attend, prepare
from blockyard.ops.cache import KVCache
from blockyard.ops.flex import flex
from blockyard.ops.mask import CAUSAL, FULL, Visibility
from blockyard.ops.reference import chunked, eager
from tests.ops.attention_inputs import FACTS, PREFIX, N, facts, qkv, scheme
from tests.support.every import every
from tests.support.pairwise import in_pairs
from tests.support.tolerances import FLOAT64, float32

# The unfused form is what is compared here.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")


CASES = list(product(FACTS, [False, True], ["no", "alibi"], [0, PREFIX], [4, 2, 1]))


@pytest.mark.parametrize(("kind", "causal", "position", "prefix", "kv_heads"), CASES)
def test_against_both_references(kind: str, causal: bool, position: str, prefix: int, kv_heads: int) -> None:
    seq, visibility = facts(kind, scheme(position), prefix), Visibility(causal)
    q, k, v = qkv(torch.float64, kv_heads)
    wanted = eager(q, k, v, seq, seq, visibility)
    assert torch.isfinite(wanted).all()
    assert_close(chunked(q, k, v, seq, seq, visibility), wanted)
    assert_close(attend(q, k, v, seq, seq, visibility), wanted)
    prepare(seq, visibility, 4, 8, q)
    assert_close(attend(q, k, v, seq, seq, visibility), wanted)
    single = [t.float() for t in (q, k, v)]
    assert_close(attend(*single, seq, seq, visibility), wanted.float(), **float32(terms=8 + N, layers=2, size=3.0))
    assert_close(attend(q, k, v, seq, seq, visibility, scale=0.3), eager(q, k, v, seq, seq, visibility, 0.3))


# Flex attention is traced anew each time.
@pytest.mark.sampled(4)
@pytest.mark.parametrize(("kind", "causal", "position", "prefix", "kv_heads"), in_pairs(CASES))
def test_flex_attention_against_the_reference(
    kind: str, causal: bool, position: str, prefix: int, kv_heads: int
) -> None:
    seq = facts(kind, scheme(position), prefix)
    q, k, v = qkv(torch.float64, kv_heads)
    scale = 0.3 if causal == bool(prefix) else None
    wanted = eager(q, k, v, seq, seq, Visibility(causal), scale)
    assert_close(flex(q, k, v, seq, seq, Visibility(causal), scale, compiled=False), wanted, **FLOAT64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", FACTS)
def test_gradients(kind: str, causal: bool) -> None:
    """Rows that see nothing included: their gradients are zero, not NaN."""
    seq = facts(kind)
    grads = []
    for path in (attend, eager):
        tensors = [t.requires_grad_() for t in qkv(torch.float64, 2)]
        path(*tensors, seq, seq, Visibility(causal)).square().sum().backward()
        grads.append([t.grad for t in tensors])
    for ours, theirs in zip(*grads, strict=True):
        assert torch.isfinite(ours).all()
        assert_close(ours, theirs)


def test_what_sees_nothing_gives_zero() -> None:
    seq = facts("padded")
    out = attend(*qkv(torch.float32), seq, seq, FULL)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert out[0].abs().min() > 0


@pytest.mark.parametrize("kind", ["plain", "padded"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_memory_of_another_length(kind: str, kv_heads: int) -> None:
    """Keys of another row: its padding counts, the scheme of this one does not."""
    seq, memory = facts("plain", scheme("alibi"), n=3), facts(kind)
    q, k, v = qkv(torch.float64, kv_heads, n=3)
    out = attend(q, k, v, seq, memory, FULL)
    assert_close(out, eager(q, k, v, seq, memory, FULL))
    bare = facts("plain", n=3)
    assert_close(out, attend(q, k, v, bare, memory, FULL))


@pytest.mark.parametrize("sizes", [[1] * N, [3, 4], [4, 1, 2], [N]])
@pytest.mark.parametrize("position", ["no", "alibi"])
def test_through_a_cache(position: str, sizes: list[int]) -> None:
    where = scheme(position)
    whole = facts("plain", where, PREFIX)
    q, k, v = qkv(torch.float64, 2)
    wanted = eager(q, k, v, whole, whole, CAUSAL)
    cache, parts, start = KVCache(2, 2, 8), [], 0
    sizes = [PREFIX + sizes[0] - 1, *sizes[1:]] if len(sizes) == 1 else sizes
    sizes = [N] if sum(sizes) != N else sizes
    if sizes[0] < PREFIX:
        sizes = [PREFIX, *[1] * (N - PREFIX)]
    for size in sizes:
        here = slice(start, start + size)
        new = Seq(whole.index[here], whole.coords[:, here], num_prefix=0 if start else PREFIX, position=where)
        keys, values, k_seq = cache.append(k[:, :, here], v[:, :, here], new)
        parts.append(attend(q[:, :, here], keys, values, new, k_seq, CAUSAL))
        start += size
    assert_close(torch.cat(parts, 2), wanted)
    assert cache.length == N
    assert cache.bytes == 2 * 2 * 2 * N * 8 * 8
    assert cache.seq.num_prefix == PREFIX


def test_one_query_before_its_keys_is_still_causal() -> None:
    """A single query is free of a mask only where the cache says that nothing is later."""
    q, k, v = qkv(torch.float64, n=1)
    whole = facts("plain")
    early = Seq(torch.tensor([2]), whole.coords[:, 2:3])
    out = attend(q, k, v, early, whole, CAUSAL)
    assert_close(out, eager(q, k[:, :, :3], v[:, :, :3], early, facts("plain", n=3), FULL))


def test_segments_of_one_side_are_refused() -> None:
    with pytest.raises(ValueError, match="both or neither"):
        attend(*qkv(torch.float64), facts("plain"), facts("packed"), FULL)


def test_dropout_only_where_asked() -> None:
    seq, tensors = facts("plain"), qkv(torch.float64)
    torch.manual_seed(0)
    dropped = attend(*tensors, seq, seq, CAUSAL, dropout=0.5)
    assert not torch.allclose(dropped, attend(*tensors, seq, seq, CAUSAL))


def test_planted_top_left_alignment_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a piece after a cache is masked as if it were the first."""
    whole = facts("plain")
    new = Seq(whole.index[4:], whole.coords[:, 4:])
    q, k, v = qkv(torch.float64, n=3)
    wanted = eager(q, k, v, new, whole, CAUSAL)
    assert_close(attend(q, k, v, new, whole, CAUSAL), wanted)
    monkeypatch.setattr(mask, "reasons", lambda *_: [])
    with pytest.raises(AssertionError):
        assert_close(attend(q, k, v, new, whole, CAUSAL), wanted)


def test_planted_bias_on_the_prefix_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    seq, tensors = facts("plain", scheme("alibi"), PREFIX), qkv(torch.float64)
    out = attend(*tensors, seq, seq, CAUSAL)
    seq.num_prefix = 0
    with pytest.raises(AssertionError):
        assert_close(out, eager(*tensors, seq, seq, CAUSAL))


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("kind", FACTS)
def test_groups_without_a_kernel_for_them(kind: str, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no fused kernel reads grouped keys in place they are repeated, each for its own queries."""
    seq, tensors = facts(kind, scheme("alibi"), PREFIX), qkv(torch.float64, kv_heads)
    monkeypatch.setattr(kernel, "takes_groups", lambda *_: False)
    assert_close(attend(*tensors, seq, seq, CAUSAL), eager(*tensors, seq, seq, CAUSAL))


@pytest.mark.parametrize("causal", [False, True])
def test_short_training_sequences_in_bfloat16_are_computed_in_float32(causal: bool) -> None:
    """Under autocast too; values and gradients are those of float32, rounded."""
    seq, visibility = facts("plain", None, 0), Visibility(causal)
    q, k, v = (x.bfloat16().requires_grad_() for x in qkv(torch.float32, 4))
    exact = [x.detach().float().requires_grad_() for x in (q, k, v)]
    assert kernel.faster_in_float32(q, k, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(q, k, v, seq, seq, visibility)
    reference = attend(*exact, seq, seq, visibility)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, reference.bfloat16())
    slope = torch.randn_like(reference).bfloat16()
    wanted = torch.autograd.grad(reference, exact, slope.float())
    assert every(
        torch.equal(a, b.bfloat16()) for a, b in zip(torch.autograd.grad(out, (q, k, v), slope), wanted, strict=True)
    )


def test_other_attention_keeps_its_type() -> None:
    q = torch.randn(1, 1, 4, 8, dtype=torch.bfloat16, requires_grad=True)
    assert not kernel.faster_in_float32(q, q.new_zeros(1, 1, kernel.SHORT + 1, 8), None)
    assert not kernel.faster_in_float32(q, q, torch.ones(4, 4, dtype=torch.bool))
    assert not kernel.faster_in_float32(q.float(), q.float(), None)
    assert not kernel.faster_in_float32(q.detach(), q, None)
