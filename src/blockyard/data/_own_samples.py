"""Samples of a dataset of the user's own: what an item is, and items as a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data._decode import to_tensor
from blockyard.errors import UserError

Pair = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Reader:
    """How items become samples.

    name: of the option that names the dataset, for messages; inputs, target: keys of items that are mappings
    classes: number of classes, which bounds targets; None where targets are no classes, or not known yet
    collate: the user's own function from items to a batch, or None
    """

    name: str
    inputs: str
    target: str
    classes: int | None = None
    collate: Callable[[list[Any]], Any] | None = None

    def pair(self, item: Any, where: str) -> Pair:
        """Returns inputs and target of an item, or of a collated batch. Raises UserError for anything else."""
        if isinstance(item, Mapping):
            if self.inputs not in item:
                raise UserError(f"{where} has the keys {', '.join(map(str, item))}; set data.inputs to one of them")
            inputs, target = item[self.inputs], item.get(self.target)
        elif isinstance(item, tuple | list) and len(item) == 2:
            inputs, target = item
        else:
            inputs, target = item, None
        values = _tensor(inputs, f"{where}, its input")
        return values, None if target is None else _tensor(target, f"{where}, its target")

    def batch(self, items: Sequence[Any], numbers: Sequence[int]) -> Batch:
        """Returns items as a batch. Raises UserError naming the sample that does not fit."""
        if self.collate is not None:
            inputs, target = self.pair(self.collate(list(items)), f"{self.name}: a batch of its collate_fn")
        else:
            pairs = [self.pair(item, f"{self.name}[{n}]") for item, n in zip(items, numbers, strict=True)]
            inputs = self._stacked([pair[0] for pair in pairs], numbers, "input")
            targets = [pair[1] for pair in pairs if pair[1] is not None]
            target = self._stacked(targets, numbers, "target") if len(targets) == len(pairs) else None
        if target is not None:
            self._check_target(target, numbers)
            if target.is_floating_point() and target.ndim == 1:
                target = target[:, None]  # one real value of each sample
        return Batch(inputs, target)

    def _stacked(self, values: list[Tensor], numbers: Sequence[int], what: str) -> Tensor:
        for value, number in zip(values, numbers, strict=True):
            if (value.shape, value.dtype) != (values[0].shape, values[0].dtype):
                first, own = (
                    (tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in (values[0], value)
                )
                raise UserError(
                    f"{self.name}[{number}]: its {what} is {own[1]} of shape {own[0]}, that of [{numbers[0]}] is "
                    f"{first[1]} of shape {first[0]}; make them alike"
                )
        return torch.stack(values)

    def _check_target(self, target: Tensor, numbers: Sequence[int]) -> None:
        if target.is_floating_point():
            bad = ~target.isfinite()
        elif self.classes is not None and target.ndim == 1:
            bad = (target < 0) | (target >= self.classes)
        else:
            return
        if bad.any():
            row = int(bad.flatten(1).any(1).nonzero()[0]) if bad.ndim > 1 else int(bad.nonzero()[0])
            expected = "not finite" if target.is_floating_point() else f"no class from 0 to {self.classes} - 1"
            raise UserError(f"{self.name}[{numbers[row]}]: the target {target[row].tolist()} is {expected}")


def _tensor(value: Any, where: str) -> Tensor:
    """Returns a number, an array, a tensor or an image as float32 or int64; images of bytes from 0 to 1."""
    if isinstance(value, Tensor):
        tensor = value
    elif isinstance(value, np.ndarray | np.generic | int | float) and np.asarray(value).dtype.kind in "biuf":
        tensor = torch.from_numpy(np.array(value))
    elif hasattr(value, "getbands"):  # an image of Pillow
        tensor = to_tensor(value)
    else:
        raise UserError(f"{where} is a {type(value).__name__}; it should be a number, an array, a tensor or an image")
    if tensor.dtype == torch.uint8 and tensor.ndim >= 3:
        return tensor.float() / 255
    return tensor.float() if tensor.is_floating_point() else tensor.long()
