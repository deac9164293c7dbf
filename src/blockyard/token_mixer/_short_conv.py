"""A short causal convolution of every channel alone, in front of a mixer: a token reads itself and a few before it.

Source: Dao and Gu 2024, Transformers are SSMs (arXiv 2405.21060), figure 6; Yang et al. 2024, Gated Delta Networks
    (arXiv 2412.06464), section 3.4
Reference: torch.nn.Conv1d with as many groups as channels and kernel - 1 zeros in front
Equation: y_tc = b_c + sum_(s < k) w_cs x_(t-s)c
Cost: O(N C k) time; decoding keeps the last k - 1 inputs
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Because, Role, Seq
from blockyard.ops.documents import document_starts
from blockyard.weight_init import Init

# Tokens that a short convolution reads; 0 means no convolution.
Kernel = Annotated[int, Ge(0), Le(64), Because("it is short: token_mixer=long_conv reaches as far as the sequence")]


class ShortConv(nn.Module):
    """forward(x, seq, past=None) -> (B, N, C), for C channels in the order of the sequence.

    Tokens before the sequence count as zero. A document of a packed sequence reads the prefix before its first token,
    and no other document, as it would in a sequence of its own. Padding is not left out: it is on the right, where no
    real token reads it.

    past: (B, M, C), the inputs before x; `last_inputs` returns the inputs that the next call needs
    """

    roles: ClassVar[dict[str, Role]] = {"weight": "vector", "bias": "vector"}
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"weight"})  # not a map: Muon would mix the channels

    def __init__(self, width: int, kernel: int, *, bias: bool = False) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = nn.Parameter(torch.empty(width, kernel))  # the last column is of the token itself
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def init_weights(self, init: Init) -> None:
        """Draw weights so that unit inputs give unit outputs; zero bias."""
        init.normal("weight", std=self.kernel**-0.5)
        init.zeros("bias")

    def forward(self, x: Tensor, seq: Seq, past: Tensor | None = None) -> Tensor:
        """x (B, N, C) -> (B, N, C). Raises ValueError for documents after a past."""
        if seq.segment is None:
            line = torch.cat([last_inputs(past, x[:, :0], self.kernel - 1), x], dim=1)  # (B, k - 1 + N, C)
            weight = self.weight[:, None].to(x.dtype)  # (C, 1, k)
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return F.conv1d(line.transpose(1, 2), weight, bias, groups=x.shape[2]).transpose(1, 2)  # (B, N, C)
        if past is not None:
            raise ValueError("a short convolution decodes one document at a time; leave segment out")
        out = torch.zeros_like(x) if self.bias is None else self.bias.to(x.dtype).expand_as(x)
        index = torch.arange(len(seq), device=x.device)  # (N,)
        start = document_starts(seq.segment, seq.num_prefix)  # (B, N)
        # Before its own first token a document has the last tokens of the prefix: an index that falls in front of
        # `start` moves to the end of the prefix.
        before = torch.where(index < seq.num_prefix, 0, seq.num_prefix - start)  # (B, N)
        for back in range(self.kernel):
            source = index - back + before * (index - back < start)  # (B, N)
            value = x.gather(1, source.clamp_min(0)[..., None].expand_as(x))  # (B, N, C)
            value = value.masked_fill((source < 0)[..., None], 0.0)
            out = out + value * self.weight[:, self.kernel - 1 - back].to(x.dtype)
        return out


def last_inputs(past: Tensor | None, x: Tensor, count: int) -> Tensor:
    """Return the last `count` inputs of past (B, M, C) and then x (B, N, C), zeros before the first: (B, count, C)."""
    line = x if past is None else torch.cat([past, x], dim=1)  # (B, M + N, C)
    if not count:
        return line[:, :0]
    return F.pad(line, (0, 0, max(0, count - line.shape[1]), 0))[:, -count:]
