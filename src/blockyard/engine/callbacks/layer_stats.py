"""Logs statistics of every block while a model trains: gradients, activations, attention, dead units.

Source: Zhai et al. 2023, Stabilizing Transformer Training by Preventing Attention Entropy Collapse (arXiv 2303.06296),
    for the entropy; Dehghani et al. 2023, ViT-22B (arXiv 2302.05442), section 2.1, for the logits, which grow before a
    run diverges
Reference: blockyard.ops.reference for scores and weights; torch.nn.utils.get_total_norm

    train/grad_norm.3             norm of the gradients of block 3, before clipping
    train/activation_norm.3       mean norm of the tokens that leave the block
    train/attention_logit_max.3   largest score before the softmax, of all heads, queries and keys
    train/attention_entropy.3     entropy of the weights as a share of its maximum, mean over heads and queries
    train/dead_units.3            share of the hidden units of the channel mixer that stay at zero for every token

A step runs as without them. Gradients are read between the backward pass and the update. All else is measured in
a forward pass of its own, in evaluation mode, over a few validation samples, which are the same at each measurement:
fused kernels stay on in training, and a curve is not moved by the choice of a batch. A block without softmax attention,
or without a hidden layer, lacks the metrics of it. A block that is visited several times has the mean of its visits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import ChannelMixer, Count, Seq, blocks_of_heads, iter_blocks
from blockyard.data.splits.order import take
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.system.gradients import gradient_norm
from blockyard.engine.system.randomness import undisturbed
from blockyard.ops import maps
from blockyard.ops.observed import observed, unfused
from blockyard.runs.metric_name import MetricName

DEAD = 1e-3  # of the root mean square of a layer's hidden units; one that stays below adds nothing


class LayerStats(RunCallback):
    """Adds columns for every block to the rows of training metrics.

    Options:
        samples: number of validation samples, the first ones, on which activations and attention are measured
        every: steps between two measurements, a multiple of trainer.log_every; null is trainer.log_every
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only observes

    def __init__(self, *, samples: Count = 4, every: Count | None = None) -> None:
        self.samples = samples
        self.every = every
        self._blocks: dict[str, nn.Module] = {}
        self._gradients: dict[str, Tensor] = {}

    def model_problems(self, model: nn.Module, trainer: Any) -> list[str]:
        """Return a problem for an interval without rows of metrics, and for a model without blocks."""
        problems = []
        if self.every is not None and self.every % trainer.log_every:
            following = math.ceil(self.every / trainer.log_every) * trainer.log_every
            problems.append(
                f"every={self.every}: metrics are logged every trainer.log_every={trainer.log_every} steps; use a "
                f"multiple of it, such as every={following}"
            )
        if not blocks_by_path(model):
            problems.append(f"{type(model).__name__} has no blocks to measure; leave it out")
        return problems

    def on_run_start(self, state: RunState) -> None:
        """Watch the gradients of the steps that are measured."""
        self._blocks = blocks_by_path(state.learner.model)
        state.learner.observers.append(partial(self._measure_gradients, state))

    def metrics(self, state: RunState) -> dict[str, float]:
        """Return the statistics of the blocks. Every process must call."""
        if not self._due(state, state.step):
            return {}
        named = {MetricName.of_layer("grad_norm", path): norm for path, norm in self._gradients.items()}
        named |= self._statistics(state)
        values = torch.stack([value.float() for value in named.values()]).tolist()  # waits for the device once
        columns = {}
        for name, value in zip(named, values, strict=True):
            if not math.isnan(value):  # a block without softmax attention has no entropy
                columns[str(name)] = value
        return columns

    def _due(self, state: RunState, step: int) -> bool:
        return step % (self.every or state.log_every) == 0

    def _measure_gradients(self, state: RunState, number: int) -> None:
        """Keep the norms of the blocks' gradients at a step that is measured. number: of the step, from 0"""
        if self._due(state, number + 1):
            self._gradients = {path: gradient_norm(block.parameters()) for path, block in self._blocks.items()}

    def _statistics(self, state: RunState) -> dict[MetricName, Tensor]:
        if state.validation is None:
            return {}
        learner = state.learner
        model = learner.model
        collected = {path: BlockSamples() for path in self._blocks}
        with undisturbed(), observed(model), unfused(model):
            for index in range(min(self.samples, len(state.validation))):
                # One at a time: the scores of a sample take heads x tokens x tokens numbers.
                batch = take(state.validation, torch.tensor([index]), None).to(learner.device)
                batch = learner.objective.ready(batch)
                # As in a training step, so that the same kernels serve.
                precision = learner.trainer.precision_plugin.forward_context()
                with watched(self._blocks, collected), maps.listen(model) as calls, precision:
                    model(batch)
                for call in calls:
                    path = _block_of(call.layer, collected)
                    if path is not None:
                        collected[path].add_attention(call)
        statistics = {}
        for path, samples in collected.items():
            for name, value in samples.values().items():
                statistics[MetricName.of_layer(name, path)] = value
        return statistics


