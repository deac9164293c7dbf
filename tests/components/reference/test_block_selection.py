"""Block selection against its definition, a loop over queries and blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.ops import maps
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.block_selection import BlockSelection
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context

N, D, H, K = 11, 16, 4, 4


def tokens() -> Tensor:
    return torch.randn(2, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def by_loop(ours: BlockSelection, x: Tensor, block: int, top: int, causal: bool) -> Tensor:
    """Of each query the blocks are sorted by the product with their mean key, and the first ones are read."""
    q, k, v = (x @ part.T for part in ours.proj_in.weight.split(ours.widths))
    blocks = [list(range(start, min(start + block, N))) for start in range(0, N, block)]
    out = torch.zeros(2, N, H, K, dtype=x.dtype)
    for b in range(2):
        for h in range(H):
            group = h // (H // ours.kv_heads)
            keys, values = (part[b, :, group * K : (group + 1) * K] for part in (k, v))
            for i in range(N):
                query = q[b, i, h * K : (h + 1) * K]
                others = [each for each in blocks if i not in each and not (causal and each[0] > i)]
                others.sort(key=lambda each: -float((query @ keys[each].mean(0)).detach()))
                mine = next(each for each in blocks if i in each)
                read = sorted(j for each in [mine, *others[: top - 1]] for j in each if not (causal and j > i))
                weights = (keys[read] @ query / K**0.5).softmax(0)
                out[b, i, h] = weights @ values[read]
    return out.flatten(2) @ ours.proj_out.weight.T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize(("block", "top"), [(2, 2), (3, 2), (3, 3), (2, 1)])
def test_the_definition(block: int, top: int, kv_heads: int, causal: bool) -> None:
    ctx = context(causal=causal)
    ours = stirred(BlockSelection(ctx, block=block, top=top, num_kv_heads=kv_heads)).eval()
    x = tokens()
    assert_close(ours(x, sequence(N)), by_loop(ours, x, block, top, causal))
    assert (ours(x, sequence(N)) - by_loop(ours, x, block, top + 1, causal)).abs().max() > 1e-3


def test_with_all_blocks_it_is_attention() -> None:
    ours = stirred(BlockSelection(context(causal=True), block=2, top=N)).eval()
    plain = Attention(context(causal=True)).double()
    plain.load_state_dict(ours.state_dict())
    assert_close(ours(tokens(), sequence(N)), plain(tokens(), sequence(N)))


def test_maps_have_the_blocks() -> None:
    ours = stirred(BlockSelection(context(causal=True), block=2, top=1)).eval()
    with maps.listen(ours) as seen:
        ours(tokens(), sequence(N))
    weights, index = seen[0].weights(), torch.arange(N)
    own = (index[:, None] // 2 == index // 2) & (index <= index[:, None])
    assert torch.equal(weights > 0, own.expand_as(weights))


def test_blocks_of_documents_and_around_padding() -> None:
    """A block starts with each document, counts padding between its keys as places, and has the mean of real keys."""
    block, top = 3, 2
    ours = stirred(BlockSelection(context(causal=True), block=block, top=top)).eval()
    segment = torch.tensor([[0] * 7 + [1] * 4, [0] * 2 + [1] * 9])
    valid = torch.ones(2, N, dtype=torch.bool)
    valid[0, [1, 4]] = valid[1, [2, 10]] = False
    with maps.listen(ours) as seen:
        ours(tokens(), sequence(N, valid, segment))
    read = seen[0].weights() > 0
    q, k, _ = (tokens() @ part.T for part in ours.proj_in.weight.split(ours.widths))
    for b in range(2):
        starts = [int((segment[b] == segment[b, i]).nonzero()[0]) for i in range(N)]
        blocks = [(starts[i], (i - starts[i]) // block) for i in range(N)]
        real = [i for i in range(N) if valid[b, i]]
        for h in range(H):
            for i in real:
                members: dict[tuple[int, int], list[int]] = {}
                for j in real:
                    if starts[j] == starts[i] and blocks[j] != blocks[i] and j <= i:
                        members.setdefault(blocks[j], [n for n in real if blocks[n] == blocks[j]])
                query, own = q[b, i, h * K : (h + 1) * K], [j for j in real if blocks[j] == blocks[i] and j <= i]
                means = {key: k[b, indices, h * K : (h + 1) * K].mean(0) for key, indices in members.items()}
                best = sorted(means, key=lambda key: -float((query @ means[key]).detach()))[: top - 1]
                expected = sorted([*own, *(j for key in best for j in members[key])])
                assert read[b, h, i].nonzero().flatten().tolist() == expected, (b, h, i)
