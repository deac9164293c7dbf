"""A sweep file as a validated object: what is claimed, what is compared, on how many seeds.

    claim: Pre-norm trains without warm-up where post-norm does not
    base: [experiment=vit_digits, schedule.warmup=0]
    baseline: post_norm
    arms:
      post_norm: [block=post_norm]
      pre_norm: [block=pre_norm]
    seeds: 5
    expect: pre_norm > post_norm

Every problem of a file is told at once: key, value, what would be legal. The ways to give arms stand in
`arms.py`; `seeds`, `tune` and `search` in `budget.py`; the other keys in `fields.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.errors import UserError, near
from blockyard.sweep.plan.sweep_plan import Arm
from blockyard.sweep.spec import budget, fields, override_text, strict_yaml
from blockyard.sweep.spec.arms import KINDS, default_baseline, expand

KEYS = (
    "claim",
    "source",
    "base",
    "baseline",
    *KINDS,
    "seeds",
    "tune",
    "tune_seeds",
    "search",
    "match",
    "metric",
    "expect",
    "margin",
)
MATCHES = ("params", "flops")
SEEDS = 3  # where a file says nothing: the fewest that allow a verdict
MOST_CELLS = 200_000


class BadQuestion(UserError):  # noqa: N818 - what it is, for who catches it
    """A sweep file, or the plan made of it, with its problems."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n  - ".join(self.problems))


@dataclass(frozen=True)
class Question:
    """What a sweep file asks.

    kind: which of `arms.KINDS` gave the arms; header: the comments that open the file
    baseline: None only where there is nothing to compare; metric: None is the objective's own
    margin: the smallest difference that matters, in the metric's unit; what `~` and `>=` are judged by
    """

    name: str
    path: str
    header: str
    claim: str
    source: str | None
    base: tuple[str, ...]
    kind: str
    body: dict[str, Any]
    arms: tuple[Arm, ...]
    baseline: str | None
    seeds: tuple[int, ...]
    tune: dict[str, list[Any]]
    tune_seeds: int | None
    search: dict[str, Any] | None
    match: str | None
    metric: str | None
    expect: str | None
    margin: float | None

    def as_dict(self) -> dict[str, Any]:
        """The file's content as plain data, complete, with the file's own keys."""
        own = {key: getattr(self, key) for key in ("name", "path", "header", *KEYS) if key not in KINDS}
        return own | {"base": list(self.base), "seeds": list(self.seeds), "kind": self.kind, self.kind: self.body}


def read(path: Path) -> Question:
    """The question in a file. Raises BadQuestion with every problem."""
    try:
        content, header = strict_yaml.read(path), strict_yaml.header(path)
    except strict_yaml.Unreadable as error:
        raise BadQuestion([f"{path}: {error}"]) from error
    return parse(content, name=path.stem, path=str(path), header=header)


def parse(content: dict[str, Any], *, name: str, path: str = "", header: str = "") -> Question:
    """The question of a file's content. Raises BadQuestion with every problem."""
    problems = [_unknown(key) for key in content if key not in KEYS]
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,79}", name):
        problems.append(f"{name!r}: the file's name names the sweep and its folder; take letters, digits and _ . -")
    claim = fields.text(content, "claim", problems) or ""
    if "claim" not in content:
        problems.append("claim: is missing; one sentence that the sweep could prove wrong")
    kind, arms = _arms(content, problems)
    names = [arm.name for arm in arms]
    seeds = budget.seeds(content.get("seeds", SEEDS), problems)
    tuned = budget.tune(content.get("tune"), problems)
    search = budget.search(content.get("search"), problems)
    _no_other_owner(arms, [*tuned, *((search or {}).get("space") or {})], content, problems)
    if content.get("tune") is not None and content.get("search") is not None:
        problems.append("search: tune: is given too; both choose settings, so one of them")
    _size(arms, seeds, tuned, problems)
    tune_seeds = budget.tune_seeds(
        content.get("tune_seeds"), bool(content.get("tune") or content.get("search")), len(seeds), problems
    )
    question = Question(
        name=name,
        path=path,
        header=header,
        claim=claim,
        source=fields.text(content, "source", problems),
        base=fields.base(content.get("base"), problems),
        kind=kind,
        body=dict(content[kind]) if isinstance(content.get(kind), dict) else {},
        arms=tuple(arms),
        baseline=fields.baseline(content, names, problems) or default_baseline(arms),
        seeds=seeds,
        tune=tuned,
        tune_seeds=tune_seeds,
        search=search,
        match=fields.one_of(content, "match", MATCHES, problems),
        metric=fields.metric(content, bool(tuned or search), problems),
        expect=fields.expect(content, names, problems),
        margin=fields.margin(content, problems),
    )
    if problems:
        raise BadQuestion([f"{path}: {problem}" if path else problem for problem in problems])
    return question


def _unknown(key: Any) -> str:
    nearest = near(str(key), KEYS)
    hint = f"; nearest: {nearest[0]}" if nearest else ""
    return f"{key}: nothing reads this key{hint} (keys: {', '.join(KEYS)})"


def _arms(content: dict[str, Any], problems: list[str]) -> tuple[str, list[Arm]]:
    kinds = [kind for kind in KINDS if kind in content]
    if len(kinds) != 1:
        given = f"{' and '.join(kinds)} are given" if kinds else "none is given"
        problems.append(f"arms: exactly one of {', '.join(KINDS)} says what is compared; {given}")
    found = [expand(kind, content[kind], problems) for kind in kinds]
    return (kinds[0], found[0]) if kinds else ("arms", [])


def _no_other_owner(arms: list[Arm], keys: list[str], content: dict[str, Any], problems: list[str]) -> None:
    """What is tuned, searched or matched is not an arm's to set."""
    which = "search" if content.get("search") is not None else "tune"
    owned = dict.fromkeys(keys, f"{which}: every arm tries the same settings")
    if content.get("match"):
        owned["model.dim"] = "match: the width is solved for"
        if "model.dim" in keys:
            problems.append(f"match: the width is solved for, so model.dim cannot be in {which} too")
    for key, why in owned.items():
        setting = [arm.name for arm in arms if key in map(override_text.key_of, arm.overrides)]
        if setting:
            more = f" and {len(setting) - 3} more" if len(setting) > 3 else ""
            problems.append(f"{why}, so no arm may set {key}; {', '.join(setting[:3])}{more} does")


def _size(arms: list[Arm], seeds: tuple[int, ...], tuned: dict[str, list[Any]], problems: list[str]) -> None:
    cells = len(arms) * len(seeds) * len(budget.settings(tuned))
    if cells > MOST_CELLS:
        problems.append(f"seeds: {cells:,} cells in all; at most {MOST_CELLS:,} are planned")
