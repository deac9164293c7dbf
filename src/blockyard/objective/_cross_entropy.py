"""The loss of every objective that predicts classes or tokens.

Source: Szegedy et al. 2016, Rethinking the Inception Architecture (arXiv 1512.00567), section 7, label smoothing;
    Chowdhery et al. 2022, PaLM (arXiv 2204.02311), section 5, z-loss for the outputs, after the z-loss of a router of
    Zoph et al. 2022, ST-MoE (arXiv 2202.08906), eq. 5
Reference: torch.nn.functional.cross_entropy; torch.logsumexp
Equation: -sum_v q_v log softmax(z)_v + z_loss (log Z)^2, q = (1 - s) onehot(target) + s / V, Z = sum_v exp(z_v)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from blockyard.contracts import Batch
from blockyard.ops.autocast import full_precision
from blockyard.ops.projection import Projection, RawLogits, compiles, logits_of_chunk, soft_cap


def cross_entropy(
    prediction: Tensor | RawLogits,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the mean over the targets that are not `Batch.ignore`, in nats; NaN without any target.

    Inside `ops.projection.compiled_loss`, a loss of many logits is one compiled function: it reads the logits once and
    writes their gradient in their own type, without copies in float32.

    prediction: (..., V) logits; target: (...) int64
    label_smoothing: share of the target spread evenly over the V classes
    z_loss: factor of the squared logarithm of the softmax's normaliser; it keeps logits from drifting
    weights: (V,), factors of the loss of targets of each class
    """
    if isinstance(prediction, Tensor):
        prediction = RawLogits(prediction, prediction.shape[-1])
    function = _mean_loss
    if compiles(prediction.raw.numel()):
        function = _compiled()
    rows = prediction._replace(raw=prediction.raw.flatten(0, -2))  # (M, V)
    return function(rows, target.flatten(), label_smoothing, z_loss, weights)


@cache
def _compiled() -> Callable[..., Tensor]:
    """Return `_mean_loss`, compiled when it is called first."""
    return torch.compile(_mean_loss)


def _mean_loss(
    prediction: RawLogits, target: Tensor, label_smoothing: float, z_loss: float, weights: Tensor | None
) -> Tensor:
    """Return the loss of `cross_entropy`. prediction: (M, V); target: (M,)."""
    logits = prediction.logits()
    if weights is None:
        loss = F.cross_entropy(logits, target, ignore_index=Batch.ignore, label_smoothing=label_smoothing)
    else:
        losses = F.cross_entropy(
            logits, target, ignore_index=Batch.ignore, label_smoothing=label_smoothing, reduction="none"
        )  # (M,)
        factor = weights.to(losses)[target.clamp_min(0)]  # ignored targets have a loss of zero
        # Over the number of targets and not the sum of weights, so that the parts of a batch add up to the whole.
        loss = (losses * factor).sum() / (target != Batch.ignore).sum()
    if not z_loss:
        return loss
    counted = target != Batch.ignore
    exact = torch.promote_types(logits.dtype, torch.float32)
    squared = logits.to(exact).logsumexp(-1).square()  # in bf16 the square would be off by percents
    return loss + z_loss * squared.masked_fill(~counted, 0.0).sum() / counted.sum()


