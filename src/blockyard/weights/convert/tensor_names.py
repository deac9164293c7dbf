"""Names of tensors in older files, and in files of a model's inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


# Names of older files.
_OLD = {
    ".gamma": ".weight",
    ".beta": ".bias",
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}


def aligned(weights: Mapping[str, Tensor], expected: Iterable[str]) -> dict[str, Tensor]:
    """The weights under names that differ from older ones, or from those of the model inside, by their beginning."""
    names = set(expected)
    renamed = {}
    for name, value in weights.items():
        old = next((end for end in _OLD if name.endswith(end)), "")
        new = name.removesuffix(old) + _OLD[old] if old else name
        renamed[new if new in names or not old or name not in names else name] = value
    first = {name.partition(".")[0] for name in names}
    layouts = [
        renamed,
        {name.partition(".")[2] or name: value for name, value in renamed.items()},
        *({f"{prefix}.{name}": value for name, value in renamed.items()} for prefix in sorted(first)),
    ]
    return max(layouts, key=lambda layout: len(names & layout.keys()))
