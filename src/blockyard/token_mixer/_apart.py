"""Documents of packed rows as rows of their own, for mixers that can only start where a row starts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from blockyard.contracts import Seq


def apart(x: Tensor, seq: Seq, mix: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """mix(rows (R, M, D), valid (R, M)) over each document with the prefix in front; laid out as x (B, N, D) again.

    Documents are runs of equal `seq.segment`. The first B rows are the prefixes alone. How many rows there are is
    known from the data only, so that a GPU is waited for.
    """
    assert seq.segment is not None
    p, segment = seq.num_prefix, seq.segment[:, seq.num_prefix :]  # (B, N - p)
    batch, size = segment.shape
    real = torch.ones_like(segment, dtype=torch.bool) if seq.valid is None else seq.valid[:, p:]
    starts = torch.ones_like(real)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    document = batch + starts.flatten().cumsum(0).view_as(segment) - 1  # (B, N - p), number of the row
    here = torch.arange(size, device=x.device).expand(batch, -1)  # (B, N - p)
    place = here - torch.where(starts, here, 0).cummax(1).values  # (B, N - p), from the document's first token
    rows = batch + int(starts.sum())
    longest = p + 1 + int(place.max())
    out = x.new_zeros(rows, longest, x.shape[2])
    valid = torch.zeros(rows, longest, dtype=torch.bool, device=x.device)
    if p:
        owner = torch.arange(batch, device=x.device).repeat_interleave(starts.sum(1))  # (R - B,)
        out[:, :p] = torch.cat([x[:, :p], x[owner, :p]])
        valid[:, :p] = True
    out[document[real], p + place[real]] = x[:, p:][real]
    valid[document[real], p + place[real]] = True
    mixed = mix(out, valid)  # (R, M, D)
    return torch.cat([mixed[:batch, :p], mixed[document, p + place]], dim=1)  # (B, N, D)
