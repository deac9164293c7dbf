"""Contrast: a prediction for each token, beside the learned code of the token itself.

Source: Baevski et al. 2020, wav2vec 2.0 (arXiv 2006.11477), sections 2 and 3.2, equations 1 and 4; Jang et al. 2017,
    Categorical Reparameterization with Gumbel-Softmax (arXiv 1611.01144), the straight-through estimator of the codes
Reference: transformers Wav2Vec2ForPreTraining: project_hid, project_q, quantizer (Wav2Vec2GumbelVectorQuantizer)
Equation: (W_c x_n, W_q q(z_n)), z_n the embedder's vector at token n before it was hidden, q a product quantization
Cost: O(N D G V) time, (E + 1) G V + V C + (D + C + 2) F parameters

Codes stay in use by an auxiliary loss, `diversity` times 1 - P / (G V), P the perplexity of the shares of codes among
hidden tokens, summed over groups. The first softmax has temperature `temperature`; each training pass multiplies it by
`decay` until it is `least`. With trainer.accumulate a step has several passes, and the perplexity is of a micro-batch.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Head, NonNegative, Positive, Role, Seq, Width
from blockyard.ops.linear import Linear, output
from blockyard.weight_init import Init

Groups = Annotated[int, Ge(1), Le(16)]
Codes = Annotated[int, Ge(2), Le(4096)]
Decay = Annotated[float, Gt(0), Le(1)]


class Quantized(NamedTuple):
    """Vectors as codes.

    vectors: (B, N, C), the chosen codes side by side
    codes: (B, N, G) int64, their indices
    shares: (B, N, G, V), the softmax over codes
    """

    vectors: Tensor
    codes: Tensor
    shares: Tensor


class GumbelQuantizer(nn.Module):
    """Product quantization: chooses one of V codes in each of G groups.

    In training the logits have Gumbel noise, and the choice has the gradient of the softmax.
    The temperature of that softmax is max(least, start * decay^t), t the number of forward passes in training.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"codebook"})
    roles: ClassVar[dict[str, Role]] = {"codebook": "fixed"}
    passes: Tensor

    def __init__(
        self, ctx: Context, width: int, *, groups: int, codes: int, start: float, least: float, decay: float
    ) -> None:
        super().__init__()
        self.start = start
        self.least = least
        self.decay = decay
        factor = ctx.parametrization.factor("output", ctx)
        self.logits = Linear(ctx.dim, groups * codes, bias=True, std=1.0, role="output", factor=factor)
        self.codebook = nn.Parameter(torch.empty(groups, codes, width // groups))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def init_weights(self, init: Init) -> None:
        """Draw codes uniformly in [-1, 1]."""
        init.uniform("codebook", 1.0)

    @property
    def temperature(self) -> Tensor:
        """The temperature of the next forward pass in training, a scalar."""
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
            choice = F.one_hot(codes, soft.shape[-1]).to(soft) + (soft - soft.detach())  # straight through
        else:
            codes = logits.argmax(-1)
            choice = F.one_hot(codes, logits.shape[-1]).to(logits)
        vectors = torch.einsum("bngv,gvc->bngc", choice, self.codebook.to(choice)).flatten(2)  # (B, N, C)
        return Quantized(vectors, codes, logits.softmax(-1))


def disuse(shares: Tensor, counts: Tensor | None) -> Tensor:
    """Return 1 - P / (G V), a scalar, with P the perplexity of the mean shares, summed over the groups.

    It is 0 if all codes are used equally often, and near 1 if each group uses a single one. Equation 4 of the source
    has the entropy in place of the perplexity; the authors' code has the perplexity.

    shares: (B, N, G, V); counts: (B, N) bool, the tokens to take the mean over, or None for all
    """
    groups, codes = shares.shape[2:]
    weight = torch.ones_like(shares[..., 0, 0]) if counts is None else counts.to(shares)
    mean = torch.einsum("bn,bngv->gv", weight, shares) / weight.sum().clamp_min(1)
    # A share of zero has an entropy of zero and a gradient without bound.
    perplexity = torch.special.entr(mean.clamp_min(torch.finfo(mean.dtype).tiny)).sum(-1).exp().sum()
    return 1 - perplexity / (groups * codes)


class Contrast(Head):
    """Leaves out prefix tokens; for models that hide tokens.

    Options:
        groups: number of codebooks with codes side by side, G
        codes: codes of a codebook, V
        width: channels of all codes of a token together, C; a multiple of groups
        diversity: factor of the loss that keeps codes in use
        temperature: temperature of the first Gumbel-softmax
        least: the lowest temperature
        decay: factor on the temperature after each training pass
    """

    gives: ClassVar[str] = "contrast"

    def __init__(
        self,
        ctx: Context,
        *,
        groups: Groups = 2,
        codes: Codes = 320,
        width: Width = 256,
        diversity: NonNegative = 0.1,
        temperature: Positive = 2.0,
        least: Positive = 0.5,
        decay: Decay = 0.999995,
    ) -> None:
        super().__init__()
        if width % groups:
            raise ValueError(f"head.width={width} is not a multiple of head.groups={groups}")
        if least > temperature:
            raise ValueError(f"head.least={least} is above head.temperature={temperature}")
        self.diversity = diversity
        self.auxiliary: Tensor | None = None
        annealing = {"start": temperature, "least": least, "decay": decay}
        self.quantizer = GumbelQuantizer(ctx, width, groups=groups, codes=codes, **annealing)
        self.predict = output(ctx, ctx.dim, ctx.outputs, bias=True, place="logits")
        std = ctx.init_std * ctx.parametrization.std("fixed", ctx)
        self.target = Linear(width, ctx.outputs, bias=True, std=std, role="fixed")

    def forward(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, N, D) -> (B, N, 2 F + G): predictions, vectors of the codes, and the ids of the codes as numbers.

        Raises ValueError in a model without hidden tokens.
        """
        if seq.embedded is None:
            raise ValueError("head=contrast quantizes vectors of hidden tokens; this model hides none")
        # Their own embedder ends in a layer norm; others may end at any size, and the softmax would start flat.
        quantized = self.quantizer(F.layer_norm(seq.embedded, seq.embedded.shape[-1:]))
        if self.training:
            self.auxiliary = self.diversity * disuse(quantized.shares, seq.hidden)
        predicted = self.predict(x[:, seq.num_prefix :])  # (B, N, F)
        target = self.target(quantized.vectors)  # (B, N, F)
        return torch.cat([predicted, target, quantized.codes.float()], -1)  # bfloat16 has no 257