def chunked_cross_entropy(
    projection: Projection,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk: int | None = None,
) -> Tensor:
    """Return `cross_entropy` of the projection's logits, by chunks of tokens, so that not all logits exist at a time.

    Matrix products have the type of autocast, and everything else is in float32 at least. It has no second derivative.

    target: (...) int64
    chunk: tokens in a chunk; None means as many as have `logits_of_chunk` logits

    Source: Wijmans et al. 2024, Cut Your Losses in Large-Vocabulary Language Models (arXiv 2411.09009); Hsu et al.
        2024, Liger Kernel (arXiv 2410.10989), section 3.2, for gradients in the forward pass
    Reference: torch.nn.functional.cross_entropy of all logits; torch.nn.functional.linear_cross_entropy, which has no
        z-loss and does not go by autocast
    Equation: the gradient by the logits of a target is p (1 + 2 z_loss log Z) - q over the number of targets, with
        p = softmax(z). With z = c tanh(s u / c), the gradient by u has the further factor s (1 - z^2 / c^2)
    Cost: O(N D V) time as in the plain loss; memory of min(N V, logits_of_chunk) logits and the gradients of W and x
    """
    x, weight, bias, scale, softcap = projection
    chunk = max(1, logits_of_chunk(x.device) // len(weight)) if chunk is None else chunk
    options = _Options(label_smoothing, z_loss, scale, softcap, chunk)
    loss: Tensor = _Chunked.apply(x.flatten(0, -2), weight, bias, target.flatten(), options)
    return loss


class _Options(NamedTuple):
    """The arguments of the chunked loss that are no tensors."""

    smoothing: float
    z_loss: float
    scale: float
    softcap: float | None
    chunk: int


class _Chunked(torch.autograd.Function):
    """The loss, with all gradients computed in the forward pass: the logits are gone in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        options: _Options,
    ) -> Tensor:
        """x (N, D), weight (V, D), bias (V,), target (N,) -> the mean loss, a scalar."""
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        exact = torch.promote_types(dtype, torch.float32)
        count = (target != Batch.ignore).sum()
        need_x, need_weight, need_bias, *_ = ctx.needs_input_grad
        to_x = torch.empty_like(x) if need_x else None
        to_weight = torch.zeros_like(weight, dtype=exact) if need_weight else None
        to_bias = torch.zeros_like(weight[:, 0], dtype=exact) if need_bias else None
        total = torch.zeros((), dtype=exact, device=x.device)
        with full_precision(x):
            table = weight.to(dtype)
            for part in (slice(start, start + options.chunk) for start in range(0, len(x), options.chunk)):
                counted = (target[part] != Batch.ignore)[:, None]  # (n, 1)
                some = x[part].to(dtype)
                logits = some @ table.T if bias is None else torch.addmm(bias.to(dtype), some, table.T)
                logits = soft_cap(logits.to(exact), options.scale, options.softcap)
                bend = None if options.softcap is None else 1 - (logits / options.softcap).square()
                loss, slope = _loss_and_slope(logits, target[part], options.smoothing, options.z_loss)  # (n,), (n, V)
                del logits
                if bend is not None:
                    slope.mul_(bend)
                if options.scale != 1.0:
                    slope.mul_(options.scale)
                total += loss.sum()
                # The slopes of ignored targets must not count: the smaller factor of each product is zeroed there.
                if to_bias is not None:
                    to_bias += torch.mv(slope.T, counted[:, 0].to(exact))
                slope = slope.to(dtype)
                if to_x is not None:
                    to_x[part] = (slope @ table).mul_(counted)
                some = some * counted
                if to_weight is not None and to_weight.dtype == dtype:
                    to_weight.addmm_(slope.T, some)
                elif to_weight is not None:
                    to_weight += slope.T @ some
                del slope  # before the logits of the next chunk
        ctx.gradients = to_x, to_weight, to_bias
        ctx.types = weight.dtype, None if bias is None else bias.dtype
        ctx.count = count.clamp_min(1)
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of a chunked cross entropy were used; compute the loss again")
        to_x, to_weight, to_bias = ctx.gradients
        ctx.gradients = None  # the products below are in place: a second pass would scale them twice
        weight_type, bias_type = ctx.types
        grad = grad / ctx.count
        if to_x is not None:
            to_x = to_x.mul_(grad)
        if to_weight is not None:
            to_weight = to_weight.mul_(grad).to(weight_type)
        if to_bias is not None:
            to_bias = to_bias.mul_(grad).to(bias_type)
        return to_x, to_weight, to_bias, None, None


def _loss_and_slope(logits: Tensor, target: Tensor, smoothing: float, z_loss: float) -> tuple[Tensor, Tensor]:
    """Return the loss of each target (n,), 0 if ignored, and its gradient by the logits (n, V), unset if ignored."""
    ignored = target == Batch.ignore
    index = target.masked_fill(ignored, 0)[:, None]  # (n, 1)
    log_p = torch.log_softmax(logits, -1)
    target_log_p = log_p.gather(-1, index)  # (n, 1)
    loss = -(1 - smoothing) * target_log_p
    if smoothing:
        loss = loss - smoothing * log_p.mean(-1, keepdim=True)
    log_sum = logits.gather(-1, index) - target_log_p if z_loss else target_log_p  # log Z
    slope = log_p.exp_()  # in place: a chunk has as many logits as memory allows
    if z_loss:
        loss = loss + z_loss * log_sum.square()
        slope.mul_(1 + 2 * z_loss * log_sum)
    if smoothing:
        slope.sub_(smoothing / logits.shape[-1])
    slope.scatter_add_(-1, index, torch.full_like(log_sum, smoothing - 1))
    return loss[:, 0].masked_fill(ignored, 0.0), slope
