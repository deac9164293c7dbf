"""Baselines beside the runs of a task: rules and simple models, which need no gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

Values = dict[str, float]


@dataclass(frozen=True)
class SimpleModel:
    """A model of a split's own task, fitted on the training split.

    name: such as "majority"
    fit: fits it and returns the function from samples `order` (B,) of the split to predictions, such as logits (B, V).
        Raises ValueError if it cannot be fitted
    note: the bound that its training samples reached, such as "fitted on 5,000 of 60,000 samples", or None
    without: metrics that say nothing of its predictions, such as the loss of logits that are distances
    """

    name: str
    fit: Callable[[], Callable[[Tensor], Tensor]]
    note: str | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """A rule or simple model with the metrics that it reaches. values: computes them, by their names."""

    name: str
    values: Callable[[], Values]
    note: str | None = None


class Baselines(Mapping[str, Values]):
    """Baselines by name. Each is computed on access, so that a failure does not lose the others."""

    def __init__(self, baselines: Iterable[Baseline] = ()) -> None:
        self._baselines: dict[str, Baseline] = {}
        for baseline in baselines:
            self._baselines.setdefault(baseline.name, baseline)

    def __getitem__(self, name: str) -> Values:
        return self._baselines[name].values()

    def __contains__(self, name: object) -> bool:
        return name in self._baselines  # Mapping's own method asks for the value, and would compute it

    def __iter__(self) -> Iterator[str]:
        return iter(self._baselines)

    def __len__(self) -> int:
        return len(self._baselines)

    def __or__(self, other: Baselines) -> Baselines:
        return Baselines([*self._baselines.values(), *other._baselines.values()])

    def note(self, name: str) -> str | None:
        """Return the bound that a baseline reached, or None."""
        return self._baselines[name].note
