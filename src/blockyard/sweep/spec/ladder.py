"""The key `ladder` of a sweep file: every arm at several sizes, called rungs.

    ladder: {flops: [1e12, 3e12, 1e13, 3e13], tokens_per_param: 20}
    ladder: {params: [1e4, 3e4, 1e5, 3e5], floors: own}

Each arm of the file becomes one arm at each rung, `swiglu-1e12`, `swiglu-3e12` and so on. `plan.sizes` solves their
widths and steps. The baseline, and an arm that `expect` names without a rung, stand for the arm at the largest rung.

Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (arXiv 2203.15556), with a ratio of tokens
to parameters of about 20.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from blockyard.errors import UserError, did_you_mean
from blockyard.sweep.cells import ARM_LEVEL, Arm
from blockyard.sweep.spec.keys import Floors, Ladder, Space, label

FACTOR = "rung"
UNITS = {"flops": "FLOPs", "params": "parameters"}


def floors_of(ladder: Ladder) -> Floors:
    """Return whether the laws of the arms share one floor, "shared" or "own"."""
    return expected_floors(ladder.get("floors", "shared"))


def expected_floors(value: object) -> Floors:
    """Return the value as a kind of floors. Raises UserError for another value."""
    if value == "shared" or value == "own":
        return value
    raise UserError(f"floors={value}: expected shared or own{did_you_mean(str(value), get_args(Floors))}")


def kind(ladder: Ladder) -> Literal["flops", "params"]:
    """Return the quantity of the rungs: flops or params."""
    return "flops" if "flops" in ladder else "params"


def owned_keys(ladder: Ladder) -> dict[str, str]:
    """Return the config keys that no arm may set, since the ladder does, each with the reason."""
    owned = {"model.dim": "ladder: it solves for the width"}
    if "tokens_per_param" in ladder:
        owned |= dict.fromkeys(("trainer.max_steps", "trainer.max_epochs"), "ladder: the rung sets the steps")
    return owned


def only_problems(only: Mapping[str, Mapping[str, Any]], ladder: Ladder) -> Iterator[str]:
    """Yield the keys that the spaces of single arms (`search.only`) cannot have, since the ladder sets them."""
    for name, space in only.items():
        for key, reason in owned_keys(ladder).items():
            if key in space:
                yield f"{reason}, so search.only.{name} cannot contain {key}"


def at_every_rung(only: Mapping[str, Space], ladder: Ladder) -> dict[str, Space]:
    """Return each arm's search space once per rung."""
    spaces = {}
    for name, space in only.items():
        for arm in climb([Arm(name)], ladder):
            spaces[arm.name] = space
    return spaces


def climb(arms: Sequence[Arm], ladder: Ladder) -> list[Arm]:
    """Return each arm at each rung: `name-rung`, with the arm and the rung as levels."""
    labels = [label(rung) for rung in ladder[kind(ladder)]]
    return [at_rung(arm, rung) for arm in arms for rung in labels]


def at_rung(arm: Arm, rung: str) -> Arm:
    """Return the arm of the file at the rung of this label."""
    return Arm(f"{arm.name}-{rung}", arm.overrides, {ARM_LEVEL: arm.name, FACTOR: rung})


def at_last_rung(text: str, names: Sequence[str], ladder: Ladder) -> str:
    """Return the text with the arms of the file, where it names them without a rung, at the largest rung."""
    if not names:
        return text
    last = label(ladder[kind(ladder)][-1])
    # Long names first: a regular expression takes the first alternative that fits, also of names that begin alike.
    either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w.+-])({either})(?![\w.+-])", rf"\1-{last}", text)
