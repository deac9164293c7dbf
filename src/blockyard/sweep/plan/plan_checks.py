"""Checks of a plan as a whole: settings that undo the match of sizes, and arms that are the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blockyard.config.model_size import ModelSizes
from blockyard.config.schema import options
from blockyard.config.targets import locate
from blockyard.config.tree import is_node
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


def infer_integers(question: Question, config: dict[str, Any]) -> None:
    """Mark the ranges of the search space that are of whole numbers, because their option takes no others.

    config: complete, of the sweep's base
    """
    for key, dimension in _ranges(question).items():
        if "int" in dimension or not all(isinstance(dimension.get(name, 1), int) for name in ("low", "high", "step")):
            continue
        node, last = _owner(config, key)
        option = options(locate(node["_target_"])).get(last) if is_node(node) else None
        low, high = dimension["low"], dimension["high"]
        if option is not None and option.problem(low) is None and option.problem((low + high) / 2 + 0.25) is not None:
            dimension["int"] = True


def arms_without_space(question: Question, variants: Iterable[Variant]) -> Iterator[str]:
    """Yield which arms have not every option of the search space, or not with all its values."""
    space = (question.search or {}).get("space") or {}
    for variant in variants:
        for key, dimension in space.items():
            if "." not in key or key.partition(".")[0] in space:  # a choice, or an option of one that is searched
                continue
            node, last = _owner(variant.config, key)
            if node is None:
                yield f"search.space.{key}: arm {variant.arm} has no such option; leave the arm out, or the key"
            elif is_node(node) and (option := options(locate(node["_target_"])).get(last)) is not None:
                values = dimension if isinstance(dimension, list) else (dimension["low"], dimension["high"])
                for value in values:
                    if problem := option.problem(value):
                        yield f"search.space.{key}: arm {variant.arm} cannot have {to_text(value)}: {problem}"


def _ranges(question: Question) -> dict[str, dict[str, Any]]:
    space = (question.search or {}).get("space") or {}
    return {key: dimension for key, dimension in space.items() if isinstance(dimension, dict)}


def _owner(config: dict[str, Any], key: str) -> tuple[dict[str, Any] | None, str]:
    """The mapping in a config that a dotted key sets a value of, None where it has no such value; and the last name."""
    *path, last = key.split(".")
    node: Any = config
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return (node if isinstance(node, dict) and last in node else None), last


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
