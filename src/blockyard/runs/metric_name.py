"""The name of a metric, such as `val/accuracy@ema`, taken apart.

val/accuracy@ema        split / name @ variant
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

SPLITS = ("train", "val", "test")
_LAST = re.compile(r"last([1-9]\d{0,3})")


@dataclass(frozen=True)
class MetricName:
    """The name of a metric. `str` puts it together again.

    split: train, val or test; "" for a cost and for an outcome of a whole run, which are of no split
    variant: what was evaluated in place of the model on the whole split: averaged weights (ema), longer sequences (4x),
        more loops (4loops), a slice of the data; or of how many evaluations it is the mean (last5); "" for none of them
    """

    split: str
    name: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> MetricName:
        """Return the parts of a name. Any text is one."""
        split, slash, rest = text.partition("/")
        if not slash or split not in SPLITS:
            split, rest = "", text
        name, _, variant = rest.partition("@")
        return cls(split, name, variant)

    @classmethod
    def of_layer(cls, name: str, path: str) -> MetricName:
        """Return the training metric of a layer: train/grad_norm.3 for blocks.3, train/grad_norm.encoder.3 likewise.

        path: of the layer in the model
        """
        return cls("train", f"{name}.{path.replace('blocks.', '')}")

    def __str__(self) -> str:
        text = f"{self.split}/{self.name}" if self.split else self.name
        return f"{text}@{self.variant}" if self.variant else text

    def on(self, split: str) -> MetricName:
        """Return the same metric on another split; "" for the name as an objective has it."""
        return replace(self, split=split)

    @property
    def last(self) -> int:
        """The number of last evaluations of which the metric is the mean; 0 for a metric of one evaluation."""
        match = _LAST.fullmatch(self.variant)
        return int(match[1]) if match else 0

    def logged(self) -> MetricName:
        """Return the metric as each evaluation logs it: `val/loss` for `val/loss@last5`."""
        return self.plain() if self.last else self

    def plain(self) -> MetricName:
        """Return the metric of the model on the whole split, without a variant."""
        return replace(self, variant="")
