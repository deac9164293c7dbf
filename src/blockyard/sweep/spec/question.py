"""A sweep file as a validated object: the claim, the arms that are compared, the seeds.

    claim: Pre-norm trains without warm-up where post-norm does not
    base: [experiment=vit_digits, schedule.warmup=0]
    baseline: post_norm
    arms:
      post_norm: [block=post_norm]
      pre_norm: [block=pre_norm]
    seeds: 5
    expect: pre_norm > post_norm

All problems of a file are reported together, each with the key, the value and what is allowed. `arms.py`
reads the keys that define arms, `ladder.py` their sizes, `budget.py` seeds, tune and search, `fields.py` the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from blockyard.atomic_files.strict_yaml import StrictYamlError
from blockyard.config.override_grammar import to_override
from blockyard.errors import UserError
from blockyard.sweep.cells import Arm
from blockyard.sweep.spec import budget as spending
from blockyard.sweep.spec import fields, sweep_yaml
from blockyard.sweep.spec import ladder as ladders
from blockyard.sweep.spec.arms import KINDS, default_baseline, expand_arms, name_problem
from blockyard.sweep.spec.expectation import unknown_arm
from blockyard.sweep.spec.override_text import key_of
from blockyard.sweep.spec.threshold import Threshold

# The error of a sweep file: every problem of it.


class BadQuestionError(UserError):
    """A sweep file, or its plan, has problems.

    base, arms: what could be read of the file nevertheless, in which more problems may be found
    """

    def __init__(self, problems: Sequence[str], base: Sequence[str] = (), arms: Sequence[Arm] = ()) -> None:
        self.problems, self.base, self.arms = list(problems), tuple(base), tuple(arms)
        super().__init__("\n  - ".join(self.problems))


# Reads the arms of a sweep file, and checks them against its other keys.


def read_arms(content: dict[str, Any], problems: list[str]) -> tuple[str, list[Arm]]:
    """Return which key defines the arms, and the arms; append what is wrong with them to `problems`."""
    kinds = [kind for kind in KINDS if kind in content]
    if len(kinds) != 1:
        which = f"this file has {' and '.join(kinds)}" if kinds else "this file has none"
        problems.append(f"arms: exactly one of {', '.join(KINDS)} must define the arms; {which}")
    arms = [expand_arms(kind, content[kind], problems) for kind in kinds]
    return (kinds[0], arms[0]) if kinds else ("arms", [])


def check_owners(
    arms: list[Arm], keys: list[str], content: dict[str, Any], ladder: ladders.Ladder | None, problems: list[str]
) -> None:
    """Append a problem for each arm that sets a key which is tuned, searched, matched or climbed."""
    which = "search" if content.get("search") is not None else "tune"
    owners = dict.fromkeys(keys, f"{which}: every arm tries the same settings")
    solved = ladders.owned_keys(ladder) if ladder else {}
    if content.get("match") and not ladder:
        solved["model.dim"] = "match: it solves for the width"
    problems += [f"{reason}, so {which} cannot contain {key}" for key, reason in solved.items() if key in keys]
    owners |= solved
    for key, reason in owners.items():
        setting = [arm.name for arm in arms if key in map(key_of, arm.overrides)]
        if setting:
            more = f" and {len(setting) - 3} more" if len(setting) > 3 else ""
            problems.append(f"{reason}, so no arm may set {key}; remove it from {', '.join(setting[:3])}{more}")


COMMAND_KEYS = ("config_dirs", "allow")  # read by the command line, see `command_keys`
KEYS = (
    "claim",
    "source",
    "base",
    "baseline",
    *KINDS,
    "seeds",
    "budget",
    "tune",
    "tune_seeds",
    "search",
    "match",
    "ladder",
    "metric",
    "success",
    "steps_to",
    "over",
    "resplit",
    "external",
    "expect",
    "margin",
)
SPLIT_SEED = "data.split_seed"
MATCHES = ("params", "flops", "active", "state")
OVERS = ("seeds", "samples", "both")
SEEDS = 3  # the default: the fewest that allow a verdict
MAX_CELLS = 200_000


class QuestionRecord(TypedDict, total=False):
    """The content of a sweep file as `plan.json` holds it, see `Question`; of an earlier release without later keys.

    arms, grid, zip, one_at_a_time, leave_one_out: the body, under the key that `kind` names
    """

    name: str
    path: str
    header: str
    claim: str
    source: str | None
    base: list[str]
    kind: str
    baseline: str | None
    arms: dict[str, Any]
    grid: dict[str, Any]
    zip: dict[str, Any]
    one_at_a_time: dict[str, Any]
    leave_one_out: dict[str, Any]
    seeds: list[int]
    until: spending.Until | None
    budget: dict[str, float] | None
    tune: dict[str, list[Any]]
    tune_seeds: int | None
    search: spending.Search | None
    match: str | None
    ladder: ladders.Ladder | None
    metric: str | None
    success: str | None
    steps_to: str | None
    over: str | None
    resplit: bool | None
    external: dict[str, fields.ExternalValue] | None
    expect: str | None
    margin: float | None


@dataclass(frozen=True)
class Question:
    """The content of a sweep file.

    kind: which of `arms.KINDS` defines the arms; body: its value; header: the comments at the top of the file
    baseline: None only where there is nothing to compare; metric: None is the objective's own
    success, steps_to: texts, of which `reached` is the meaning: an outcome of whole runs is compared, not a metric
    seeds: with `until` the most that there may be
    until: where seeds are given out until every comparison is decided; budget: what that may cost, in one unit
    ladder: the rungs of every arm; `arms` are then those at each rung, and `baseline` the one at the largest
    over: for what verdicts hold: seeds, samples or both; None is seeds
    resplit: whether each seed has a split of the data of its own; None is no
    external: figures from papers and other tools: value, source, and n and sd where they are known
    margin: the smallest difference that matters, in the metric's unit; `~` and `>=` use it, and `>` where it is set
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
    until: spending.Until | None
    budget: dict[str, float] | None
    tune: dict[str, list[Any]]
    tune_seeds: int | None
    search: spending.Search | None
    match: str | None
    ladder: ladders.Ladder | None
    metric: str | None
    success: str | None
    steps_to: str | None
    over: str | None
    resplit: bool | None
    external: dict[str, fields.ExternalValue] | None
    expect: str | None
    margin: float | None
    reached: Threshold | None

    @property
    def space(self) -> spending.Space:
        """The search space; empty where nothing is searched."""
        return self.search["space"] if self.search else {}

    def as_dict(self) -> QuestionRecord:
        """The content as plain data under the file's own keys, defaults included."""
        plain: Any = {key: getattr(self, key) for key in ("name", "path", "header", "until", *KEYS) if key not in KINDS}
        plain |= {"base": list(self.base), "seeds": list(self.seeds), "kind": self.kind, self.kind: self.body}
        # Plans without these have no such keys, as before there were any.
        for key in ("until", "budget", "success", "steps_to", "over", "resplit", "external", "ladder"):
            if plain[key] is None:
                del plain[key]
        record: QuestionRecord = plain
        return record


