"""Windows, strict order, values of another width, and caches that forget: every path against the definition."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.model._prefix import Prefix
from blockyard.ops import mask
from blockyard.ops.attend import attend, prepare
from blockyard.ops.cache import KVCache, WindowCache
from blockyard.ops.flex import flex
from blockyard.ops.mask import Visibility
from blockyard.ops.online import online
from blockyard.ops.reference import chunked, eager, weights
from tests.components.properties.checks import cached_decoding
from tests.ops.attention_inputs import FACTS, PREFIX, N, facts, qkv, scheme
from tests.support.helpers import tiny, token_ids
from tests.support.pairwise import in_pairs
from tests.support.tolerances import FLOAT64, float32

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")

RULES = [(None, True), (1, False), (3, False), (3, True), (N + 2, False)]
NEAR = [{"chunk": 2}, {"chunk": 3}, {"window": 4, "stride": 2}, {"stride": 3}, {"chunk": 3, "strict": True}]


def defined(
    seq: Seq, causal: bool, window: int | None, strict: bool, chunk: int | None = None, stride: int = 1
) -> Tensor:
    """Who sees whom by the words of the docstrings, one pair at a time: (2, N, N)."""
    see, p = torch.zeros(2, N, N, dtype=torch.bool), seq.num_prefix

    def number(b: int, i: int) -> int:
        """The chunk of a token, counted from the first token of its document."""
        first = p
        if seq.segment is not None:
            first = next(j for j in range(p, N) if seq.segment[b, j] == seq.segment[b, i])
        return (i - first) // (chunk or 1)

    for b, i, j in product(range(2), range(N), range(N)):
        see[b, i, j] = (
            (j <= i or not causal)
            and (seq.valid is None or bool(seq.valid[b, j]))
            and (seq.segment is None or j < p or bool(seq.segment[b, i] == seq.segment[b, j]))
            and (window is None or abs(i - j) < window or i < p or j < p)
            and not (strict and i == j)
            and (i < p or j < p or (i - j) % stride == 0)
            and (chunk is None or i < p or j < p or number(b, i) == number(b, j))
        )
    return see


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("rule", "kind", "causal", "position", "prefix"),
    in_pairs([*product(range(len(NEAR)), FACTS, [False, True], ["no", "alibi"], [0, PREFIX])]),
)
def test_chunks_and_strides(rule: int, kind: str, causal: bool, position: str, prefix: int) -> None:
    seq, options = facts(kind, scheme(position), prefix), {"window": None, "strict": False, **NEAR[rule]}
    hidden, see = Visibility(causal, **options), defined(seq, causal, **options)
    q, k, v = qkv(torch.float64, 2)
    actual = weights(q, k, seq, seq, hidden)
    assert torch.equal(actual > 0, see[:, None].expand_as(actual))
    wanted = actual @ v.repeat_interleave(2, 1)
    assert_close(attend(q, k, v, seq, seq, hidden), wanted)
    prepare(seq, hidden, 4, 8, q)
    assert_close(attend(q, k, v, seq, seq, hidden), wanted)
    assert_close(flex(q, k, v, seq, seq, hidden, compiled=False), wanted, **FLOAT64)
    assert_close(online(q, k, v, seq, seq, hidden, chunk=2), wanted)
    assert torch.equal(mask.count(seq, seq, hidden).expand(2, 1, N, 1)[:, 0, :, 0], see.sum(-1))


@pytest.mark.parametrize(("window", "strict"), RULES)
@pytest.mark.parametrize(
    ("kind", "causal", "position", "prefix"), [*product(FACTS, [False, True], ["no", "alibi"], [0, PREFIX])]
)
def test_every_path(kind: str, causal: bool, position: str, prefix: int, window: int | None, strict: bool) -> None:
    seq, rule = facts(kind, scheme(position), prefix), Visibility(causal, window, strict)
    see = defined(seq, causal, window, strict)
    q, k, v = qkv(torch.float64, 2)
    wide = torch.cat([v, v.flip(-1)[..., :3]], -1)  # 11 wide, keys 8
    for values in (v, wide, v[..., :5]):
        actual = weights(q, k, seq, seq, rule)
        assert torch.equal(actual > 0, see[:, None].expand_as(actual))
        wanted = actual @ values.repeat_interleave(2, 1)
        assert_close(eager(q, k, values, seq, seq, rule), wanted)
        assert_close(chunked(q, k, values, seq, seq, rule), wanted)
        assert_close(attend(q, k, values, seq, seq, rule), wanted)
        single = [t.float() for t in (q, k, values)]
        assert_close(attend(*single, seq, seq, rule), wanted.float(), **float32(terms=8 + N, layers=2, size=3.0))
    fresh = facts(kind, scheme(position), prefix)
    prepare(fresh, rule, 4, 8, q)
    assert_close(attend(q, k, v, fresh, fresh, rule), actual @ v.repeat_interleave(2, 1))
    plain = Visibility(causal)
    assert_close(attend(q, k, v, fresh, fresh, plain), eager(q, k, v, fresh, fresh, plain))  # masks are kept apart


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "causal", "position", "prefix", "rule"),
    in_pairs([*product(FACTS, [False, True], ["no", "alibi"], [0, PREFIX], RULES)]),
)
def test_flex_attention(kind: str, causal: bool, position: str, prefix: int, rule: tuple[int | None, bool]) -> None:
    window, strict = rule
    seq, visibility = facts(kind, scheme(position), prefix), Visibility(causal, window, strict)
    q, k, v = qkv(torch.float64, 2)
    flexed = flex(q, k, v, seq, seq, visibility, compiled=False)
    actual = weights(q, k, seq, seq, visibility)
    assert torch.equal(actual > 0, defined(seq, causal, window, strict)[:, None].expand_as(actual))
    assert_close(flexed, actual @ v.repeat_interleave(2, 1), **FLOAT64)


@pytest.mark.parametrize(("window", "strict"), RULES)
@pytest.mark.parametrize(("kind", "causal"), [*product(FACTS, [False, True])])
def test_gradients(kind: str, causal: bool, window: int | None, strict: bool) -> None:
    seq, grads = facts(kind), []
    for path in (attend, eager):
        tensors = [t.requires_grad_() for t in qkv(torch.float64, 2)]
        path(*tensors, seq, seq, Visibility(causal, window, strict)).square().sum().backward()
        grads.append([t.grad for t in tensors])
    for ours, theirs in zip(*grads, strict=True):
        assert torch.isfinite(ours).all()
        assert_close(ours, theirs)


def in_chunks(
    cache: KVCache, sizes: list[int], position: str, window: int | None, strict: bool
) -> tuple[Tensor, Tensor]:
    """What pieces through a cache give, and what the whole row gives."""
    whole = facts("plain", scheme(position), PREFIX)
    whole = Seq(whole.index, whole.coords, num_prefix=PREFIX, position=whole.position)
    q, k, v = qkv(torch.float64, 2)
    v = v[..., :5]
    rule, parts, start = Visibility(True, window, strict), [], 0
    for size in sizes:
        here = slice(start, start + size)
        new = Seq(whole.index[here], whole.coords[:, here], num_prefix=0 if start else PREFIX, position=whole.position)
        keys, values, k_seq = cache.append(k[:, :, here], v[:, :, here], new)
        parts.append(attend(q[:, :, here], keys, values, new, k_seq, rule))
        start += size
    return torch.cat(parts, 2), eager(q, k, v, whole, whole, rule)


SIZES = [[PREFIX, *[1] * (N - PREFIX)], [3, 4], [4, 1, 2], [N]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("position", ["no", "alibi"])
@pytest.mark.parametrize(("window", "strict"), RULES)
def test_through_a_cache(window: int | None, strict: bool, position: str, sizes: list[int]) -> None:
    assert_close(*in_chunks(KVCache(2, 2, 8, 5), sizes, position, window, strict))
    if window is not None:
        cache = WindowCache(2, 2, 8, 5, window=window)
        assert_close(*in_chunks(cache, sizes, position, window, strict))
        kept = min(N, PREFIX + window - 1)
        assert (cache.length, len(cache.seq)) == (N, kept)
        assert cache.bytes == 2 * 2 * kept * (8 + 5) * 8
        assert cache._k.untyped_storage().nbytes() <= 2 * 2 * N * 8 * 8


def test_planted_short_memory_is_caught() -> None:
    """Planted: a cache that forgets one token too early."""
    with pytest.raises(AssertionError):
        assert_close(*in_chunks(WindowCache(2, 2, 8, 5, window=2), SIZES[0], "no", 3, False))


def test_planted_window_on_the_prefix_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    seq, tensors, whole = facts("plain", None, PREFIX), qkv(torch.float64), mask.visible
    wanted = weights(*tensors[:2], seq, seq, Visibility(window=2))
    monkeypatch.setattr(mask, "visible", lambda causal, _, *rest: whole(causal, 0, *rest[:-1]))
    with pytest.raises(AssertionError):
        assert_close(weights(*tensors[:2], seq, seq, Visibility(window=2)), wanted)


@pytest.mark.parametrize("window", [None, 3])
def test_reorder(window: int | None) -> None:
    """Rows of a cache by number, then on: as if each had been its own from the start."""
    options = {} if window is None else {"token_mixer": {"window": window}}
    mixer = "attention" if window is None else "windowed_attention"
    model = tiny(causal=True, token_mixer=mixer, position="rope", options=options, prefix=Prefix(registers=2))
    ids, order = token_ids(3, 9), torch.tensor([2, 0, 2, 1])
    cache = model.init_cache(3)
    with torch.no_grad():
        model(ids[:, :5], cache=cache)
        before = cache.bytes
        cache.reorder(order)
        assert cache.bytes == before * 4 // 3
        picked = torch.cat([ids[order, :5], ids.flip(0)[[0, 1, 2, 0], 5:]], 1)
        for t in range(5, 9):
            assert_close(model(picked[:, t : t + 1], cache=cache)[:, 0], model(picked[:, : t + 1])[:, -1])


def test_reorder_takes_the_facts_along() -> None:
    cache = KVCache(2, 1, 4)
    coords = torch.arange(6.0).reshape(2, 3, 1)
    valid, segment = torch.tensor([[True] * 3, [True, False, False]]), torch.tensor([[0, 0, 1], [2, 2, 2]])
    k = torch.arange(2.0)[:, None, None, None].expand(2, 1, 3, 4)
    cache.append(k, k, Seq(torch.arange(3), coords, valid, segment))
    cache.reorder(torch.tensor([1, 1, 0]))
    new = Seq(torch.tensor([3]), torch.zeros(1, 1, 1), None, torch.zeros(3, 1, dtype=torch.long))
    keys, values, seq = cache.append(torch.zeros(3, 1, 1, 4), torch.zeros(3, 1, 1, 4), new)
    assert keys[:, 0, 0, 0].tolist() == values[:, 0, 2, 0].tolist() == [1.0, 1.0, 0.0]
    assert seq.coords[:, 1, 0].tolist() == [4.0, 4.0, 1.0]
    assert seq.valid.sum(1).tolist() == [2, 2, 4]
    assert seq.segment[:, 0].tolist() == [2, 2, 0]
    empty = KVCache(2, 1, 4)
    empty.reorder(torch.tensor([1, 0, 0]))
    empty.append(torch.zeros(3, 1, 1, 4), torch.zeros(3, 1, 1, 4), new)


def test_a_windowed_cache_does_not_grow() -> None:
    model = tiny(causal=True, token_mixer="windowed_attention", position="rope", sizes={"grid": (40,)})
    cache, sizes = model.init_cache(1), []
    with torch.no_grad():
        for t in range(40):
            model(token_ids(1, 40)[:, t : t + 1], cache=cache)
            sizes.append(cache.bytes)
    each = 2 * 2 * 16 * 8  # layers, keys and values, channels, bytes of a double
    assert sizes[:2] == [each, 2 * each]
    assert set(sizes[2:]) == {2 * each}  # window 3: two tokens and the one to come
    assert cache.length == 40
    cached_decoding(model, 40)


def test_wrong_shapes_are_refused() -> None:
    cache = KVCache(2, 1, 4, 6)
    seq = Seq(torch.arange(1), torch.zeros(1, 1, 1))
    with pytest.raises(ValueError, match="takes values of shape"):
        cache.append(torch.zeros(2, 1, 1, 4), torch.zeros(2, 1, 1, 4), seq)
