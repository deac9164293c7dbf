"""The norms of tokens after each block, and how many stand out.

Source: Darcet et al. 2024, Vision Transformers Need Registers (arXiv 2309.16588), section 2.1: a few tokens of large
    norm carry facts of the whole image; with registers they are gone
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Seq
from blockyard.errors import UserError
from blockyard.inspect.samples import Sample

FACTOR = 2.0  # times the median from which on a norm stands out; Darcet et al. read theirs off a histogram


@dataclass(frozen=True)
class LayerNorms:
    """One place in the stream: `stream`, before the first block, or the output of a block.

    tokens: norms of all real tokens of all samples (n,); prefix: those of class and register tokens (m,)
    """

    name: str
    tokens: Tensor
    prefix: Tensor

    @property
    def median(self) -> float:
        """The median norm of tokens without the prefix."""
        return float(self.tokens.median())

    @property
    def outliers(self) -> float:
        """The share of tokens whose norm is more than FACTOR times the median."""
        return float((self.tokens > FACTOR * self.tokens.median()).float().mean())


@torch.no_grad()
def token_norms(model: nn.Module, samples: list[Sample]) -> list[LayerNorms]:
    """Returns the norms of a model's tokens, block by block. Raises UserError for a model of several streams."""
    steps: Any = getattr(model, "steps", None)
    assert steps is not None, "every model of ours names its intermediates"
    tokens: dict[str, list[Tensor]] = {}
    prefix: dict[str, list[Tensor]] = {}
    for sample in samples:
        record = steps(sample.batch)
        seq = record.get("seq")
        recorded = [name for name in record if name == "stream" or name.startswith("block.")]
        if not isinstance(seq, Seq) or not recorded or any(record[name].shape[1] != len(seq) for name in recorded):
            raise UserError("norms: the blocks of this model do not run over its tokens; use an encoder or a decoder")
        for name in recorded:
            norms = record[name][0].norm(dim=-1)  # (prefix + N,)
            real = torch.ones_like(norms, dtype=torch.bool) if seq.valid is None else seq.valid[0]
            prefix.setdefault(name, []).append(norms[: seq.num_prefix])
            tokens.setdefault(name, []).append(norms[seq.num_prefix :][real[seq.num_prefix :]])
    return [LayerNorms(name, torch.cat(tokens[name]), torch.cat(prefix[name])) for name in tokens]
