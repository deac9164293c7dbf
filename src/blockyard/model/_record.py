"""The named intermediates of a forward pass, so that a probe needs no hooks.

A model's `forward` takes `record`: None, or a dict that it fills. `steps` gives it an empty one and returns it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blockyard.contracts import Inputs, Model
from blockyard.model._example_batch import example
from blockyard.ops import kernel

Record = dict[str, Any]


def note(record: Record | None, name: str, value: Any) -> None:
    """Keep an intermediate under its name, if there is a record."""
    if record is not None:
        record[name] = value


class Recorded(Model):
    """A model that reports the intermediates of a forward pass and the kernels of its mixers.

    Intermediates: embedded (B, N, D - position.width); placed (B, N, D); seq, the facts of the tokens with the prefix;
    stream, block.0, block.1, ... and normed (B, prefix + N, D); prediction. A perceiver has its latents (B, M, D) in
    place of tokens in the blocks, and also read (B, M, D) and written (B, N, D). The intermediates of a source have
    "source." in front of their names, and an encoder also gives memory.
    """

    def steps(self, inputs: Inputs | Tensor, cache: Any = None) -> Record:
        """Return every intermediate of a forward pass by its name."""
        record: Record = {}
        self.forward(inputs, cache, record)
        return record

    def kernels(self, inputs: Inputs | Tensor | None = None) -> list[kernel.Record]:
        """Return the kernel that each layer's mixer takes for these inputs, and why it takes no faster one.

        inputs: None means one full sequence of zeros on the model's device, with lengths and segments if its data has
            them
        """
        if inputs is None:
            inputs = example(self.ctx, next(self.parameters()).device)
        return kernel.record(self, inputs)
