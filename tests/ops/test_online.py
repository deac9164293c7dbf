"""The online softmax: equal to the formula with its gradients, in memory that grows with N; kernels by name."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from blockyard.contracts import Position, Seq
from blockyard.errors import UserError
from blockyard.ops import kernel, online
from blockyard.ops.attend import attend, prepare
from blockyard.ops.cache import KVCache
from blockyard.ops.custom_weights import hard, weigh
from blockyard.ops.kernel import attention_kernel, selected
from blockyard.ops.mask import CAUSAL, FULL, Visibility
from blockyard.ops.reference import eager
from blockyard.token_mixer.memory_attention import with_slots
from tests.ops.attention_inputs import FACTS, PREFIX, N, facts, qkv, scheme
from tests.support.helpers import PAIRS, context, factory
from tests.support.pairwise import in_pairs

HIDDEN = [FULL, CAUSAL]
HIDDEN += [Visibility(window=2), Visibility(True, 3), Visibility(strict=True), Visibility(True, None, True)]
POSITIONS = ["no", "alibi", "bias_table", "t5_bias"]
CASES = list(product(FACTS, range(len(HIDDEN)), POSITIONS, [0, PREFIX], [4, 2], [2, 9]))


def learned(name: str) -> Position | None:
    """A position scheme with random weights, in float64."""
    position = scheme(name)
    if position is None:
        return None
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in position.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return position.double()


def gradients(path: Any, tensors: list[Tensor], position: nn.Module | None, *more: Any, **named: Any) -> list[Tensor]:
    """The output, and the gradients of queries, keys, values and the position scheme's weights."""
    inputs = [tensor.clone().requires_grad_() for tensor in tensors]
    weights = [] if position is None else list(position.parameters())
    out = path(*inputs, *more, **named)
    factor = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=out.dtype)
    computed = torch.autograd.grad((out * factor).sum(), [*inputs, *weights], allow_unused=True)
    return [out, *(torch.zeros(()) if each is None else each for each in computed)]


def assert_equal(tensors: list[Tensor], position: nn.Module | None, *more: Any, chunk: int = 2) -> None:
    """Output and gradients are those of the formula, also where a query sees nothing."""
    expected = gradients(eager, tensors, position, *more)
    for ours, theirs in zip(gradients(online.online, tensors, position, *more, chunk=chunk), expected, strict=True):
        assert torch.isfinite(ours).all()
        assert_close(ours, theirs)


@pytest.mark.parametrize(("kind", "hidden", "position", "prefix", "kv_heads", "chunk"), in_pairs(CASES))
def test_values_and_gradients_are_those_of_the_formula(
    kind: str, hidden: int, position: str, prefix: int, kv_heads: int, chunk: int
) -> None:
    where = learned(position)
    seq, tensors = facts(kind, where, prefix), qkv(torch.float64, kv_heads)
    assert_equal(tensors, where, seq, seq, HIDDEN[hidden], chunk=chunk)


def test_other_keys_ties_pairs_and_scale() -> None:
    """Keys of a memory, tokens of one index, values of another width, a scale, and facts of pairs."""
    q, k, v = qkv(torch.float64, 2, n=3)
    assert_equal([q, k, v[..., :5]], None, facts("plain", n=3), facts("padded"), FULL, 0.3)
    tied = replace(facts("plain"), index=torch.tensor([0, 0, 0, 1, 2, 3, 4]), ties=True)
    assert_equal(qkv(torch.float64), None, tied, tied, CAUSAL, 0.3)
    graph = factory("position", "graph")(context(axes=0))
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    pairs = tuple(torch.randint(4, (2, N, N), generator=torch.Generator().manual_seed(n)) for n in range(len(PAIRS)))
    seq = replace(facts("plain", graph.double()), pairs=pairs)
    assert_equal(qkv(torch.float64), graph, seq, seq, FULL, None)
    graph.prefix = nn.Parameter(torch.ones(4, dtype=torch.float64))
    seq = replace(seq, num_prefix=PREFIX, memo={})  # behind trained keys, which have no relation to a node
    q, keys = qkv(torch.float64)[0], with_slots(seq, 3)
    assert_equal([q, *qkv(torch.float64, m=N + 3)[1:]], graph, seq, keys, FULL, None)


@pytest.mark.full
def test_gradcheck() -> None:
    where = learned("alibi")
    seq = facts("both", where, PREFIX)
    tensors = [tensor.requires_grad_() for tensor in qkv(torch.float64, 2, width=3)]
    assert torch.autograd.gradcheck(lambda *each: online.online(*each, seq, seq, CAUSAL, chunk=3), tensors)


