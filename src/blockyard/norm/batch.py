"""Batch normalisation: zero mean and unit variance per channel over all tokens of a batch.

Source: Ioffe and Szegedy 2015, Batch Normalization (arXiv 1502.03167), algorithms 1 and 2; in transformers Shen et al.
    2020, PowerNorm (arXiv 2003.07845)
Reference: torch.nn.BatchNorm1d over flattened tokens; torch.nn.SyncBatchNorm over processes
Equation: (x - mean(x)) / sqrt(var(x) + eps) * gain + bias, mean and variance over B and N
Cost: O(N D) time, 2 D parameters, 2 D running statistics

Training uses the statistics of the batch, evaluation the running ones, which are saved in the checkpoint. With several
processes the statistics are those of the whole batch, so that two processes train the same model as one, at the cost
of two more all-reduces per norm. With gradient accumulation (trainer.accumulate) each micro-batch has its own
statistics, as in other implementations.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Norm, Positive, Rate
from blockyard.weight_init import Init


class Batch(Norm):
    """Statistics mix the tokens of all sequences, so padding, packing and causal models are refused.

    Options:
        eps: term added to the variance
        momentum: weight of a new batch in the running statistics
    """

    across_tokens: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, eps: Positive = 1e-5, momentum: Rate = 0.1) -> None:
        super().__init__()
        _check(ctx)
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.empty(ctx.dim))
        self.bias = nn.Parameter(torch.empty(ctx.dim))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.zeros(ctx.dim))
        self.register_buffer("running_var", torch.ones(ctx.dim))

    def init_weights(self, init: Init) -> None:
        """Set gain one, bias zero."""
        init.ones("weight")
        init.zeros("bias")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D). Updates the running statistics in training."""
        if self.training and distributed.is_initialized() and distributed.get_world_size() > 1:
            return self._synchronised(x)
        flat = x.flatten(0, -2)  # (B N, D)
        running = (self.running_mean, self.running_var)
        y = F.batch_norm(flat, *running, self.weight, self.bias, self.training, self.momentum, self.eps)
        return y.view_as(x)  # (B, N, D)

    def _synchronised(self, x: Tensor) -> Tensor:
        """Normalise by statistics over the tokens of all processes: (B, N, D) -> (B, N, D)."""
        from torch.distributed.nn.functional import all_reduce

        exact = x.to(torch.promote_types(x.dtype, torch.float32)).flatten(0, -2)  # (B N, D)
        count = exact.new_full((1,), len(exact))
        total = all_reduce(torch.cat([exact.sum(0), count]))  # (D + 1,)
        count = total[-1].detach()
        # A second pass over centred values: the difference of two means of squares would lose digits.
        centred = exact - total[:-1] / count  # (B N, D)
        var = all_reduce(centred.square().sum(0)) / count  # (D,)
        with torch.no_grad():  # as torch does, running statistics have the unbiased variance
            self.running_mean.lerp_((total[:-1] / count).to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_((var * count / (count - 1)).to(self.running_var.dtype), self.momentum)
        y = centred * torch.rsqrt(var + self.eps) * self.weight + self.bias
        return y.to(x.dtype).view_as(x)  # (B, N, D)


def _check(ctx: Context) -> None:
    """Raise ValueError if statistics over all tokens of a batch would leak."""
    issues = []
    if ctx.causal:
        issues.append("leaks later tokens into earlier ones: use model=encoder or norm=layer")
    if ctx.tokens.variable:
        issues.append("would include padding in its statistics: use data of one length or norm=layer")
    if ctx.data.packed:
        issues.append("mixes the documents of a packed sequence: use data without packing or norm=layer")
    if issues:
        raise ValueError("; ".join(f"norm Batch {issue}" for issue in issues))
