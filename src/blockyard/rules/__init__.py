"""What cannot be combined, from two declarations at a time.

Each rule reads what components declare (traits, ports, axes, ...) and returns a reason or None.
Adding a component adds no rule.
"""

from __future__ import annotations

from blockyard.rules import answer, place, row, stack
from blockyard.rules.facts import Facts, Pick, Rule

RULES: tuple[Rule, ...] = (*place.RULES, *row.RULES, *stack.RULES, *answer.RULES)

__all__ = ["RULES", "Facts", "Pick", "Rule"]