def test_half_precision_under_autocast() -> None:
    seq, tensors = facts("padded", scheme("alibi")), qkv(torch.float32)
    half = [tensor.bfloat16() for tensor in tensors]
    with torch.autocast("cpu", torch.bfloat16), attention_kernel("online"):
        actual = gradients(attend, half, None, seq, seq, CAUSAL)
    for ours, theirs in zip(actual, gradients(eager, tensors, None, seq, seq, CAUSAL), strict=True):
        assert ours.dtype == torch.bfloat16
        assert_close(ours.float(), theirs, rtol=0.05, atol=0.05)


def test_planted_bugs_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    seq, tensors, real = facts("plain"), qkv(torch.float64), online.Call.parts
    assert_equal(tensors, None, seq, seq, CAUSAL)
    monkeypatch.setattr(online.Call, "parts", lambda self: list(real(self))[:-1])  # the last chunk is left out
    with pytest.raises(AssertionError):
        assert_equal(tensors, None, seq, seq, CAUSAL)
    monkeypatch.setattr(online.Call, "parts", real)
    sums = online.forward  # weights do not sum to one in gradients
    monkeypatch.setattr(online, "forward", lambda *call: (sums(*call)[0], sums(*call)[1] + 0.1))
    with pytest.raises(AssertionError):
        assert_equal(tensors, None, seq, seq, CAUSAL)


class Largest(TorchDispatchMode):
    """The numbers in the largest tensor that an operation gives out."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return out


def largest(path: Any, n: int, **named: Any) -> int:
    """Of a forward and a backward pass over padded tokens with a bias."""
    where = learned("t5_bias")
    seq, tensors = facts("padded", where, n=n), qkv(torch.float64, n=n, m=n)
    with Largest() as counted:
        gradients(path, tensors, where, seq, seq, CAUSAL, **named)
    return counted.numbers


def test_no_tensor_grows_with_the_square_of_the_tokens() -> None:
    short, long = (largest(online.online, n, chunk=8) for n in (64, 256))
    assert long == 4 * short == 2 * 4 * 256 * 8
    assert largest(eager, 256) == 2 * 4 * 256 * 256


@pytest.mark.parametrize("name", ["sdpa", "online", "eager"])
def test_a_kernel_by_name_gives_the_same(name: Any) -> None:
    for kind, where in (("plain", None), ("both", scheme("alibi"))):
        seq, tensors = facts(kind, where, PREFIX), qkv(torch.float64, 2)
        expected = attend(*tensors, seq, seq, CAUSAL)
        with attention_kernel(name):
            prepare(seq, CAUSAL, 4, 8, tensors[0])
            assert_close(attend(*tensors, seq, seq, CAUSAL), expected)
    assert selected() == "auto"


def test_through_a_cache() -> None:
    whole, (q, k, v) = facts("plain", scheme("alibi"), PREFIX), qkv(torch.float64, 2)
    cache, out = KVCache(2, 2, 8), []
    with attention_kernel("online"):
        for start, end in ((0, 4), (4, 5), (5, N)):
            part = slice(start, end)
            new = Seq(whole.index[part], whole.coords[:, part], position=whole.position)
            new.num_prefix = 0 if start else PREFIX
            keys, values, k_seq = cache.append(k[:, :, part], v[:, :, part], new)
            out.append(attend(q[:, :, part], keys, values, new, k_seq, CAUSAL))
    assert_close(torch.cat(out, 2), eager(q, k, v, whole, whole, CAUSAL))


def test_a_kernel_that_cannot_serve_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    seq, tensors = facts("plain"), qkv(torch.float64)
    with attention_kernel("online"), pytest.raises(UserError, match="has no dropout on the weights; use"):
        attend(*tensors, seq, seq, CAUSAL, dropout=0.1)
    with attention_kernel("flex"), pytest.raises(UserError, match="FlexAttention is used on CUDA only, not on cpu"):
        attend(*tensors, seq, seq, CAUSAL)
    with attention_kernel("online"), pytest.raises(UserError, match="are not a plain softmax"):
        weigh(*tensors, seq, seq, CAUSAL, rule=hard)
    monkeypatch.setattr(kernel, "layer", lambda: "blocks.1.token_mixer")
    with attention_kernel("flex"), pytest.raises(UserError, match=r"flex cannot serve in blocks\.1\.token_mixer: "):
        attend(*tensors, seq, seq, CAUSAL)
