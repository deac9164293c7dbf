"""Saves the attention weights of chosen layers, for one validation sample, in attention.json.

Source: Vaswani et al. 2017 (arXiv 1706.03762), figures 3 to 5, for looking at the weights.
Reference: blockyard.ops.reference.weights

The weights are recomputed from queries and keys, so training keeps its fused kernels; the cost is one forward pass of
one sample. The maps are of the last step's weights. Those need not be the best.
"""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import nn

from blockyard.atomic_files import read_json, write_json
from blockyard.contracts import CountOrZero, Side, blocks_of_heads, iter_blocks
from blockyard.data.splits.order import take
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.errors import UserError
from blockyard.ops.maps import attention, block_number, smaller

FILE = "attention.json"
_DIGITS = 4


class SavedMap(TypedDict):
    """One map at one step. path: of the layer in the model; head: None for the mean over all."""

    step: int
    layer: int | None
    path: str
    head: int | None
    causal: bool
    map: list[list[float]]


class MapFile(TypedDict):
    """The content of the file: the sample, its numbers of tokens and of prefix tokens, their grid, and the maps."""

    sample: int
    tokens: int
    prefix: int
    grid: list[int] | None
    maps: list[SavedMap]


class AttentionMaps(RunCallback):
    """Writes attention maps at the end of training.

    Options:
        layers: block indices, from 0, in an encoder-decoder of both stacks; null is all of them
        heads: mean over the heads, or a map of each
        sample: index of the sample in the validation split
        side: largest height and width of a map; longer ones are averaged over neighbours
        every_evaluation: also at each evaluation before the end
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only observes
    priority = 8  # after callbacks that may end the run

    def __init__(
        self,
        *,
        layers: list[CountOrZero] | None = None,
        heads: Literal["mean", "each"] = "mean",
        sample: CountOrZero = 0,
        side: Side = 64,
        every_evaluation: bool = False,
    ) -> None:
        self.layers = layers
        self.heads = heads
        self.sample = sample
        self.side = side
        self.every_evaluation = every_evaluation

    def model_problems(self, model: nn.Module, trainer: Any) -> list[str]:
        """Return a problem if one of the layers does not exist."""
        # Blocks inside a head have numbers of their own, and no maps.
        inside_heads = {id(block) for block in blocks_of_heads(model)}
        blocks = {id(block) for block in iter_blocks(model)} - inside_heads
        numbers = {block_number(path) for path, module in model.named_modules() if id(module) in blocks}
        wrong = [layer for layer in self.layers or () if layer not in numbers]
        if not wrong:
            return []
        return [f"layers={wrong}: the model has blocks 0 to {len(numbers) - 1}"]

    def on_run_start(self, state: RunState) -> None:
        """Raise UserError for a layer or a sample that does not exist."""
        for problem in self.model_problems(state.learner.model, state.learner.settings):
            raise UserError(f"attention_maps.{problem}")
        if state.validation is not None and self.sample >= len(state.validation):
            raise UserError(
                f"attention_maps.sample={self.sample}: validation has {len(state.validation)} samples, from 0"
            )

    def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
        """Compute the maps at the end, or at each evaluation if that is set. Every process must call."""
        last = state.finished
        if (last or self.every_evaluation) and state.validation is not None:
            self._write(state, self._maps(state))

    def _maps(self, state: RunState) -> MapFile:
        assert state.validation is not None
        batch = take(state.validation, torch.tensor([self.sample]), None).to(state.learner.device)
        batch = state.learner.objective.ready(batch)
        maps: list[SavedMap] = []
        records = attention(state.learner.model, batch)
        for record in records:
            layer = block_number(record.layer)
            if self.layers is not None and layer not in self.layers:
                continue
            weights = record.weights()[0]  # (H, N, M)
            if self.heads == "mean":
                weights = weights.mean(0, keepdim=True)  # (1, N, M)
            for head, table in enumerate(self._rounded(weights)):
                maps.append(
                    {
                        "step": state.step,
                        "layer": layer,
                        "path": record.layer,
                        "head": None if self.heads == "mean" else head,
                        "causal": record.causal,
                        "map": table,
                    }
                )
        content: MapFile = {"sample": self.sample, "tokens": 0, "prefix": 0, "grid": None, "maps": maps}
        if records:
            first = records[0]
            content["tokens"] = first.q.shape[2]
            content["prefix"] = first.seq.num_prefix
            if first.seq.grid is not None:
                content["grid"] = list(first.seq.grid)
        return content

    def _rounded(self, weights: Any) -> list[list[list[float]]]:
        tables = smaller(weights, self.side).cpu().tolist()
        return [[[round(value, _DIGITS) for value in row] for row in table] for table in tables]

    def _write(self, state: RunState, content: MapFile) -> None:
        if not state.main:
            return
        path = state.checkpoints.parent / FILE
        earlier: list[SavedMap] = []
        if self.every_evaluation:
            # A resumed run repeats its last evaluations.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                earlier = [record for record in read_json(path)["maps"] if record["step"] < state.step]
        write_json(path, {**content, "maps": [*earlier, *content["maps"]]}, indent=None)
