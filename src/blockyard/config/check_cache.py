"""`check` for thousands of configs: what was found sound once is not looked at again.

A config is sound where its model's parts are sound together, and each of its other parts (optimizer,
trainer, loggers, ...) is sound beside that data and objective: nothing else is judged together. So a
config made of parts that were all seen in sound ones is sound. Any other is given to `check`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from blockyard.config.build import CONTRACTS
from blockyard.config.check import check
from blockyard.config.compose import Composed
from blockyard.config.rules import RULES

# Judged together: all that a rule speaks of, and all that a model is built of.
_TOGETHER = tuple(
    family
    for family in CONTRACTS
    if family not in ("optimizer", "schedule") or any(family in rule.pair for rule in RULES)
)
_BESIDE = ("data", "objective")  # what the other parts are held against


class CheckCache:
    """Says why a config cannot run, in the words of `check`.

    elsewhere: whether it is to run on another machine, whose GPUs are not known here
    """

    def __init__(self, elsewhere: bool = False) -> None:
        self._elsewhere = elsewhere
        self._sound: set[str] = set()

    def reasons(self, composed: Composed) -> list[str]:
        """Every problem of a composed config."""
        keys = [] if composed.issues else list(_keys(composed.config))
        if keys and self._sound.issuperset(keys):
            return []
        reasons = [str(issue) for issue in check(_moved(composed) if self._elsewhere else composed)]
        if not reasons:
            self._sound.update(keys)
        return reasons


def _moved(composed: Composed) -> Composed:
    trainer = composed.config.get("trainer")
    if not isinstance(trainer, dict) or trainer.get("accelerator") != "gpu":
        return composed
    return replace(composed, config=composed.config | {"trainer": trainer | {"accelerator": "auto"}})


def _keys(config: dict[str, Any]) -> list[str]:
    """What the soundness of a config hangs on, each part as text."""
    text = {key: json.dumps(node, sort_keys=True) for key, node in config.items()}
    allow = text.get("allow", "[]")
    beside = [allow, *(text.get(family, "") for family in _BESIDE)]
    together = "\0".join([allow, *(text.get(family, "") for family in _TOGETHER)])
    rest = ["\0".join([key, node, *beside]) for key, node in text.items() if key not in _TOGETHER]
    return [together, *rest]