def read(path: Path, seeds: int | None = None, until_decided: bool = False) -> Question:
    """The question in a file, with `seeds` in place of its own if given. Raises BadQuestionError with every problem.

    until_decided: whether seeds are given out until every comparison is decided, at most `seeds` if given
    """
    try:
        content, header = sweep_yaml.read(path), sweep_yaml.header(path)
    except StrictYamlError as error:
        raise BadQuestionError([f"{path}: {error}"]) from error
    content |= _seeds(content.get("seeds"), seeds, until_decided)
    question = parse(content, name=path.stem, path=str(path), header=header)
    arms = tuple(replace(arm, overrides=beside(arm.overrides, path)) for arm in question.arms)
    return replace(question, base=beside(question.base, path), arms=arms)


def _only_problems(search: spending.Search, arms: list[Arm]) -> Iterator[str]:
    """What is wrong with the spaces of single arms: such an arm does not exist, or sets the key itself."""
    by_name = {arm.name: arm for arm in arms}
    for name, own in search.get("only", {}).items():
        if name not in by_name:
            yield f"search.only: {unknown_arm(name, list(by_name))}"
            continue
        for key in sorted({*own} & set(map(key_of, by_name[name].overrides))):
            yield f"search.only.{name}.{key}: the arm sets it; remove one of them"


