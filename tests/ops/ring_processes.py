"""Attention and a whole model in two processes that share every sequence, beside one process with all of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from blockyard.contracts import Batch, Position, Seq
from blockyard.objective.next_token import NextToken
from blockyard.ops import online, ring
from blockyard.ops.mask import Visibility
from blockyard.ops.reference import eager
from blockyard.ops.shaping import PLAIN, Shaping
from blockyard.weight_init import initialise
from tests.support.helpers import context, factory, stir, tiny, token_ids

WORLD, N, HEADS, WIDTH = 2, 11, 4, 6
CASES: dict[str, tuple[Visibility, str]] = {
    "full": (Visibility(), "none"),
    "causal": (Visibility(causal=True), "none"),
    "window": (Visibility(causal=True, window=3), "none"),
    "strict": (Visibility(causal=True, strict=True), "none"),
    "alibi": (Visibility(causal=True), "alibi"),
    "t5_bias": (Visibility(), "t5_bias"),
    "t5_bias causal": (Visibility(causal=True), "t5_bias"),
    "shaped": (Visibility(causal=True), "alibi"),
}
PARTS = ("none", "rope", "learned", "alibi", "t5_bias", "carried", "shaped")  # positions of whole models
# Values of the first layer, vectors of token ids and keys of an earlier layer, in a model with `rope`.
SHAPED = {"sink": "learned", "softcap": 3.0, "score_scale": "log_n", "gate": "head", "exclusive": True}
CARRIED = {"kv_every": 2, "value_residual": "learned", "value_embedding": "all"}


def scheme(name: str, causal: bool) -> Position:
    built: Any = factory("position", name)(context(causal=causal, axes=1))
    return stir(initialise(built, 0)).double()


def inputs(case: str) -> tuple[list[Tensor], Seq, Visibility, list[Tensor]]:
    """Queries, keys and values; their facts; what is visible; the weights of the position scheme."""
    visibility, name = CASES[case]
    torch.manual_seed(5)
    sizes = ((2, HEADS, N, WIDTH), (2, HEADS // 2, N, WIDTH), (2, HEADS // 2, N, WIDTH + 1))
    qkv = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    if case == "shaped":
        qkv.append(torch.randn(HEADS, dtype=torch.float64, requires_grad=True))
    position = scheme(name, visibility.causal)
    coords = torch.arange(N, dtype=torch.float64)[None, :, None]
    seq = Seq(torch.arange(N), coords, position=position)
    return qkv, seq, visibility, [each for each in position.parameters() if each.requires_grad]


def whole(case: str) -> list[Tensor]:
    """The output and all gradients in one process, by the formula."""
    qkv, seq, visibility, weights = inputs(case)
    out = eager(*qkv[:3], seq, seq, visibility, None, 0.0, shaping(qkv))
    return [out.detach(), *torch.autograd.grad(weighted(out, torch.arange(N)), [*qkv, *weights])]


def part(case: str, by: ring.Ring) -> list[Tensor]:
    """The same of this process's tokens; gradients are zero at the others'."""
    qkv, seq, visibility, weights = inputs(case)
    mine = by.tokens(N, by.rank)
    _, own = by.cut(torch.zeros(2, N, 1), seq)
    parts = (each[:, :, mine] for each in qkv[:3])
    out = ring.ring_attention(*parts, own, visibility, WIDTH**-0.5, shaping(qkv))
    gradients = torch.autograd.grad(weighted(out, mine), [*qkv, *weights])
    return [torch.zeros(*out.shape[:2], N, out.shape[3], dtype=out.dtype).index_copy(2, mine, out.detach()), *gradients]


def shaping(tensors: list[Tensor]) -> Shaping:
    """A cap and sinks, where there are some beside queries, keys and values."""
    return Shaping(1.5, tensors[3]) if len(tensors) > 3 else PLAIN


def weighted(out: Tensor, tokens: Tensor) -> Tensor:
    """A number that depends differently on each entry."""
    return (out * torch.sin(torch.arange(out.shape[-1]) + tokens[:, None] * 1.3)).sum()


def trained(name: str, by: ring.Ring | None, updates: int = 6, causal: bool = True) -> list[Tensor]:
    """The loss of each update and the weights after them, of a tiny language model."""
    options = {"carried": CARRIED, "shaped": SHAPED}.get(name)
    mixing = {"token_mixer": options or {}}
    position, sizes = ("rope", {"depth": 4}) if options else (name, {"depth": 2})
    model = tiny(causal=causal, axes=1, position=position, token_mixer="attention", sizes=sizes, options=mixing).train()
    objective, optimizer = NextToken(), torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for update in range(updates):
        batch = objective.prepare(Batch(token_ids(2, 7, seed=update)))
        wanted = batch.target.clone()
        wanted[0, 1 + update % 3] = Batch.ignore
        with ring.sharing(by):
            prediction = model(batch)
        target, share = (wanted, 1.0) if by is None else by.targets(wanted)
        loss = objective.loss(prediction, target) * share / (1 if by is None else by.world)
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if by is not None:
            for each in [total, *(p.grad for p in model.parameters() if p.grad is not None)]:
                dist.all_reduce(each)
        optimizer.step()
        losses.append(total)
    return [torch.stack(losses), *(each.detach() for each in model.parameters())]


def no_rescale(out: Tensor, log_sum: Tensor, more: Tensor, log_more: Tensor) -> tuple[Tensor, Tensor]:
    """A merge without the factors."""
    return (out + more) / 2, torch.logaddexp(log_sum, log_more)


def by_row(seq: Seq, tokens: Tensor) -> Seq:
    """Facts of a part that counts its own tokens from 0."""
    return Seq(torch.arange(len(tokens)), seq.coords[:, tokens], position=seq.position)


def work(rank: int, folder: Path) -> int:
    """Compute everything in process `rank` and save it."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    by = ring.Ring(rank, WORLD, dist.new_group())
    online.CHUNK = 2
    result: dict[str, list[Tensor]] = {case: part(case, by) for case in CASES}
    right = ring.merged, ring._part
    ring.merged = no_rescale
    result["no rescale"] = part("causal", by)
    ring.merged, ring._part = right[0], by_row
    result["mask by row"] = part("causal", by)
    ring._part = right[1]
    result |= {f"model {name}": trained(name, by) for name in PARTS}
    torch.save(result, folder / f"{rank}.pt")
    dist.destroy_process_group()
    return 0
