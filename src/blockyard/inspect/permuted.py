"""How far a model is from treating its tokens as a set: it reads them in another order.

Source: Torralba, Isola and Freeman 2024, Foundations of Computer Vision, section 26.8 and figure 26.15: attention and
    mixers of each token alone are equivariant, f(P x) = P f(x); positions, masks and convolutions are what breaks it
Equation: |f(P x) - P f(x)|_F / |f(x)|_F, with the positions of the model and without them

    x         a b c d      tokens as the embedder gives them, at positions 0 1 2 3
    P x       c a d b      other tokens at the same positions
    f(P x)    beside P f(x), token by token

Without positions, every token has the coordinates of the first one, and facts of pairs and of neighbours are not read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Position, Seq
from blockyard.data._order import mix
from blockyard.errors import UserError
from blockyard.inspect.samples import Sample
from blockyard.position.none import NoPosition

PREDICTION = "prediction"


@dataclass(frozen=True)
class PermutedStage:
    """One place in the model, such as the output of a block, over all samples.

    relative: |f(P x) - P f(x)|_F / |f(x)|_F, of all samples together
    tokens: (N,) the norms of f(P x) - P f(x) of the first sample; None for a prediction of the whole sequence
    """

    name: str
    relative: float
    tokens: Tensor | None


@dataclass(frozen=True)
class Permuted:
    """What was measured.

    stages: in order, by whether positions were read, "with" or "without"
    order: (N,) of the first sample, P x = x[order]; grid: the layout of its tokens, None where they fill none
    """

    stages: dict[str, list[PermutedStage]]
    order: Tensor
    grid: tuple[int, ...] | None


@torch.no_grad()
def permuted(model: nn.Module, samples: list[Sample], permute: str) -> Permuted:
    """Returns how far a model is from being equivariant, place by place, "with" positions and "without".

    permute: "patches", a random order for each sample, or "shift", every token one place on, the last one first.
    In float64, so that what is equivariant shows a difference of about 1e-15. Raises UserError for a model whose
    blocks do not run over its tokens.
    """
    if samples[0].batch.source is not None:
        raise UserError("equivariance: this model reads a source too; use an encoder or a decoder of one sequence")
    model = copy.deepcopy(model).double()  # other kinds of inspection read the model as it was trained
    scheme = getattr(model, "position", None)
    arms = ("with", "without") if isinstance(scheme, Position) and scheme.acts_on else ("without",)
    stages: dict[str, list[PermutedStage]] = {}
    seqs = [_record(model, sample.batch, None)["seq"] for sample in samples]
    orders = [_order(seq, sample, permute) for seq, sample in zip(seqs, samples, strict=True)]
    for arm in arms:
        squares: dict[str, list[float]] = {}
        tokens: dict[str, Tensor | None] = {}
        with _positions(model, arm == "with"):
            for sample, order in zip(samples, orders, strict=True):
                first = sample is samples[0]
                for name, same, other, of_tokens in _pairs(model, sample, order):
                    difference = other - same
                    total = squares.setdefault(name, [0.0, 0.0])
                    total[0] += float(difference.square().sum())
                    total[1] += float(same.square().sum())
                    if first:
                        tokens[name] = difference.norm(dim=-1) if of_tokens else None
        stages[arm] = [
            PermutedStage(name, (of / max(size, 1e-300)) ** 0.5, tokens[name]) for name, (of, size) in squares.items()
        ]
    return Permuted(stages, orders[0], seqs[0].grid)


def _order(seq: Seq, sample: Sample, permute: str) -> Tensor:
    """P as indices (N,): all real tokens in another order; padding stays where it is."""
    count = len(seq) - seq.num_prefix
    real = count if seq.valid is None else int(seq.valid[0, seq.num_prefix :].sum())
    if permute == "shift":
        moved = torch.arange(real).roll(1)
    else:
        generator = torch.Generator().manual_seed(mix("permute", sample.index or 0, real))
        moved = torch.randperm(real, generator=generator)
    return torch.cat([moved, torch.arange(real, count)])


def _pairs(model: nn.Module, sample: Sample, order: Tensor) -> Iterator[tuple[str, Tensor, Tensor, bool]]:
    """Yields the name of a place, P f(x) and f(P x) of its real tokens, and whether they are tokens (N, D)."""
    plain, other = _record(model, sample.batch, None), _record(model, sample.batch, order)
    seq: Seq = plain["seq"]
    skip = seq.num_prefix
    real = len(seq) - skip if seq.valid is None else int(seq.valid[0, skip:].sum())
    for name in plain:
        if name in ("stream", "normed") or name.startswith("block."):
            yield name, plain[name][0, skip:][order][:real], other[name][0, skip:][:real], True
    left, right = plain[PREDICTION][0], other[PREDICTION][0]
    if left.ndim == 2 and len(left) == len(order):
        yield PREDICTION, left[order][:real], right[:real], True
    else:
        yield PREDICTION, left, right, False


def _record(model: Any, batch: Batch, order: Tensor | None) -> dict[str, Any]:
    """The intermediates of a forward pass of one sample whose embedded tokens are in this order."""
    steps = getattr(model, "steps", None)
    assert steps is not None, "every model of ours names its intermediates"
    batch = batch.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)

    def reorder(_: nn.Module, __: Any, output: tuple[Tensor, Seq]) -> tuple[Tensor, Seq]:
        x, seq = output
        if order is None:
            return output
        if seq.features is not None:
            seq.features = seq.features[:, order]
        return x[:, order], seq

    handle = model.embedder.register_forward_hook(reorder)
    try:
        record: dict[str, Any] = steps(batch)
    finally:
        handle.remove()
    seq = record.get("seq")
    stages = [name for name in record if name == "stream" or name.startswith("block.")]
    if not isinstance(seq, Seq) or not stages or any(record[name].shape[1] != len(seq) for name in stages):
        raise UserError(
            "equivariance: the blocks of this model do not run over its tokens; use an encoder or a decoder"
        )
    return record


@contextmanager
def _positions(model: Any, read: bool) -> Iterator[None]:
    """Inside this context, and unless positions are read, all tokens lie at the first one's coordinates."""
    if read:
        yield
        return
    scheme: Position | None = getattr(model, "position", None)

    def at_one_place(_: nn.Module, __: Any, output: tuple[Tensor, Seq]) -> tuple[Tensor, Seq]:
        x, seq = output
        seq.coords = torch.zeros_like(seq.coords)
        return x, seq

    handle = model.embedder.register_forward_hook(at_one_place)
    if scheme is not None and not scheme.width:  # a code that is appended needs its channels
        model.position = NoPosition(model.ctx)
    try:
        yield
    finally:
        handle.remove()
        if scheme is not None:
            model.position = scheme
