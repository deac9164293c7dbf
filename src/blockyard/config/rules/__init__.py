"""Rules against combinations of choices, each about two families.

A rule reads what components declare (traits, ports, axes, ...) and returns the reason why they do not fit, or None.
Adding a component adds no rule.
"""

from __future__ import annotations

from blockyard.config.rules import blocks, coordinates, layers, objective, sequence
from blockyard.config.rules.declarations import Facts, Pick, Rule

RULES: tuple[Rule, ...] = (*coordinates.RULES, *sequence.RULES, *blocks.RULES, *layers.RULES, *objective.RULES)

__all__ = ["RULES", "Facts", "Pick", "Rule"]
