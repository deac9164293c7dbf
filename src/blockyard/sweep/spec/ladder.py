"""The key `ladder` of a sweep file: every arm at several sizes, which are its rungs.

    ladder: {flops: [1e12, 3e12, 1e13, 3e13], tokens_per_param: 20}
    ladder: {params: [1e4, 3e4, 1e5, 3e5], floors: own}

Each arm of the file becomes one arm at each rung, `swiglu-1e12`, `swiglu-3e12` and so on. `plan.sizes` solves their
widths and steps. The baseline, and the arms that `expect` names without a rung, are those of the largest one.

Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (arXiv 2203.15556), whose ratio of tokens
to parameters is about 20.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, get_args

from blockyard.errors import UserError
from blockyard.sweep.cells import Arm
from blockyard.sweep.spec.budget import LARGEST_FLOAT, Space
from blockyard.sweep.spec.fields import did_you_mean
from blockyard.sweep.spec.override_text import quote

FACTOR = "rung"
ARM_LEVEL = "arm"  # the level that says which arm of the file an arm is
RUNGS = 4  # the fewest: three for a law of loss against compute, and the largest to be predicted
MOST = 20
TOKENS_PER_PARAM = 20.0
UNITS = {"flops": "FLOPs", "params": "parameters"}
KINDS = tuple(UNITS)
KEYS = (*KINDS, "tokens_per_param", "floors")

Floors = Literal["shared", "own"]  # the E of the laws L = E + A C^-a: one for all arms, or one each
FORM = "{flops: [1e12, 3e12, 1e13, 3e13], tokens_per_param: 20} or {params: [1e4, 3e4, 1e5, 3e5]}"


class Ladder(TypedDict, total=False):
    """The rungs of a sweep, rising, of one of two kinds.

    tokens_per_param: where the rungs set the steps; floors: missing where the laws share one
    """

    flops: list[float]
    params: list[float]
    tokens_per_param: float
    floors: Floors


def floors_of(ladder: Ladder) -> Floors:
    """Whether the laws of the arms share one floor."""
    return expected_floors(ladder.get("floors", "shared"))


def expected_floors(value: object) -> Floors:
    """The value, where it is one of the two words. Raises UserError."""
    if value == "shared" or value == "own":
        return value
    raise UserError(f"floors={value}: expected shared or own{did_you_mean(value, get_args(Floors))}")


def kind(ladder: Ladder) -> Literal["flops", "params"]:
    """What the rungs are numbers of: flops or params."""
    return "flops" if "flops" in ladder else "params"


def label(rung: float) -> str:
    """A rung as it appears in names, in the shorter of two forms: 1e12, 3e4, 12500."""
    mantissa, _, exponent = f"{rung:.5e}".partition("e")
    short = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return min(re.sub(r"e\+?0*", "e", f"{rung:g}"), short, key=len)


def parse_ladder(value: Any, problems: list[str]) -> Ladder | None:
    """The ladder of a sweep file with its default; None without one, or where it has problems, which are appended."""
    if value is None:
        return None
    before = len(problems)
    kinds = [each for each in KINDS if isinstance(value, dict) and value.get(each) is not None]
    if len(kinds) != 1:
        problems.append(f"ladder: {quote(value)} has not one list of rungs; write {FORM}")
        return None
    for key in value:
        if key not in KEYS:
            problems.append(f"ladder.{key}: unknown key{did_you_mean(key, KEYS)} (keys: {', '.join(KEYS)})")
    rungs, where = value[kinds[0]], f"ladder.{kinds[0]}"
    if not isinstance(rungs, list) or not all(_is_positive(rung) for rung in rungs):
        problems.append(f"{where}: expected a list of numbers above 0, not {quote(rungs)}; write {FORM}")
    elif not RUNGS <= len(rungs) <= MOST:
        counted = f"{len(rungs)} rung{'s' if len(rungs) != 1 else ''}"
        problems.append(f"{where}: {counted}; a law of loss against compute needs {RUNGS} or more, at most {MOST}")
    elif any(not low < high or label(low) == label(high) for low, high in itertools.pairwise(rungs)):
        problems.append(f"{where}: {quote(rungs)} do not rise; list the rungs from the smallest to the largest")
    tokens = value.get("tokens_per_param", TOKENS_PER_PARAM if kinds[0] == "flops" else None)
    if tokens is None and kinds[0] == "flops":
        problems.append("ladder.tokens_per_param: null leaves the steps of a rung open; write tokens_per_param: 20")
    elif tokens is not None and not _is_positive(tokens):
        problems.append(f"ladder.tokens_per_param: expected a number above 0, such as 20, not {quote(tokens)}")
    floors = value.get("floors", "shared")
    try:
        expected_floors(floors)
    except UserError as error:
        problems.append(f"ladder.{error}")
    if len(problems) > before:
        return None
    numbers = [float(rung) for rung in rungs]
    ladder = Ladder(flops=numbers) if kinds[0] == "flops" else Ladder(params=numbers)
    if tokens is not None:
        ladder["tokens_per_param"] = float(tokens)
    if floors != "shared":
        ladder["floors"] = floors
    return ladder


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


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST_FLOAT
