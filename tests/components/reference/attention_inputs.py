"""Inputs and per-query formulas that the attention tests share."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from blockyard.token_mixer.attention import Attention

N, D = 6, 16
CAUSAL = pytest.mark.parametrize("causal", [False, True])


def tokens(n: int = N) -> Tensor:
    """Two sequences of random tokens."""
    return torch.randn(2, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def scores_and_values(x: Tensor, ours: Attention, i: int, visible: list[int], head: int) -> tuple[Tensor, Tensor]:
    """Scores (B, visible) and values (B, visible, ...) of one query in one head, from the weights only."""
    k_dim, v_dim, group = ours.head_dim, ours.value_dim, head // (ours.heads // ours.kv_heads)
    q, k, v = ours.proj_in.weight.split(ours.widths)
    query = x[:, i] @ q[head * k_dim : (head + 1) * k_dim].T
    keys = x[:, visible] @ k[group * k_dim : (group + 1) * k_dim].T
    return (keys * query[:, None]).sum(-1) / math.sqrt(k_dim), x[:, visible] @ v[group * v_dim : (group + 1) * v_dim].T