def _resplit_problems(question: Question) -> Iterator[str]:
    """Why a split for each seed does not suit the other keys."""
    if question.until:
        yield "resplit: splits of one data set overlap, for which no test with looks is valid; give a number of seeds"
    if question.over:
        yield f"resplit: each seed has its own test samples, so verdicts cannot be over {question.over}; remove `over`"
    if question.reached:
        yield "resplit: an outcome of whole runs is compared by signs, a test without a correction; use a metric"
    setting = [arm.name for arm in question.arms if SPLIT_SEED in map(key_of, arm.overrides)]
    setting += ["base"] if SPLIT_SEED in map(key_of, question.base) else []
    if setting:
        yield f"resplit: it sets {SPLIT_SEED} to the seed; remove {SPLIT_SEED} from {', '.join(setting[:3])}"


def _combination_problems(question: Question) -> Iterator[str]:
    """Which keys of the file do not go together."""
    until = question.until
    if until and question.expect and not question.margin and re.search(r"~|>=|<=", question.expect):
        yield "margin: `~` and `>=` cannot be decided without the smallest difference that matters; state it"
    if question.over in ("samples", "both") and (until or question.reached):
        what = "a sweep that stops when it is decided" if until else "an outcome of whole runs"
        yield f"over: {what} is judged over seeds; remove `over: {question.over}`"
    if question.resplit:
        yield from _resplit_problems(question)
    if question.ladder and (until or question.reached):
        what = "seeds: a sweep that stops when it is decided" if until else f"{question.reached}: an outcome of runs"
        yield f"{what} has no law in compute; remove it, or `ladder`"


def _seeds(own: Any, seeds: int | None, until_decided: bool) -> dict[str, Any]:
    """What the command line puts in place of a file's seeds."""
    if until_decided or (isinstance(own, dict) and seeds is not None):
        own_seeds = dict(own) if isinstance(own, dict) else {"first": spending.FIRST}
        first = own_seeds.get("first", spending.FIRST)
        most = {} if seeds is None else {"most": seeds, "first": min(first, seeds) if isinstance(first, int) else first}
        return {"seeds": {**own_seeds, **most, "until": "decided"}}
    return {} if seeds is None else {"seeds": seeds}


def command_keys(path: Path) -> tuple[list[str], list[str]]:
    """The config folders of a sweep file, relative to it, and the packages that its arms come from.

    Raises BadQuestionError where either is no list of names.
    """
    try:
        content = sweep_yaml.read(path)
    except StrictYamlError:
        return [], []  # `read` says what is wrong
    values = []
    for key in COMMAND_KEYS:
        value = content.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise BadQuestionError([f"{path}: {key}: {value!r} is not a list of names; write {key}: [name]"])
        values.append(value)
    folders, packages = values
    return [os.path.normpath(path.parent / Path(folder).expanduser()) for folder in folders], packages


