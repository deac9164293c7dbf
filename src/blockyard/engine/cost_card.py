"""The costs of a run: parameters, FLOPs, time, memory, the attention kernels that were used, and decoding.

Source: FLOPs are counted by torch.utils.flop_counter, two per multiply-add of every matmul,
convolution and attention, and 5 n log2 n for a Fourier transform of n numbers (half of it for real ones),
as FFTW reports it; elementwise work is not counted, and causal attention counts like full attention. Each gradient
of a convolution takes as many as the convolution itself, whatever its groups.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import nn

from blockyard.contracts import (
    Batch,
    Context,
    DataModule,
    EncodesSource,
    Model,
    Objective,
    Split,
    active_parameters,
    auxiliary_loss,
)
from blockyard.engine.system.randomness import undisturbed
from blockyard.generate.decode import decode_batch
from blockyard.generate.stats import Stats
from blockyard.model._cache import HasCache
from blockyard.model._example_batch import example, full
from blockyard.ops.flex import FEW
from blockyard.ops.flops import counted_as, counter
from blockyard.ops.kernel import Record, record
from blockyard.weights.teacher import Teacher

_TOKENS = 64
_TIMES = 3


def parameters(model: nn.Module) -> dict[str, int]:
    """Return the numbers of trainable and of all parameters, shared ones once; and of active ones, if they are fewer.

    Active are the parameters that one token uses, without the experts that it is not sent to.
    """
    counts = {"trainable": 0, "total": 0}
    for parameter in model.parameters():
        counts["total"] += parameter.numel()
        if parameter.requires_grad:
            counts["trainable"] += parameter.numel()
    active = active_parameters(model)
    if active < counts["total"]:
        counts["active"] = active
    return counts


def flops_per_sample(
    model: nn.Module, objective: Objective, batch: Batch, teacher: Teacher | None = None, *, compiled: bool = False
) -> dict[str, int]:
    """Return the FLOPs of one forward pass, and of a training step, per sample of `batch`.

    A forward pass is one of evaluation. A step is forward and backward, with everything that only training computes,
    such as the predictions of further tokens. If there is a teacher, its forward pass is included, and counts on its
    own. Runs all once on the device of `batch`; gradients are cleared, buffers and random generators keep their state.

    compiled: count the operations of compiled blocks
    """
    batch = objective.ready(batch)
    training = model.training
    with undisturbed(), _preserved(model), counted_as(compiled=compiled):
        try:
            with torch.no_grad(), counter() as forward:
                model.eval()(batch)
        finally:
            model.train(training)
        with counter() as step:
            loss = objective.loss(model(batch), batch.target)
            auxiliary = auxiliary_loss(model.modules())
            if auxiliary is not None:
                loss = loss + auxiliary
            loss.backward()
    model.zero_grad(set_to_none=True)  # the first step of the run begins without gradients
    step_flops = step.get_total_flops()
    counts = {"forward": forward.get_total_flops() // len(batch), "training": step_flops // len(batch)}
    if teacher is None:
        return counts
    with undisturbed(), counted_as(compiled=compiled), counter() as teacher_counter:
        teacher(batch)
    teacher_flops = teacher_counter.get_total_flops()
    counts["training"] = (step_flops + teacher_flops) // len(batch)
    counts["teacher"] = teacher_flops // len(batch)
    return counts


def two_samples(split: Split, data: DataModule) -> Batch:
    """Return two samples to count FLOPs with; those of different lengths as long as padding makes the first batch.

    Two, because batch norm over a single position needs more than one.
    """
    batch_size = data.batch_size if data.spec.variable else 1
    batch = split.batch(torch.arange(max(2, batch_size)) % min(batch_size, len(split)), None)
    return batch.map(lambda tensor: tensor[:2])


def kernels(model: nn.Module, objective: Objective, split: Split, device: torch.device) -> list[Record]:
    """Return the attention kernel of a training step, layer by layer, and why no faster one is used."""
    batch = objective.ready(split.batch(torch.arange(min(2, len(split))), None).to(device))
    with undisturbed(), _preserved(model):
        return list(record(model, batch))


@contextmanager
def _preserved(model: nn.Module) -> Iterator[None]:
    """Restore buffers, such as running statistics, and discard auxiliary losses.

    An auxiliary loss keeps the autograd graph of its forward pass, and a module that holds one cannot be copied.
    """
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        auxiliary_loss(model.modules())
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def slow_layers(records: Sequence[Record]) -> list[str]:
    """Return the layers that attend without a flash kernel though that would be faster, each with the reason."""
    sentences = []
    for entry in records:
        if entry["kernel"] in ("flash", "cudnn", "flex", "none"):
            continue
        if FEW in entry["reason"]:  # of few keys no other kernel would be faster
            continue
        sentences.append(f"{entry['layer']} takes {entry['kernel']} ({entry['reason']})")
    return sentences


def speed(windows: Sequence[float], batch_size: int, tokens: int) -> dict[str, float | None]:
    """Return the median seconds of a step over the logged windows, and samples and tokens per second from it.

    The first window includes compilation and cold caches; it is left out where there are others.
    """
    warm = windows[1:] or windows
    if not warm:
        return {"step_seconds": None, "samples_per_second": None, "tokens_per_second": None}
    median = statistics.median(warm)
    rate = batch_size / median
    return {"step_seconds": median, "samples_per_second": rate, "tokens_per_second": rate * tokens}


def load() -> float | None:
    """Return the machine's load average over the last minute, this run included; None if it is not known."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def decoding(model: nn.Module) -> dict[str, float | None]:
    """Return the tokens per second of greedy decoding from one token, and the size of the cache.

    The rate is the median over three sequences of at most 64 tokens. `cache_bytes_per_token` is what a token adds,
    0 for a state of constant size; `cache_bytes` is the cache of a whole sequence. All are None where the model does
    not decode from a cache: an encoder, a mixer without one, a head for sequences of one length, a model that is not
    blockyard's.
    """
    runs = _measure(model) if _has_cache(model) else []
    if not runs:
        return {"decode_tokens_per_second": None, "cache_bytes_per_token": None, "cache_bytes": None}
    return {
        "decode_tokens_per_second": statistics.median(run.tokens_per_second for run in runs),
        "cache_bytes_per_token": runs[0].cache_bytes_per_token,
        "cache_bytes": runs[0].cache_bytes,
    }


