"""The tokens of the training split that each key of an MLP or a key-value memory answers to most.

Source: Geva et al. 2021, Transformer Feed-Forward Layers Are Key-Value Memories (arXiv 2012.14913), section 3.1: the
    trigger examples of a key are the inputs with the largest memory coefficients
Equation: m_i = f(x W_in)_i, the weight of value i: the activation of a hidden channel, or the softmax over keys

    Of each sample only its strongest token counts for a key, so that the examples come from different samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Block, ChannelMixer, Seq
from blockyard.errors import UserError
from blockyard.inspect.labels import layer_name
from blockyard.inspect.recorded_calls import forward_once
from blockyard.inspect.samples import select_layers


@dataclass
class LayerKeys:
    """The strongest tokens for each key of one layer, the strongest first, all (E, n).

    coefficients: m_i; samples: the sample of each, a number in its split; tokens: its index after the prefix
    """

    path: str
    coefficients: Tensor
    samples: Tensor
    tokens: Tensor

    @property
    def name(self) -> str:
        """The readable name of the layer."""
        return layer_name(self.path).removesuffix(" channel")


def key_mixers(model: nn.Module, layers: tuple[int, ...] | None = None) -> dict[str, tuple[str, Any]]:
    """Returns the mixers that have keys by their path, with the path of their block.

    Raises UserError where no layer has keys, and for layers that do not exist.
    """
    memories: dict[str, tuple[str, Any]] = {}
    for path, block in model.named_modules():
        mixer = getattr(block, "channel_mixer", None)
        if isinstance(block, Block) and isinstance(mixer, ChannelMixer) and _has_keys(mixer):
            memories[f"{path}.channel_mixer"] = (path, mixer)
    if not memories:
        raise UserError("memory: no layer of this model has keys; use a run with channel_mixer=mlp or memory")
    return {path: memories[path] for path in select_layers(memories, layers)}


def _has_keys(mixer: Any) -> bool:
    """Whether a channel of the first projection is a key, or of `keys`: a weight for each row, and column of the last.

    A gated mixer has two rows a channel, and is left out.
    """
    if not isinstance(getattr(mixer, "proj_in", None), nn.Module) or not hasattr(mixer, "mix"):
        return False
    keys = getattr(mixer, "keys", None)  # of a memory that first maps the token to a query
    return bool((mixer.proj_in if keys is None else keys).weight.shape[0] == mixer.proj_out.weight.shape[1])


@torch.no_grad()
def coefficients(model: nn.Module, batch: Batch, mixers: dict[str, tuple[str, Any]]) -> dict[str, tuple[Tensor, Seq]]:
    """Returns m (B, N, E) without the prefix by path, -inf at padding, and the facts of the sequence."""
    inputs: dict[str, Tensor] = {}
    facts: dict[str, Seq] = {}
    handles = []
    for path, (of_block, mixer) in mixers.items():

        def keep(_: nn.Module, args: tuple[Any, ...], path: str = path) -> None:
            inputs[path] = args[0]

        def keep_facts(_: nn.Module, args: tuple[Any, ...], path: str = path) -> None:
            facts[path] = args[1]

        handles += [
            mixer.register_forward_pre_hook(keep),
            model.get_submodule(of_block).register_forward_pre_hook(keep_facts),
        ]
    forward_once(model, batch, handles)
    results = {}
    for path, (_, mixer) in mixers.items():
        seq = facts[path]
        m = mixer.mix(mixer.proj_in(inputs[path])).float()
        if seq.valid is not None:
            m = m.masked_fill(~seq.valid[..., None], -torch.inf)
        results[path] = (m[:, seq.num_prefix :], seq)
    return results


def strongest(
    model: nn.Module, batches: Iterable[Batch], count: int, layers: tuple[int, ...] | None = None
) -> list[LayerKeys]:
    """Returns the `count` strongest tokens for every key of each selected layer, each of another sample.

    batches: with `Batch.sample`. Raises UserError where no layer has keys, and for layers that do not exist.
    """
    mixers = key_mixers(model, layers)
    best: dict[str, LayerKeys] = {}
    for batch in batches:
        assert batch.sample is not None
        for path, (m, _) in coefficients(model, batch, mixers).items():
            values, tokens = m.max(1)  # (B, E)
            samples = batch.sample[:, None].expand_as(tokens)
            new = LayerKeys(path, values.T, samples.T, tokens.T)
            best[path] = _merged(best.get(path), new, count)
    return list(best.values())


def _merged(old: LayerKeys | None, new: LayerKeys, count: int) -> LayerKeys:
    parts = [new] if old is None else [old, new]
    values = torch.cat([part.coefficients for part in parts], 1)
    order = values.argsort(dim=1, descending=True, stable=True)[:, :count]  # of equal ones the earlier sample
    samples, tokens = (torch.cat([getattr(part, name) for part in parts], 1) for name in ("samples", "tokens"))
    return LayerKeys(new.path, values.gather(1, order), samples.gather(1, order), tokens.gather(1, order))
