"""A sound that a model reads: the time of each token, and the tokens in which CTC hears each label.

Source: Graves et al. 2006, Connectionist Temporal Classification, section 3.2, best path decoding, for the alignment
Equation: token n of stages (window, stride, added) begins at n S - P and covers W samples; it stands for the S samples
    around its middle, S the product of all strides
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from blockyard.contracts import Batch, Context
from blockyard.inspect.labels import token_text
from blockyard.objective.ctc import CTC
from blockyard.runs.load import Loaded
from blockyard.tokenizer._audio import Stage


@dataclass(frozen=True)
class Label:
    """A label that CTC writes for the tokens `first` to `last`, both included."""

    text: str
    first: int
    last: int


@dataclass(frozen=True)
class Sound:
    """samples: (T,) from -1 to 1, without padding; rate: samples a second; edges: (N + 1,) seconds between tokens.

    alignment: the labels of a run of objective=ctc, in order; None of other runs
    """

    samples: Tensor
    rate: int
    edges: Tensor
    alignment: list[Label] | None = None

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.edges) - 1

    @property
    def seconds(self) -> float:
        """The duration."""
        return len(self.samples) / self.rate


def is_sound(inputs: Tensor) -> bool:
    """Return whether inputs are samples of sound (B, T): floats, or integers of 16 bits; token ids have 64."""
    return inputs.ndim == 2 and (inputs.is_floating_point() or inputs.dtype == torch.int16)


def sound_of(loaded: Loaded, batch: Batch) -> Sound | None:
    """Return the first sound of a batch, or of its source; None if its rate is unknown.

    A sound without a source has the labels that CTC hears.
    """
    ctx: Context = loaded.model.ctx
    data, tokens, inputs, lengths = ctx.data, ctx.tokens, batch.inputs, batch.lengths
    if batch.source is not None:
        assert data.source is not None
        data, tokens, inputs, lengths = data.source, ctx.source_tokens, batch.source, batch.source_lengths
    if data.rate is None:
        return None
    samples = inputs[0] if lengths is None else inputs[0, : int(lengths[0])]
    count = int(tokens.tokens_of(torch.tensor(len(samples))))
    labels = alignment(loaded, batch, count) if batch.source is None else None
    samples = samples.float() if samples.is_floating_point() else samples / 32768
    return Sound(samples, data.rate, token_edges(tokens.shrink, count) / data.rate, labels)


def token_edges(shrink: tuple[Stage, ...], tokens: int) -> Tensor:
    """Return the samples (N + 1,) halfway between the middles of neighbouring tokens, fractions included."""
    first, last, step = 0, 0, 1  # of the first token, counted in items of the stage that is looked at
    for window, stride, added in reversed(shrink):
        first = first * stride - added // 2
        last = last * stride - added // 2 + window - 1
        step *= stride
    middle = (first + last + 1) / 2
    return middle - step / 2 + step * torch.arange(tokens + 1, dtype=torch.float64)


@torch.no_grad()
def alignment(loaded: Loaded, batch: Batch, tokens: int) -> list[Label] | None:
    """Return the labels of a batch of one with their tokens; None for other objectives than CTC."""
    if not isinstance(loaded.objective, CTC):
        return None
    best = loaded.model(batch)[0, :tokens].argmax(-1).tolist()
    labels, start = [], 0
    for token_id, run in groupby(best):
        stop = start + len(list(run))
        if token_id != loaded.objective.blank:
            labels.append(Label(token_text(loaded, token_id), start, stop - 1))
        start = stop
    return labels
