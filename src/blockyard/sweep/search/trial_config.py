"""The config of a trial: the arm's frozen config with the suggested values, checked like any other.

It is apart from `trials`, since tables of a sweep read trials without importing torch.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from blockyard.config import layer_kinds, model_size
from blockyard.config.compose import Composed
from blockyard.config.defaults import LEFT_OUT
from blockyard.config.override_grammar import to_override
from blockyard.config.tree import Node, is_node
from blockyard.contracts import Issue
from blockyard.sweep.cells import Setting, Variant
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.cell_settings import with_split
from blockyard.sweep.plan.sweep_plan import SweepPlan


@dataclass
class ArmTemplate:
    """The config that all trials of an arm share.

    variant: of the plan
    overrides: of the base and the arm, from which a searched family is composed
    resplit: whether data are split by the seed
    """

    variant: Variant
    overrides: list[str]
    outputs: str
    composer: CellComposer
    resplit: bool = False
    _composed: dict[tuple[str, str], Composed] = field(default_factory=dict)

    def config(self, setting: Setting, seed: int) -> tuple[Node, dict[str, str | None], list[str]]:
        """Return the complete config under a setting, its choices, and every reason why it cannot run."""
        config = copy.deepcopy(self.variant.config) | {"seed": seed, "outputs": self.outputs}
        choices = dict(self.variant.choices)
        issues: list[Issue] = []
        # Choices first: an option may belong to the new choice.
        kinds = [f"{key}={value}" for key, value in setting.items() if layer_kinds.is_choice(key)]
        if kinds:
            issues += self._set_kinds(config, kinds)
        others = {}
        for key, value in setting.items():
            if key != model_size.KEY and not layer_kinds.is_choice(key):
                others[key] = value
        for key, value in others.items():
            if "." not in key:
                issues += self._set_choice(config, choices, key, value)
        if model_size.KEY in setting:
            issues += self._set_size(config, choices, setting)
        for key, value in others.items():
            if "." in key:
                issues += _set_option(config, key, value)
        layer_kinds.drop_equal_nodes(config)
        if self.resplit:
            config = with_split(config, seed)
        problems = [str(issue) for issue in issues] or self.composer.problems(Composed(config, choices))
        return config, choices, problems

    def _set_size(self, config: Node, choices: dict[str, str | None], setting: Setting) -> list[Issue]:
        # The dial solves the rest of the shape, so it must see every other value of the trial.
        overrides = [to_override(key, value) for key, value in setting.items()]
        composed = self.composer.compose([*self.overrides, *overrides])
        if composed.sized is None:
            return composed.issues or [Issue(model_size.KEY, "the model of this trial cannot be built")]
        for family in ("model", "parametrization"):
            if family in composed.config:
                config[family] = copy.deepcopy(composed.config[family])
                choices[family] = composed.choices.get(family)
        for key in ("max_steps", "eval_every"):
            config["trainer"][key] = composed.config["trainer"][key]
        return []

    def _set_kinds(self, config: Node, overrides: list[str]) -> list[Issue]:
        composed = self.composer.compose([*self.overrides, *overrides])
        if composed.issues or layer_kinds.FAMILY not in composed.config:
            return composed.issues or [Issue(layer_kinds.KINDS, "the layers of this arm are alike")]
        config[layer_kinds.FAMILY] = copy.deepcopy(composed.config[layer_kinds.FAMILY])
        return []

    def _set_choice(self, config: Node, choices: dict[str, str | None], family: str, choice: Any) -> list[Issue]:
        key = (family, str(choice))
        if key not in self._composed:
            self._composed[key] = self.composer.compose([*self.overrides, f"{family}={choice}"])
        composed = self._composed[key]
        if composed.issues or family not in composed.config | LEFT_OUT:
            return composed.issues or [Issue(family, "not a family of choices (see `blockyard list`)")]
        # A config leaves out some defaults, so that a family may be missing after the choice.
        config.pop(family, None)
        choices.pop(family, None)
        if family in composed.config:
            config[family] = copy.deepcopy(composed.config[family])
        if family in composed.choices:
            choices[family] = composed.choices[family]
        return []


def arm_template(plan: SweepPlan, arm: str, composer: CellComposer) -> ArmTemplate | None:
    """Return the template of an arm's trials, or None where the arm was refused."""
    variant = next((variant for variant in plan.variants.values() if variant.arm == arm), None)
    if variant is None:
        return None
    overrides = {plan_arm.name: plan_arm.overrides for plan_arm in plan.arms}[arm]
    base = plan.question.get("base") or ()
    resplit = bool(plan.question.get("resplit"))
    return ArmTemplate(variant, [*base, *overrides], plan.outputs, composer, resplit)


def _set_option(config: Node, key: str, value: Any) -> list[Issue]:
    layer_kinds.give_own_node(config, key)
    *path, last = key.split(".")
    node: Any = config
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict) or (is_node(node) and last not in node):  # optimizer.rates has any name
        return [Issue(key, "unknown option in this arm")]
    node[last] = copy.deepcopy(value)
    return []
