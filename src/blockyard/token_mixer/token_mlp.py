"""Token MLP: an MLP over the tokens, shared by all channels.

Source: Tolstikhin et al. 2021, MLP-Mixer (arXiv 2105.01601), eq. 1
Reference: timm models/mlp_mixer.py, MixerBlock
Equation: W2 gelu(W1 x), along the tokens
Cost: O(N D E) time with E hidden tokens, 2 N E parameters
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Expansion, Memory, Rate, Seq, TokenMixer, Traits
from blockyard.ops.linear import Linear, output, residual_gain
from blockyard.token_mixer._checks import check_call, check_context, check_length


class TokenMLP(TokenMixer):
    """Weights belong to token indices, so every sequence must have the length of training.

    Options:
        expansion: hidden width as a multiple of model.dim
        bias: use biases on both layers
        dropout: dropout rate on the hidden tokens
    """

    traits = Traits(any_length=False)
    fades = "each token is a mean over the hidden tokens, of which what is random before training cancels"

    def __init__(self, ctx: Context, *, expansion: Expansion = 0.5, bias: bool = True, dropout: Rate = 0.0) -> None:
        super().__init__()
        check_context(self, ctx)
        self.length = ctx.tokens.max_len + ctx.num_prefix
        hidden = max(1, round(expansion * ctx.dim))
        # Hidden tokens take the place of hidden channels: their number grows with the width, the sequence does not.
        gain = 1.0 if ctx.gain is None else ctx.gain
        self.expand = Linear(self.length, hidden, bias=bias, std=ctx.input_std, role="input", gain=gain)
        self.dropout = nn.Dropout(dropout)
        self.contract = output(ctx, hidden, self.length, bias=bias, gain=residual_gain(ctx))

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). Raises ValueError unless N is the length of training."""
        check_call(self, self.traits, seq, cache, memory)
        check_length(self, self.length, x)
        hidden = self.dropout(F.gelu(self.expand(x.transpose(1, 2))))  # (B, D, hidden)
        return self.contract(hidden).transpose(1, 2)  # (B, N, D)
