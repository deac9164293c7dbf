"""Batches for the configs of rows of choices: of their own data, or random ones of the same shapes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from blockyard.config.build import Components
from blockyard.contracts import Batch
from tests.config.cover import skeletons
from tests.config.products import config


def rows_of(row: dict[str, str], plan: Components, padding: int | None = None) -> Batch:
    """Two real rows of the training part of a row's data, as long and as short as they come. The plan's tokenizers
    learn what they learned from that part.

    padding: draws what lies behind the ends of both rows; None leaves it as the data has it
    """
    batch, learned, learned_of_source = _two_rows(row["data"], row["tokenizer"])
    plan.tokenizer.load_state(learned)
    if plan.source_tokenizer is not plan.tokenizer:
        plan.source_tokenizer.load_state(learned_of_source)
    plan.context()
    plan.objective.learn(TwoRows(batch))
    if padding is None or batch.lengths is None:
        return batch
    generator = torch.Generator().manual_seed(padding)
    alone = plan.objective.reads == "source"

    def other(rows: torch.Tensor, lengths: torch.Tensor, vocabulary: int | None) -> torch.Tensor:
        behind = torch.arange(rows.shape[1]) >= lengths[:, None]  # (B, N)
        if rows.is_floating_point():
            drawn = torch.rand(rows.shape, generator=generator)
        elif vocabulary is None:
            drawn = torch.randint(2, rows.shape, generator=generator)  # codes of nodes
        else:
            drawn = torch.randint(vocabulary, rows.shape, generator=generator)
        return torch.where(behind[(...,) + (None,) * (rows.ndim - 2)], drawn, rows)

    own, of_source = plan.tokens().vocabulary, plan.context().tokens.vocabulary
    source = batch.source
    if source is not None and batch.source_lengths is not None:
        shared = plan.source_tokenizer is plan.tokenizer
        apart = own if shared else plan.source_tokenizer.spec(plan.data.spec.source).vocabulary
        source = other(source, batch.source_lengths, of_source if alone else apart)
    return replace(batch, inputs=other(batch.inputs, batch.lengths, own), source=source)


class TwoRows:
    """A split of the rows of a batch."""

    def __init__(self, batch: Batch) -> None:
        self.rows = batch

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, order: torch.Tensor, key: int | None) -> Batch:
        """The rows `order`."""
        return self.rows.map(lambda tensor: tensor[order])


@cache
def _two_rows(data: str, tokenizer: str) -> tuple[Batch, dict[str, Any], dict[str, Any]]:
    frame, beside = next(each for each in skeletons() if (each[0]["data"], each[0]["tokenizer"]) == (data, tokenizer))
    plan = Components(config({**frame, **{family: names[0] for family, names in beside.items()}}).config)
    train = plan.load().train
    order = torch.arange(min(32, len(train)))
    some = train.batch(order, None)
    lengths = some.lengths if some.source_lengths is None else some.source_lengths
    if lengths is not None:
        order = torch.stack([lengths.argmax(), lengths.argmin()])
    return train.batch(order[:2], None), plan.tokenizer.state(), plan.source_tokenizer.state()


def batch_for(plan: Any, size: int = 2, padding: int = 0) -> Batch:
    """Random inputs and targets of the shapes that a plan's data promises. Reads nothing.

    Where rows differ in length, so do these: the last row is short, and the first row's source. What lies behind
    the end of a row is drawn by `padding`, all else not.
    """
    generator = torch.Generator().manual_seed(0)
    spec, vocabulary = plan.data.spec, plan.tokens().vocabulary

    def drawn(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, (size, *shape), generator=generator)

    if spec.modality == "text":  # a symbol more than a model sees, for the objective to ask for
        inputs = drawn(vocabulary, spec.shape[0] + (spec.target is None))
    elif plan.tokens().ahead:  # a start token and those of an image
        start = plan.tokenizer.start(torch.arange(size))[:, None]
        return Batch(torch.cat([start, drawn(plan.tokens().predicted, plan.tokens().max_len)], 1))
    elif vocabulary is not None:
        inputs = drawn(vocabulary, *spec.shape)
    elif (codes := plan.tokens().codes) is not None:
        inputs = torch.stack([drawn(count, spec.shape[0]) for count in codes], -1)
    else:
        inputs = torch.rand(size, *spec.shape, generator=generator)
    targets = {"class": (), "symbols": spec.shape, "pixels": spec.shape[1:]}
    target = None
    if spec.values is not None:
        target = torch.rand(size, *spec.values, generator=generator)
    elif spec.target:
        target = drawn(spec.classes or vocabulary, *targets[spec.target])
    source = None if spec.source is None else drawn(vocabulary, *spec.source.shape)
    if source is not None and spec.source.modality != "text":
        source = torch.rand(size, *spec.source.shape, generator=generator)
    facts = plan.tokens().pairs
    pairs = None
    if facts is not None:
        pairs = torch.stack([drawn(count, spec.shape[0], spec.shape[0]) for count in facts], -1).byte()
    if not spec.variable:
        return Batch(inputs, target, source=source, pairs=pairs)
    generator.manual_seed(1 + padding)
    longest = inputs.shape[1]
    lengths = torch.linspace(longest, 2, size).long()  # (B,)
    behind = torch.arange(longest) >= lengths[:, None]  # (B, N)
    if inputs.is_floating_point():
        other = torch.rand(inputs.shape, generator=generator)
    else:
        other = drawn(vocabulary, longest) if plan.tokens().codes is None else drawn(2, *inputs.shape[1:])
    inputs = torch.where(behind[(...,) + (None,) * (inputs.ndim - 2)], other, inputs)
    if source is None:
        if pairs is not None:  # what pairs with padding hold must not matter either
            both = behind[:, :, None] | behind[:, None]
            pairs = torch.where(both[..., None], drawn(2, *pairs.shape[1:]).byte(), pairs)
        return Batch(inputs, target, lengths=lengths, pairs=pairs)
    if not spec.source.variable:
        return Batch(inputs, target, lengths=lengths, source=source)
    source_lengths = torch.linspace(1, spec.source.shape[0], size).long()  # (B,)
    behind = torch.arange(spec.source.shape[0]) >= source_lengths[:, None]  # (B, M)
    source = torch.where(behind, drawn(vocabulary, *spec.source.shape), source)
    return Batch(inputs, target, lengths=lengths, source=source, source_lengths=source_lengths)
