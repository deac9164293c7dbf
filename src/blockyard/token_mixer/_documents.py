"""Packed sequences split into documents, for mixers that can only start at the start of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import Seq


@dataclass(frozen=True)
class Documents:
    """One padded sequence per document, each with the prefix in front. The first B hold the prefix alone.

    x: (R, M, D), zero where padded
    valid: (R, M)
    """

    x: Tensor
    valid: Tensor
    num_prefix: int
    document: Tensor  # (B, N - p), the row of `x` that holds each token
    column: Tensor  # (B, N - p), its column in that row

    def merge(self, x: Tensor) -> Tensor:
        """x (R, M, E) of the documents -> (B, N, E), laid out as the packed batch was."""
        batch = len(self.document)
        return torch.cat([x[:batch, : self.num_prefix], x[self.document, self.column]], dim=1)  # (B, N, E)


def split_documents(x: Tensor, seq: Seq) -> Documents:
    """The documents of x (B, N, D): runs of equal `seq.segment`.

    Their number and length depend on the data, so a GPU has to synchronise with the host.
    """
    assert seq.segment is not None
    p, segment = seq.num_prefix, seq.segment[:, seq.num_prefix :]  # (B, N - p)
    batch, size = segment.shape
    valid = torch.ones_like(segment, dtype=torch.bool) if seq.valid is None else seq.valid[:, p:]
    starts = torch.ones_like(valid)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    document = batch + starts.flatten().cumsum(0).view_as(segment) - 1  # (B, N - p)
    index = torch.arange(size, device=x.device).expand(batch, -1)  # (B, N - p)
    offset = index - torch.where(starts, index, 0).cummax(1).values  # (B, N - p), from the document's first token
    count = batch + int(starts.sum())
    longest = p + 1 + int(offset.max())
    padded = x.new_zeros(count, longest, x.shape[2])
    padded_valid = torch.zeros(count, longest, dtype=torch.bool, device=x.device)
    if p:
        owner = torch.arange(batch, device=x.device).repeat_interleave(starts.sum(1))  # (R - B,)
        padded[:, :p] = torch.cat([x[:, :p], x[owner, :p]])
        padded_valid[:, :p] = True
    padded[document[valid], p + offset[valid]] = x[:, p:][valid]
    padded_valid[document[valid], p + offset[valid]] = True
    return Documents(padded, padded_valid, p, document, p + offset)