def _has_cache(model: nn.Module) -> TypeGuard[Model]:
    ctx = getattr(model, "ctx", None)
    if not isinstance(model, HasCache) or not isinstance(ctx, Context):
        return False
    if not ctx.causal or ctx.tokens.vocabulary is None or ctx.tokens.max_len < 2:
        return False
    if getattr(getattr(model, "head", None), "fixed_length", False):  # it reads whole sequences only
        return False
    try:
        model.init_cache(1)
    except ValueError:  # a mixer without a cache
        return False
    return True


def _measure(model: Model) -> list[Stats]:
    tokens = min(_TOKENS, model.ctx.tokens.max_len - 1)
    training = model.training
    try:
        with undisturbed(), torch.inference_mode():
            model.eval()
            return [_decode(model, tokens) for _ in range(_TIMES + 1)][1:]  # the first warms up
    finally:
        model.train(training)


def _decode(model: Model, tokens: int) -> Stats:
    stats, memory = Stats(), None
    if model.ctx.data.source is not None:
        assert isinstance(model, EncodesSource)
        source = example(full(model.ctx), next(model.parameters()).device).source
        assert source is not None
        memory = model.encode(source)
    # `generate` refuses scores that are not finite; here only the time counts.
    choose = [lambda scores: int(scores.argmax())]
    for _ in decode_batch(model, [[0]], choose, max_tokens=tokens, cache=True, stats=stats, memory=memory):
        pass
    return stats
