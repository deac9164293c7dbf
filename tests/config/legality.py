"""Which rows of choices, one for each family, no rule refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import Any

from blockyard.config.choices import catalog
from blockyard.config.rules import RULES, Facts
from blockyard.model._prefix import Prefix
from tests.config.products import FAMILIES, kinds, needs_class_token, pick, readers

# The families that say what the others are judged by: few of their combinations are legal.
FRAME = ("data", "tokenizer", "head", "model", "objective")

REST = tuple(family for family in FAMILIES if family not in FRAME)


def legal(row: dict[str, str]) -> bool:
    """Whether no rule refuses a row, as its YAMLs stand."""
    return all(_allowed(number, row) for number in range(len(RULES)))


def fits(row: dict[str, str], family: str | None = None) -> bool:
    """Whether no rule about the families of a row so far refuses it; with `family`, only the rules about it."""
    return all(_allowed(number, row) for number in _rules_among(tuple(row), family))


def fits_beside(row: dict[str, str], family: str) -> bool:
    """As `fits`, for a row whose frame is legal and takes the choice of `family`: rules about two others are left."""
    return all(_allowed(number, row) for number in _rules_beside(frozenset(row), family))


def takes_layers(row: dict[str, str], layers: str) -> bool:
    """Whether no rule refuses a kind of a choice of layers in a legal row."""
    if not all(_allowed(number, {**row, "layers": layers}) for number, _ in _rules_about("layers")):
        return False
    for differing in kinds(layers).values():
        of_kind = {**row, "layers": layers, **differing}
        rules = [number for number, pair in _rules_about(None) if pair & differing.keys()]
        if not all(_allowed(number, of_kind, frozenset(differing)) for number in rules):
            return False
    return True


def known_as_refused(row: dict[str, str]) -> bool:
    """Whether a rule that read no more than the choices of a row has refused them, in a longer row."""
    return any(
        tuple(row[family] for family in families) in refused
        for families, refused in _REFUSED.items()
        if row.keys() >= set(families)
    )


@cache
def _rules_about(family: str | None) -> list[tuple[int, frozenset[str]]]:
    """The numbers of the rules about a family, or of all of them, each with the families of its pair."""
    pairs = [frozenset(_families(number)) for number in range(len(RULES))]
    return [(number, pair) for number, pair in enumerate(pairs) if family is None or family in pair]


@cache
def _rules_among(families: tuple[str, ...], family: str | None) -> list[int]:
    """The numbers of the rules of `_rules_about` whose pairs are among families."""
    return [number for number, pair in _rules_about(family) if pair <= {*families}]


@cache
def _rules_beside(families: frozenset[str], family: str) -> list[int]:
    """The numbers of the rules about a family and another one that is not of the frame, both among families."""
    return [number for number, pair in _rules_about(family) if pair <= families and not pair & {*FRAME}]


@cache
def _families(number: int) -> list[str]:
    """The families of a rule; those of the source are read by what the row has for its sequence."""
    return [catalog.OF_SOURCE.get(family, family) for family in RULES[number].pair]


class _Reads(Mapping[str, Any]):
    """The picks of a row, which remembers those that a rule has read."""

    def __init__(self, picks: dict[str, Any]) -> None:
        self.picks, self.families = picks, {"data"}

    def __getitem__(self, family: str) -> Any:
        pick = self.picks[family]
        # What reads the source depends on the data, the prefix of a model on the head.
        self.families |= {"data"} if family in catalog.OF_SOURCE else {family}
        self.families |= {"head"} if family == "model" else set()
        return pick

    def __contains__(self, family: object) -> bool:
        return family in self.picks

    def __iter__(self) -> Iterator[str]:
        return iter(self.picks)

    def __len__(self) -> int:
        return len(self.picks)


# For each rule, and the families in which a kind of layers differs: the families that it has read, each time with what
# gets their choices from a row, and by these whether it allows them. A cover asks millions of times.
_Table = tuple[Callable[[Any], Any], dict[Any, bool]]
_ALLOWED: dict[tuple[int, frozenset[str]], dict[tuple[str, ...], _Table]] = {}

# What any rule has refused: the families that it has read, and their choices.
_REFUSED: dict[tuple[str, ...], set[tuple[str, ...]]] = {}


def _allowed(number: int, row: dict[str, str], differing: frozenset[str] = frozenset()) -> bool:
    """Whether a rule allows the choices of a row. It runs once for all rows that agree in what it reads.

    differing: the families in which a kind of layers differs, where these are its choices
    """
    tables = _ALLOWED.setdefault((number, differing), {})
    for choices_of, table in tables.values():
        allowed = table.get(choices_of(row))
        if allowed is not None:
            return allowed
    reads = _Reads(_picks({family: row[family] for family in (*_families(number), *FRAME)}))
    try:
        allowed = RULES[number].reason(Facts(reads, differing=differing)) is None  # type: ignore[arg-type]
    except ValueError:
        allowed = False  # the tokenizer cannot read this data
    families = tuple(sorted(reads.families))
    choices_of, table = tables.setdefault(families, (itemgetter(*families), {}))
    table[choices_of(row)] = allowed
    if not allowed and not differing:
        _REFUSED.setdefault(families, set()).add(tuple(row[family] for family in families))
    return allowed


def _picks(row: dict[str, str]) -> dict[str, Any]:
    """The choices of a row with their default options, and what reads the source of its data."""
    picks = {family: pick(family, name) for family, name in (row | readers(row["data"])).items()}
    if readers(row["data"]) and "shared" in picks["model"].options:
        picks["model"] = replace(picks["model"], options={**picks["model"].options, "shared": False})
    if needs_class_token(row["head"]) and "prefix" in picks["model"].options:
        options = {**picks["model"].options, "prefix": Prefix(class_token=True, registers=1)}
        picks["model"] = replace(picks["model"], options=options)
    return picks
