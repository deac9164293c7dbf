"""A trial's config: the arm's frozen one with the values that were suggested, judged like any other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from blockyard.config.check_cache import CheckCache
from blockyard.config.compose import Composed
from blockyard.contracts import Issue
from blockyard.sweep.plan.sweep_plan import SweepPlan, Variant

Compose = Callable[[list[str]], Composed]


@dataclass
class Template:
    """What all trials of an arm share.

    variant: of the plan; overrides: base and arm, for who must compose a family anew
    judge: says why a config cannot run
    """

    variant: Variant
    overrides: list[str]
    outputs: str
    compose: Compose
    judge: CheckCache = field(default_factory=CheckCache)
    _parts: dict[tuple[str, str], Composed] = field(default_factory=dict)

    def config(self, setting: dict[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """The complete config under a setting, its choices, and every reason why it cannot run."""
        config = copy.deepcopy(self.variant.config) | {"seed": seed, "outputs": self.outputs}
        choices = dict(self.variant.choices)
        issues: list[Issue] = []
        # Choices first: an option may belong to the new choice.
        for key in sorted(setting, key=lambda key: "." in key):
            if "." in key:
                issues += _put(config, key, setting[key])
            else:
                issues += self._choose(config, choices, key, setting[key])
        problems = [str(issue) for issue in issues] or self.judge.reasons(Composed(config, choices))
        return config, choices, problems

    def _choose(self, config: dict[str, Any], choices: dict[str, Any], family: str, choice: Any) -> list[Issue]:
        part = self._parts.get((family, str(choice)))
        if part is None:
            part = self.compose([*self.overrides, f"{family}={choice}"])
            self._parts[family, str(choice)] = part
        if part.issues or family not in part.config:
            return part.issues or [Issue(family, "is no family of choices")]
        config[family], choices[family] = copy.deepcopy(part.config[family]), part.choices.get(family)
        return []


def template(plan: SweepPlan, arm: str, compose: Compose, judge: CheckCache | None = None) -> Template | None:
    """What the trials of an arm start from, or None where the arm itself was refused.

    judge: who knows where they will run; by default on this machine
    """
    variant = next((found for found in plan.variants.values() if found.arm == arm), None)
    if variant is None:
        return None
    words = next(a.overrides for a in plan.arms if a.name == arm)
    return Template(variant, [*(plan.question.get("base") or ()), *words], plan.outputs, compose, judge or CheckCache())


def _put(config: dict[str, Any], key: str, value: Any) -> list[Issue]:
    *path, last = key.split(".")
    node: Any = config
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node:
        return [Issue(key, "the arm has no such option")]
    node[last] = copy.deepcopy(value)
    return []
