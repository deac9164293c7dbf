"""The key `ladder` of a sweep file: every arm at several sizes, which are its rungs.

    ladder: {flops: [1e12, 3e12, 1e13, 3e13], tokens_per_param: 20}
    ladder: {params: [1e4, 3e4, 1e5, 3e5], floors: own}

Each arm of the file becomes one arm at each rung, `swiglu-1e12`, `swiglu-3e12` and so on. `plan.sizes` solves their
widths and steps. The baseline, and the arms that `expect` names without a rung, are those of the largest one.

Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (arXiv 2203.15556), whose ratio of tokens
to parameters is about 20.
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
    """Whether the laws of the arms share one floor."""
    return expected_floors(ladder.get("floors", "shared"))


def expected_floors(value: object) -> Floors:
    """The value, where it is one of the two words. Raises UserError."""
    if value == "shared" or value == "own":
        return value
    raise UserError(f"floors={value}: expected shared or own{did_you_mean(str(value), get_args(Floors))}")


def kind(ladder: Ladder) -> Literal["flops", "params"]:
    """What the rungs are numbers of: flops or params."""
    return "flops" if "flops" in ladder else "params"


def owned_keys(ladder: Ladder) -> dict[str, str]:
    """The config keys that no arm may set, since the ladder does, each with the reason."""
    owned = {"model.dim": "ladder: it solves for the width"}
    if "tokens_per_param" in ladder:
        owned |= dict.fromkeys(("trainer.max_steps", "trainer.max_epochs"), "ladder: the rung sets the steps")
    return owned


def only_problems(only: Mapping[str, Mapping[str, Any]], ladder: Ladder) -> Iterator[str]:
    """Yield which keys the spaces of single arms (`search.only`) cannot have, since the ladder sets them."""
    for name, space in only.items():
        for key, reason in owned_keys(ladder).items():
            if key in space:
                yield f"{reason}, so search.only.{name} cannot contain {key}"


def at_every_rung(only: Mapping[str, Space], ladder: Ladder) -> dict[str, Space]:
    """The spaces of single arms of the file as those of each of their rungs."""
    labels = [label(rung) for rung in ladder[kind(ladder)]]
    return {at_rung(Arm(name), rung).name: space for name, space in only.items() for rung in labels}


def climb(arms: Sequence[Arm], ladder: Ladder) -> list[Arm]:
    """Return each arm at each rung: `name-rung`, whose levels are the arm and the rung."""
    labels = [label(rung) for rung in ladder[kind(ladder)]]
    return [at_rung(arm, rung) for arm in arms for rung in labels]


def at_rung(arm: Arm, rung: str) -> Arm:
    """The arm of the file at the rung of this label."""
    return Arm(f"{arm.name}-{rung}", arm.overrides, {ARM_LEVEL: arm.name, FACTOR: rung})


def at_last_rung(text: str, names: Sequence[str], ladder: Ladder) -> str:
    """The text with the arms of the file, where it names them without a rung, at the largest rung."""
    last = label(ladder[kind(ladder)][-1])
    either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w.+-])({either})(?![\w.+-])", rf"\1-{last}", text) if names else text