@dataclass
class BlockSamples:
    """The measurements of one block, one number for each sample and visit.

    largest: the largest magnitude of each hidden unit so far (E,), by the path of the layer that reads them
    squares: the mean squares of these units, by the same path
    """

    norms: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    largest: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, list[Tensor]] = field(default_factory=dict)

    def add_output(self, x: Tensor, seq: Seq) -> None:
        """Add the mean norm of the tokens that leave the block, (B, N, D)."""
        self.norms.append(_real(x, seq).float().norm(dim=-1).mean())

    def add_hidden(self, path: str, h: Tensor, seq: Seq) -> None:
        """Add the hidden units that a layer of the channel mixer reads, (B, N, E), or (n, E) of chosen tokens."""
        units = _real(h, seq).float().flatten(0, -2)  # (n, E)
        if not len(units):  # no token was sent to this expert
            return
        largest = units.abs().amax(0)
        if path in self.largest:
            largest = torch.maximum(largest, self.largest[path])
        self.largest[path] = largest
        self.squares.setdefault(path, []).append(units.square().mean())

    def add_attention(self, call: maps.Seen) -> None:
        """Add the largest score and the mean entropy of an attention call."""
        _, share = call.entropy()
        self.entropies.append(_real(share.transpose(1, 2), call.seq).nanmean())
        scores = call.scores()
        if scores is not None:
            self.logits.append(_real(scores.transpose(1, 2), call.seq).amax())

    def values(self) -> dict[str, Tensor]:
        """Return the metrics by name; the largest score is that of all samples, the others are means."""
        values = {}
        if self.norms:
            values["activation_norm"] = torch.stack(self.norms).mean()
        if self.logits:
            values["attention_logit_max"] = torch.stack(self.logits).amax()
        if self.entropies:
            values["attention_entropy"] = torch.stack(self.entropies).nanmean()
        if self.largest:
            dead = []
            for path, largest in self.largest.items():
                scale = torch.stack(self.squares[path]).mean().sqrt()
                dead.append(largest <= DEAD * scale)
            values["dead_units"] = torch.cat(dead).float().mean()
        return values


def blocks_by_path(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of a model by path, without those of a head, which are for training alone."""
    inside_heads = {id(block) for block in blocks_of_heads(model)}
    blocks = {id(block) for block in iter_blocks(model)} - inside_heads
    return {path: module for path, module in model.named_modules() if id(module) in blocks}


@contextmanager
def watched(blocks: Mapping[str, nn.Module], collected: Mapping[str, BlockSamples]) -> Iterator[None]:
    """Add the outputs of blocks and the hidden units of their channel mixers to `collected` inside this context."""
    handles = []
    for path, block in blocks.items():
        samples = collected[path]
        watch = _BlockHooks(samples)
        handles.append(block.register_forward_pre_hook(watch.before, with_kwargs=True))
        handles.append(block.register_forward_hook(watch.after))
        for name, module in block.named_modules():
            projection = getattr(module, "proj_out", None)
            if isinstance(module, ChannelMixer) and isinstance(projection, nn.Linear):
                handles.append(projection.register_forward_pre_hook(partial(watch.hidden, name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _BlockHooks:
    """The hooks of one block. Its sequence is known from the arguments of the call in progress."""

    def __init__(self, samples: BlockSamples) -> None:
        self.samples = samples
        self.seq: Seq | None = None

    def before(self, block: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Note the sequence of the call."""
        self.seq = next((value for value in (*arguments, *named.values()) if isinstance(value, Seq)), None)

    def after(self, block: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """Add the output of the block."""
        assert self.seq is not None, "a block is called with a sequence"
        self.samples.add_output(output, self.seq)

    def hidden(self, name: str, layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Add the hidden units of a channel mixer of the block."""
        assert self.seq is not None, "a block is called with a sequence"
        self.samples.add_hidden(name, arguments[0], self.seq)


def _real(values: Tensor, seq: Seq) -> Tensor:
    """Return the values of tokens that are no padding: (B, N, ...) -> (n, ...); those of chosen tokens (n, E) stay."""
    if seq.valid is None or values.ndim < 3:
        return values
    return values[seq.valid]


def _block_of(layer: str, blocks: Mapping[str, Any]) -> str | None:
    """Return the path of the block that an attention layer is in; None outside of the blocks."""
    return next((path for path in blocks if layer.startswith(f"{path}.")), None)
