"""Product quantization with Gumbel-softmax: vectors become one learned code of each of several groups.

Source: Baevski et al. 2020, wav2vec 2.0 (arXiv 2006.11477), section 2, equation 1, and 3.2, equation 4; Jang et al.
    2017, Categorical Reparameterization with Gumbel-Softmax (arXiv 1611.01144), the straight-through estimator
Reference: transformers Wav2Vec2GumbelVectorQuantizer
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Role
from blockyard.ops.linear import Linear
from blockyard.weight_init import Init


class Quantized(NamedTuple):
    """vectors: (B, N, C), the chosen codes side by side; codes: (B, N, G) int64; shares: (B, N, G, V), the softmax."""

    vectors: Tensor
    codes: Tensor
    shares: Tensor


class GumbelQuantizer(nn.Module):
    """Chooses one of V codes in each of G groups, in training with Gumbel noise and the gradient of the softmax.

    The temperature of that softmax is max(least, start * decay^t), t the number of forward passes in training.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"codebook"})
    roles: ClassVar[dict[str, Role]] = {"codebook": "fixed"}
    passes: Tensor

    def __init__(
        self, ctx: Context, width: int, *, groups: int, codes: int, start: float, least: float, decay: float
    ) -> None:
        super().__init__()
        self.start, self.least, self.decay = start, least, decay
        factor = ctx.parametrization.factor("output", ctx)
        self.logits = Linear(ctx.dim, groups * codes, bias=True, std=1.0, role="output", factor=factor)
        self.codebook = nn.Parameter(torch.empty(groups, codes, width // groups))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def init_weights(self, init: Init) -> None:
        """Codes are uniform in [-1, 1]."""
        init.uniform("codebook", 1.0)

    @property
    def temperature(self) -> Tensor:
        """That of the next forward pass in training, a scalar."""
        return (self.start * self.decay ** self.passes.double()).clamp_min(self.least)

    def forward(self, x: Tensor) -> Quantized:
        """Vectors (B, N, E) -> their codes."""
        logits = self.logits(x).unflatten(-1, self.codebook.shape[:2])  # (B, N, G, V)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.training:
            # Not torch's gumbel_softmax, whose temperature is a Python number: asking for one waits for the device.
            noise = -torch.empty_like(logits).exponential_().log()
            soft = ((logits + noise) / self.temperature.to(logits)).softmax(-1)
            self.passes += 1
            codes = soft.argmax(-1)
            choice = F.one_hot(codes, soft.shape[-1]).to(soft) + (soft - soft.detach())
        else:
            codes = logits.argmax(-1)
            choice = F.one_hot(codes, logits.shape[-1]).to(logits)
        vectors = torch.einsum("bngv,gvc->bngc", choice, self.codebook.to(choice)).flatten(2)
        return Quantized(vectors, codes, logits.softmax(-1))


def disuse(shares: Tensor, counts: Tensor | None) -> Tensor:
    """Returns 1 - P / (G V), a scalar, with P the perplexity of the mean shares, summed over the groups.

    0 where all codes are used equally often, near 1 where each group uses a single one. The source's equation 4 has
    the entropy in place of the perplexity, its authors' code has this.

    shares: (B, N, G, V); counts: (B, N) bool, the tokens to take the mean over, or None for all
    """
    groups, codes = shares.shape[2:]
    weight = torch.ones_like(shares[..., 0, 0]) if counts is None else counts.to(shares)
    mean = torch.einsum("bn,bngv->gv", weight, shares) / weight.sum().clamp_min(1)
    perplexity = torch.special.entr(mean).sum(-1).exp().sum()
    return 1 - perplexity / (groups * codes)
