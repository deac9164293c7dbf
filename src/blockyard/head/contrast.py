"""Contrast: what is predicted of each token, beside the learned code of what stands there.

Source: Baevski et al. 2020, wav2vec 2.0 (arXiv 2006.11477), sections 2 and 3.2
Reference: transformers Wav2Vec2ForPreTraining: project_hid, project_q, quantizer
Equation: (W_c x_n, W_q q(z_n)), z_n the embedder's vector at token n before it was hidden, q a product quantization
Cost: O(N D G V) time, (E + 1) G V + V C + (D + C + 2) F parameters

Codes stay in use by an auxiliary loss, `diversity` times 1 - P / (G V), P the perplexity of how often hidden tokens
choose each code, summed over groups. The first softmax has temperature `temperature`; each training pass multiplies it
by `decay` until it is `least`. With trainer.accumulate there are several passes in an update, and the perplexity is
that of a micro-batch.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Head, NonNegative, Positive, Seq, Width
from blockyard.head._gumbel import GumbelQuantizer, disuse
from blockyard.ops.linear import Linear, output

Groups = Annotated[int, Ge(1), Le(16)]
Codes = Annotated[int, Ge(2), Le(4096)]
Decay = Annotated[float, Gt(0), Le(1)]


class Contrast(Head):
    """Leaves out prefix tokens; for models that hide tokens.

    Options:
        groups: codebooks whose codes stand side by side, G
        codes: codes of each, V
        width: numbers of all codes of a token together, C; a multiple of groups
        diversity: factor of the loss that keeps codes in use
        temperature: of the first Gumbel-softmax
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
        predicted, target = self.predict(x[:, seq.num_prefix :]), self.target(quantized.vectors)
        return torch.cat([predicted, target, quantized.codes.float()], -1)  # bfloat16 has no 257
