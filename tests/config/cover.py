"""Sets of rows of choices in which every pair, or triple, of choices occurs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

from blockyard.config.choices import catalog
from tests.config.legality import FRAME, REST, fits, fits_beside, known_as_refused, takes_layers
from tests.config.products import FAMILIES, names

Tuple = tuple[tuple[str, str], ...]  # choices of some families, in their order
_PLACES = {family: place for place, family in enumerate(FAMILIES)}


@cache
def legal_cover(strength: int) -> list[dict[str, str]]:
    """Legal rows in which every set of `strength` choices, of as many families, occurs that a legal row can hold."""
    return _cover(_subsets(strength), strength, skeletons())


@cache
def layered_cover(strength: int = 2) -> list[dict[str, str]]:
    """Legal rows with kinds of layers: every choice of layers beside every other choice that a row takes it with.

    strength: 1 for every choice beside some choice of layers.
    Without token_mixer=cycle, whose own pattern decides together with that of the layers where a position scheme acts.
    """
    layered, seen = [], set()
    for name in catalog.choices("layers"):
        for row in legal_cover(2):
            if row["token_mixer"] == "cycle":
                continue
            choices = {*row.items()}
            new = ({(name, *choice) for choice in choices} if strength == 2 else {name, *choices}) - seen
            if name != "same" and new and takes_layers(row, name):
                layered.append({**row, "layers": name})
                seen |= new
    return layered


def refused_cover(step: int = 1) -> list[dict[str, str]]:
    """Rows in which every pair of choices occurs that no legal row can hold, or every `step`-th of these pairs."""
    held = {pair for row in legal_cover(2) for pair in itertools.combinations(row.items(), 2)}
    return _cover([pair for pair in _subsets(2) if pair not in held][::step], 2, None)


@cache
def skeletons() -> tuple[tuple[dict[str, str], dict[str, list[str]]], ...]:
    """The legal combinations of the frame, each with what is legal beside it, family by family."""
    results = []
    for frame in _frames({}):
        beside = {f: [name for name in names()[f] if fits({**frame, f: name}, f)] for f in REST}
        if all(beside.values()):
            results.append((frame, beside))
    return tuple(results)


def _frames(row: dict[str, str]) -> Iterator[dict[str, str]]:
    """The legal combinations of the frame that begin with a row."""
    if len(row) == len(FRAME):
        if fits(row):
            yield row
        return
    family = FRAME[len(row)]
    for name in names()[family]:
        longer = {**row, family: name}
        if not known_as_refused(longer):
            yield from _frames(longer)


def _cover(wanted: list[Tuple], strength: int, frames: Any) -> list[dict[str, str]]:
    """Rows found greedily; what no row can hold is left out. Without frames any row will do."""
    random = Random(0)
    left, configs = dict.fromkeys(wanted), []
    order = list(wanted)
    random.shuffle(order)
    for those in order:
        if those not in left:
            continue
        row = _complete(dict(those), left, strength, frames, random)
        left.pop(those)
        if row is not None:
            configs.append(row)
            for held in itertools.combinations(row.items(), strength):
                left.pop(held, None)
    return configs


def _complete(
    fixed: dict[str, str], left: dict[Tuple, None], strength: int, frames: Any, random: Random
) -> dict[str, str] | None:
    """A row that holds `fixed`, the other choices such that they settle much of what is left."""
    if frames is None:
        return _grow(fixed, names(), left, strength, random, legal=False)
    in_frame = {(f, name) for f, name in fixed.items() if f in FRAME}
    fitting = [frame for frame in frames if in_frame <= frame[0].items()]
    random.shuffle(fitting)
    for frame, beside in fitting:
        row = {**frame, **{f: name for f, name in fixed.items() if f in beside}}
        rest = [f for f in fixed if f in beside]
        if all(row[f] in beside[f] for f in rest) and all(fits_beside(row, f) for f in rest):
            grown = _grow(row, beside, left, strength, random, legal=True)
            if grown is not None:
                return grown
    return None


def _grow(
    row: dict[str, str], lists: dict[str, list[str]], left: Any, strength: int, random: Random, *, legal: bool
) -> dict[str, str] | None:
    """`row` with a choice for each family that it lacks; None where no choice of one is legal."""
    missing = [family for family in FAMILIES if family not in row]
    if not missing:
        return {family: row[family] for family in FAMILIES}
    family = random.choice(missing)
    around = []  # what stands before and after this family's choice in a tuple
    for others in itertools.combinations(sorted(row.items(), key=_place), strength - 1):
        before = tuple(one for one in others if _place(one) < _PLACES[family])
        around.append((before, others[len(before) :]))

    def gain(name: str) -> int:
        return sum((*before, (family, name), *after) in left for before, after in around)

    shuffled = random.sample(lists[family], len(lists[family]))
    for name in sorted(shuffled, key=gain, reverse=True):
        longer = {**row, family: name}
        if not legal or fits_beside(longer, family):
            grown = _grow(longer, lists, left, strength, random, legal=legal)
            if grown is not None:
                return grown
    return None


def _subsets(strength: int) -> list[Tuple]:
    return [
        tuple(zip(families, chosen, strict=True))
        for families in itertools.combinations(FAMILIES, strength)
        for chosen in itertools.product(*(names()[family] for family in families))
    ]


def _place(choice: tuple[str, str]) -> int:
    return _PLACES[choice[0]]
