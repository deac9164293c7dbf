"""The part of a config that a proposal may change: the model and how it learns, never what is measured.

Everything else is the campaign's: data, tokens, objective, the length and the batches of a run, callbacks. A proposal
that changes it would compare two different questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockyard.config.tree import Node
from blockyard.errors import UserError
from blockyard.runs.identity import semantic
from blockyard.sweep.spec.override_text import key_of, override_problem

FAMILIES = (
    *("token_mixer", "channel_mixer", "position", "norm", "block", "residual", "layers", "model", "head"),
    *("init", "parametrization", "optimizer", "schedule"),
)
# Options of these families by which a run would begin with the results of others.
REFUSED = ("init.from",)


def refuse_overrides(proposal: str, overrides: Sequence[str]) -> None:
    """Raise UserError for overrides that no proposal may have, whatever the config."""
    if not overrides:
        raise UserError(f"{proposal} changes nothing: give its overrides, such as norm=rms")
    problems = []
    for override in overrides:
        problem = override_problem(override, proposal)
        key = key_of(override)
        if problem:
            problems.append(problem)
        elif key in REFUSED:
            problems.append(f"{override}: a proposal must not begin with the weights of other runs")
        elif key.partition(".")[0] not in FAMILIES:
            problems.append(f"{override}: a proposal must not change {key.partition('.')[0]}; {_may_change()}")
    if problems:
        raise UserError("\n  - ".join(problems))


def refuse_difference(proposal: str, baseline: Node, changed: Node) -> None:
    """Raise UserError where the config of a proposal differs from the baseline's in what the campaign has set.

    An override of a family may change others, as an experiment does, so the complete configs are compared.
    """
    before = semantic(baseline)
    after = semantic(changed)
    names = sorted(before.keys() | after.keys())
    differing = [name for name in names if name not in FAMILIES and before.get(name) != after.get(name)]
    refused = [key for key in REFUSED if _value(before, key) != _value(after, key)]
    if differing or refused:
        raise UserError(
            f"{proposal} changes {', '.join([*differing, *refused])}, by which it is measured; {_may_change()}"
        )


def _value(config: Node, key: str) -> Any:
    family, _, option = key.partition(".")
    return (config.get(family) or {}).get(option)


def _may_change() -> str:
    return f"it may change {', '.join(FAMILIES)}"
