"""Whether a run fits into memory, from numbers that are known before anything is allocated.

Counted is what no run can do without, so that a config is refused only where it must fail: the weights with their
gradients and the tensors that the optimizer keeps for them; of a training step the stream that every block reads, and
the predictions; and data that is generated into memory. Kernels and libraries need more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from blockyard.config import machine
from blockyard.config.build import Components
from blockyard.contracts import ChannelMixer, Context, Embedder, Head, Issue, Position, TokenMixer

HALF = 2  # bytes of the smallest number that a forward pass computes with
FAMILIES = {
    "tokenizer": Embedder,
    "position": Position,
    "token_mixer": TokenMixer,
    "channel_mixer": ChannelMixer,
    "head": Head,
}


@dataclass(frozen=True)
class Need:
    """Bytes that a run needs at least. weights: with gradients and optimizer state, where it trains."""

    weights: int
    batch: int = 0
    data: int = 0

    @property
    def total(self) -> int:
        """Of everything."""
        return self.weights + self.batch + self.data

    def times(self, processes: int) -> Need:
        """What several processes need together."""
        return Need(self.weights * processes, self.batch * processes, self.data * processes)


def memory_issue(components: Components, model: nn.Module, *, training: bool) -> Issue | None:
    """The issue of a run that cannot fit into the memory of this machine; None where it may.

    model: on the meta device; training: False where a trained model is only loaded
    """
    trainer = components.node("trainer")
    on_gpu = training and trainer.device_type() == "cuda"
    there = machine.gpu_memory() if on_gpu else machine.memory()
    need = _need(components, model, trainer) if training else Need(_bytes(model))
    if on_gpu:
        need = Need(need.weights, need.batch)
    elif training:
        need = need.times(trainer.devices)
    if there is None or need.total <= there:
        return None
    device = "GPU" if on_gpu else "machine"
    text = f"needs {_gib(need.total)} of memory or more, and this {device} has {_gib(there)}"
    if need.weights >= max(need.batch, need.data):
        return Issue("model", f"{text}; {_describe_weights(model, need, training=training)}")
    if need.batch >= need.data:
        hint = ["trainer.accumulate for micro-batches"] if trainer.accumulate == 1 else []
        return Issue("data.batch_size", f"{text}: {_gib(need.batch)} for a batch of {components.data.batch_size}", hint)
    return Issue("data.samples", f"{text}: {_gib(need.data)} for the data")


def _need(components: Components, model: nn.Module, trainer: Any) -> Need:
    """What one process of a run needs."""
    weights = _bytes(model) * (2 + components.optimizer.tensors_per_weight)
    if trainer.sharded:
        weights = max(_bytes(model), weights // trainer.world)
    return Need(weights, _batch(components, trainer), components.data.bytes_in_memory())


def _batch(components: Components, trainer: Any) -> int:
    """Bytes of a micro-batch: the stream at each block, and the predictions."""
    ctx, data = components.context(), components.data
    if ctx.data.variable or ctx.tokens.variable:
        return 0  # how long its sequences are is not known
    blocks = ctx.depth * _length(components.architecture.mixing(ctx)) if components.architecture.stacks else 0
    stream = (blocks + _length(ctx)) * ctx.dim
    predictions = ctx.outputs * (ctx.tokens.max_len if components.objective.takes != "sequence" else 1)
    return data.batch_size * (stream + predictions) * HALF // (trainer.accumulate * trainer.world)


def _length(ctx: Context) -> int:
    return ctx.tokens.max_len + ctx.num_prefix


def _bytes(model: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))


def _describe_weights(model: nn.Module, need: Need, *, training: bool) -> str:
    """How many parameters there are, and the family that has most of them."""
    count = sum(parameter.numel() for parameter in model.parameters())
    by_family = {
        family: sum(p.numel() for each in model.modules() if isinstance(each, kind) for p in each.parameters())
        for family, kind in FAMILIES.items()
    }
    largest = max(by_family, key=lambda family: by_family[family])
    each = need.weights / max(count, 1)
    what = "for weights, gradients and optimizer state" if training else "of weights"
    return f"{count:,} parameters, most of them in {largest}, take {each:.0f} bytes each {what}"


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