def parse(content: dict[str, Any], *, name: str, path: str = "", header: str = "") -> Question:
    """The question of a file's content. Raises BadQuestionError with every problem."""
    problems = [
        f"{key}: unknown key{fields.did_you_mean(key, KEYS)} (keys: {', '.join(KEYS)})"
        for key in content
        if key not in (*KEYS, *COMMAND_KEYS)
    ]
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,79}", name):
        problems.append(f"invalid file name {name!r}: it names the sweep's folder; use letters, digits and _ . -")
    claim = fields.text(content, "claim", problems) or ""
    if "claim" not in content:
        problems.append("claim: missing; write one sentence that the sweep could prove wrong")
    kind, arms = read_arms(content, problems)
    ladder, own = ladders.parse_ladder(content.get("ladder"), problems), [arm.name for arm in arms]
    baseline, expect = fields.baseline(content, own, problems) or default_baseline(arms), content.get("expect")
    listed = arms
    if ladder:
        arms = ladders.climb(arms, ladder)
        problems += list(filter(None, (name_problem(arm.name, "ladder") for arm in arms)))
        baseline = baseline and ladders.at_last_rung(baseline, own, ladder)
        expect = ladders.at_last_rung(expect, own, ladder) if isinstance(expect, str) else expect
    names = [arm.name for arm in arms]
    until = spending.parse_until(content.get("seeds"), problems)
    bounded = isinstance(content.get("seeds"), dict)
    if bounded:
        seeds = tuple(range(until["most"])) if until else ()
    else:
        seeds = spending.parse_seeds(content.get("seeds", SEEDS), problems)
    tuned = spending.parse_tune(content.get("tune"), problems)
    search = spending.parse_search(content.get("search"), len(seeds), problems)
    if search:
        problems += _only_problems(search, listed)
        if ladder and "only" in search:
            problems += ladders.only_problems(search["only"], ladder)
            search["only"] = ladders.at_every_rung(search["only"], ladder)
    check_owners(listed, [*tuned, *(search["space"] if search else ())], content, ladder, problems)
    if content.get("tune") is not None and content.get("search") is not None:
        problems.append("search: tune and search both choose settings; remove one of them")
    cells = len(arms) * len(seeds) * len(spending.settings(tuned))
    if cells > MAX_CELLS:
        problems.append(f"seeds: {cells:,} cells in all are too many; at most {MAX_CELLS:,}")
    tune_seeds = spending.parse_tune_seeds(
        content.get("tune_seeds"), bool(content.get("tune")), search is not None, len(seeds), problems
    )
    if until and tuned and tune_seeds is None:  # a setting is chosen before testing begins
        tune_seeds = until["first"]
    question = Question(
        name=name,
        path=path,
        header=header,
        claim=claim,
        source=fields.text(content, "source", problems),
        base=fields.override_list(content.get("base"), "base", problems),
        kind=kind,
        body=dict(content[kind]) if isinstance(content.get(kind), dict) else {},
        arms=tuple(arms),
        baseline=baseline,
        seeds=seeds,
        until=until,
        budget=spending.parse_budget(content.get("budget"), bounded, problems),
        tune=tuned,
        tune_seeds=tune_seeds,
        search=search,
        match=fields.one_of(content, "match", MATCHES, problems),
        ladder=ladder,
        metric=fields.metric(content, bool(tuned or search), problems),
        success=fields.text(content, "success", problems),
        steps_to=fields.text(content, "steps_to", problems),
        over=fields.one_of(content, "over", OVERS, problems),
        resplit=fields.flag(content, "resplit", problems),
        external=fields.external(content, problems),
        reached=fields.reached(content, problems),
        expect=fields.expect(content | {"expect": expect}, names, problems),
        margin=fields.margin(content, problems),
    )
    problems += _combination_problems(question)
    if problems:
        messages = [f"{path}: {problem}" if path else problem for problem in problems]
        raise BadQuestionError(messages, question.base, question.arms)
    return question


# Paths in the overrides of a sweep file: as the command line reads them, or else beside the file.
# A relative path names what lies in the working folder, as for `blockyard train`. What is not there and lies beside the
# sweep file is meant there, so that a file and its data work from any folder.


# Options that take the path of a file or a folder.
PATH_KEYS = ("data.path", "data.root", "data.splits", "init.from", "objective.teacher", "tokenizer.path")
_NOT_PLAIN = set("[]{}(),*$'\"")  # a list, a pattern, an interpolation or a quoted text


def beside(overrides: Iterable[str], file: Path) -> tuple[str, ...]:
    """The overrides with the absolute path where a relative one exists only beside `file`."""
    return tuple(_beside(text, file.absolute().parent) for text in overrides)


def _beside(override: str, folder: Path) -> str:
    key, _, value = override.partition("=")
    if key.lstrip("+") not in PATH_KEYS or not value or _NOT_PLAIN & set(value) or os.path.isabs(value):
        return override
    there = Path(os.path.normpath(folder / value))
    if value.startswith("~") or os.path.lexists(value) or not there.exists():
        return override
    return to_override(key, str(there))
