"""Fully connected tokens: one trained matrix from every token to every token, without activation.

Source: Melas-Kyriazi 2021, Do You Even Need Attention? (arXiv 2105.02723); with channels=full
    the linear layer of Rosenblatt 1958
Reference: torch.nn.Linear over the transposed sequence
Equation: y_i = sum_j W_ij x_j + b_i, W_ij a number or a D x D matrix, b_i a number or a vector
Cost: O(N^2 D) time and N^2 parameters; with channels=full O(N^2 D^2) of both
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Memory, Role, Seq, TokenMixer, Traits
from blockyard.ops.linear import residual_gain
from blockyard.token_mixer._checks import check_call, check_context, check_length
from blockyard.weight_init import Init

Bias = bool | Literal["full"]


class FullyConnected(TokenMixer):
    """Weights belong to token indices, so every sequence must have the length of training.

    Options:
        channels: shared has one number per pair of tokens, full a whole matrix between their channels
        bias: add a trained number to each token, with channels=full to each of its channels; full adds one to each
            channel with channels=shared too
    """

    traits = Traits(causal=True, any_length=False)
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"bias"})

    def __init__(self, ctx: Context, *, channels: Literal["shared", "full"] = "shared", bias: Bias = True) -> None:
        super().__init__()
        check_context(self, ctx)
        if bias == "full" and channels == "full":
            raise ValueError(
                "token_mixer.bias=full: with channels=full each channel has a bias of its own already; use bias=true"
            )
        self.length = ctx.tokens.max_len + ctx.num_prefix
        self.causal = ctx.causal
        width = ctx.dim if channels == "full" else 1
        self.weight = nn.Parameter(torch.empty(self.length, width, self.length, width))  # to, from
        biases = ctx.dim if bias == "full" else width
        self.bias = nn.Parameter(torch.empty(self.length, biases)) if bias else None
        self.roles: dict[str, Role] = {
            "weight": "fixed" if width == 1 else "residual",
            "bias": "fixed" if biases == 1 else "vector",
        }
        self.std = residual_gain(ctx) / math.sqrt(self.length * width)

    def init_weights(self, init: Init) -> None:
        """Draw weights so that unit inputs give outputs of the scale of any residual layer; zero bias."""
        init.normal("weight", std=self.std)
        init.zeros("bias")

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). Raises ValueError unless N is the length of training."""
        check_call(self, self.traits, seq, cache, memory)
        check_length(self, self.length, x)
        weight: Tensor = self.weight
        if self.causal:  # masked at every step, so that masked weights get no gradient
            weight = weight * torch.ones_like(weight[:, 0, :, 0]).tril()[:, None, :, None]
        if weight.shape[1] == 1:
            out = weight[:, 0, :, 0] @ x  # (B, N, D)
        else:
            out = (x.flatten(1) @ weight.flatten(2).flatten(0, 1).T).view_as(x)  # (B, N, D)
        return out if self.bias is None else out + self.bias
