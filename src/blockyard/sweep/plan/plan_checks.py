"""Checks of a plan as a whole: settings that undo the match of sizes, and arms that are the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blockyard.config.model_size import ModelSizes
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.matched_widths import QUANTITIES
from blockyard.sweep.plan.sweep_plan import Variant
from blockyard.sweep.spec.override_text import to_override, to_text
from blockyard.sweep.spec.question import Question


@dataclass(frozen=True)
class SizeMatch:
    """What is matched between the arms, if anything.

    by: "params", "flops" or None; matched: what `matched_widths.solve_widths` recorded
    """

    by: str | None
    matched: dict[str, Any]
    sizes: ModelSizes

    def problems(self, arm: str, config: dict[str, Any]) -> list[str]:
        """Why a config would undo the match of its arm."""
        if not self.by or self.sizes.measure(config, self.by) == self.matched["arms"][arm]["value"]:
            return []
        return [f"it changes the {QUANTITIES[self.by]} of {arm}, so the arms would no longer match; remove it"]


def space_problems(
    question: Question, overrides: Sequence[str], composer: CellComposer, match: SizeMatch
) -> Iterator[str]:
    """Yield which values of the search space the baseline, composed from `overrides`, cannot have, and why."""
    for key, dimension in ((question.search or {}).get("space") or {}).items():
        for value in dimension if isinstance(dimension, list) else (dimension["low"], dimension["high"]):
            composed, reasons = composer.checked([*overrides, to_override(key, value)])
            reasons = reasons or match.problems(str(question.baseline), composed.config)
            yield from (f"search.space.{key}: {to_text(value)}: {reason}" for reason in reasons)


def tune_problems(variants: Iterable[Variant], match: SizeMatch) -> Iterator[str]:
    """Yield which tuned settings change the matched size."""
    for variant in variants:
        setting = " ".join(to_override(*item) for item in variant.setting.items())
        yield from (f"tune: {setting}: {reason}" for reason in match.problems(variant.arm, variant.config))


def duplicates(question: Question, variants: Iterable[Variant], folder: Callable[[Variant], str]) -> Iterator[str]:
    """Yield pairs of arms, or of settings of one arm, that are the same run. folder: of a variant's runs."""
    seen: dict[str, Variant] = {}
    for variant in variants:
        other = seen.setdefault(folder(variant).rpartition("-")[2], variant)
        if other is variant:
            continue
        if other.arm != variant.arm:
            yield (
                f"arms {other.arm} and {variant.arm} are the same run: their overrides change nothing that is "
                f"computed ({_overrides_of(question, other.arm)} and {_overrides_of(question, variant.arm)})"
            )
        else:
            yield f"tune: settings {other.setting} and {variant.setting} of arm {variant.arm} are the same run"


def _overrides_of(question: Question, name: str) -> str:
    return " ".join(next(arm.overrides for arm in question.arms if arm.name == name)) or "no overrides"
