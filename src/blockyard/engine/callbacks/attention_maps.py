"""Keeps the attention weights of chosen layers, for one validation sample, in attention.json.

Source: Vaswani et al. 2017 (arXiv 1706.03762), figures 3 to 5, for looking at the weights.
Reference: blockyard.ops.reference.weights

The weights are worked out again from queries and keys, so training keeps its fused kernels; it costs
one forward pass of one sample. The maps are of the last step's weights, which need not be the best.
"""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar, Literal

from blockyard.atomic_files import read_json, write_json
from blockyard.contracts import Count, CountOrZero, iter_blocks
from blockyard.data._order import take
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.errors import UserError
from blockyard.ops.maps import attention, block_number, smaller

FILE = "attention.json"
_DIGITS = 4


class AttentionMaps(RunCallback):
    """Writes the maps at the end of training.

    Options:
        layers: numbers of blocks, from 0; null is all of them
        heads: mean over the heads, or a map of each
        sample: which sample of the validation part
        side: most rows and columns of a map; of longer ones neighbours are put together
        every_evaluation: also at each evaluation before the end
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only watches
    turn = 8  # after who may end the run

    def __init__(
        self,
        *,
        layers: list[CountOrZero] | None = None,
        heads: Literal["mean", "each"] = "mean",
        sample: CountOrZero = 0,
        side: Count = 64,
        every_evaluation: bool = False,
    ) -> None:
        self.layers = layers
        self.heads = heads
        self.sample = sample
        self.side = side
        self.every_evaluation = every_evaluation

    def begin(self, live: RunState) -> None:
        """Raise UserError for a layer or a sample that is not there."""
        depth = sum(1 for _ in iter_blocks(live.learner.model))
        wrong = [layer for layer in self.layers or () if layer >= depth]
        if wrong:
            raise UserError(f"attention_maps.layers={wrong}: the model has {depth} blocks, 0 to {depth - 1}")
        if live.validation is not None and self.sample >= len(live.validation):
            raise UserError(
                f"attention_maps.sample={self.sample}: validation has {len(live.validation)} samples, from 0"
            )

    def evaluated(self, live: RunState, values: dict[str, float]) -> None:
        """Look, where this is the end or each evaluation is asked for. Every process must call."""
        last = live.step >= live.total or live.stop is not None
        if (last or self.every_evaluation) and live.validation is not None:
            self._keep(live, self._look(live))

    def _look(self, live: RunState) -> dict[str, Any]:
        import torch

        assert live.validation is not None
        batch = take(live.validation, torch.tensor([self.sample]), None).to(live.learner.device)
        batch = live.learner.objective.prepare(batch)
        maps: list[dict[str, Any]] = []
        seen = attention(live.learner.model, **batch.arguments())
        for one in seen:
            layer = block_number(one.layer)
            if self.layers is not None and layer not in self.layers:
                continue
            weights = one.weights()[0]  # (H, N, M)
            found = weights.mean(0, keepdim=True) if self.heads == "mean" else weights  # (1 or H, N, M)
            for head, table in enumerate(self._small(found)):
                maps.append(
                    {
                        "step": live.step,
                        "layer": layer,
                        "path": one.layer,
                        "head": None if self.heads == "mean" else head,
                        "causal": one.causal,
                        "map": table,
                    }
                )
        first = seen[0] if seen else None
        return {
            "sample": self.sample,
            "tokens": 0 if first is None else first.q.shape[2],
            "prefix": 0 if first is None else first.seq.num_prefix,
            "grid": None if first is None or first.seq.grid is None else list(first.seq.grid),
            "maps": maps,
        }

    def _small(self, weights: Any) -> list[list[list[float]]]:
        rows = smaller(weights, self.side).cpu().tolist()
        return [[[round(value, _DIGITS) for value in row] for row in table] for table in rows]

    def _keep(self, live: RunState, found: dict[str, Any]) -> None:
        if not live.main:
            return
        path = live.checkpoints.parent / FILE
        earlier: list[dict[str, Any]] = []
        if self.every_evaluation:
            # A run that is taken up says its last evaluations again.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                earlier = [one for one in read_json(path)["maps"] if one["step"] < live.step]
        write_json(path, found | {"maps": [*earlier, *found["maps"]]}, indent=None)
