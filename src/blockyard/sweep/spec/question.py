"""A sweep file as a validated object: the claim, the arms that are compared, the seeds.

    claim: Pre-norm trains without warm-up where post-norm does not
    base: [experiment=vit_digits, schedule.warmup=0]
    baseline: post_norm
    arms:
      post_norm: [block=post_norm]
      pre_norm: [block=pre_norm]
    seeds: 5
    expect: pre_norm > post_norm

All problems of a file are reported together, each with the key, the value and what is allowed. `keys.py` declares
the keys, `arms.py` reads those that define arms; the rules between keys are here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from blockyard.atomic_files.strict_yaml import StrictYamlError
from blockyard.config.override_grammar import to_override
from blockyard.config.run_length import LENGTHS
from blockyard.errors import UserError
from blockyard.runs.costs import COSTS
from blockyard.runs.metric_name import MetricName
from blockyard.sweep.cells import Arm
from blockyard.sweep.spec import ladder as ladders
from blockyard.sweep.spec import sweep_yaml
from blockyard.sweep.spec.arms import expand_arms, name_problem, override_list
from blockyard.sweep.spec.expectation import parse_expectation, unknown_arm
from blockyard.sweep.spec.keys import (
    COMMAND_KEYS,
    DEFAULT_SEEDS,
    FIRST,
    KINDS,
    UNTIL_FORM,
    By,
    Counted,
    Ladder,
    Space,
    SweepFile,
    Until,
    checked,
    settings_of,
)
from blockyard.sweep.spec.override_text import key_of
from blockyard.sweep.spec.threshold import KINDS as OUTCOMES
from blockyard.sweep.spec.threshold import Threshold, threshold

CONFIRMATION = "-confirm"  # ends the name of a plan on fresh seeds
SPLIT_SEED = "data.split_seed"
MAX_CELLS = 200_000
# Keys of a plan's record that are null where the file has no such key; a later one is missing there.
NULL_IN_RECORD = ("source", "baseline", "tune_seeds", "search", "match", "metric", "expect", "margin")
# Options that take the path of a file or a folder.
PATH_KEYS = ("data.path", "data.root", "data.splits", "init.from", "objective.teacher", "tokenizer.path")
_NOT_PLAIN = set("[]{}(),*$'\"")  # a list, a pattern, an interpolation or a quoted text
_FILE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,79}")
_WITHIN_MARGIN = re.compile(r"~|>=|<=")  # signs of an expectation that compare with the margin


class UntilRecord(TypedDict):
    """The numbers of seeds, and by which rule a sweep is decided. Plans of earlier releases have no `by`."""

    first: int
    most: int
    by: NotRequired[By]


class BadQuestionError(UserError):
    """A sweep file, or its plan, has problems.

    base, arms: the overrides and arms that could be read nevertheless, in which the planner may find more problems
    """

    def __init__(self, problems: Sequence[str], base: Sequence[str] = (), arms: Sequence[Arm] = ()) -> None:
        self.problems = list(problems)
        self.base = tuple(base)
        self.arms = tuple(arms)
        super().__init__("\n  - ".join(self.problems))


@dataclass(frozen=True)
class Question:
    """A sweep file with its arms and seeds.

    header: the comments at the top of the file
    keys: the file's content, with the baseline, the expectation and the search as they hold for `arms`
    kind: which of `keys.KINDS` defines the arms
    arms: with a ladder, each arm of the file at each rung; the baseline is at the largest rung
    seeds: with `until`, the largest number of seeds
    until: the numbers of seeds, first and most, and the rule, `by`, where seeds are added until every comparison is
        decided
    reached: the meaning of `success`, `steps_to` and the like: an outcome of whole runs is compared, not a metric
    """

    name: str
    path: str
    header: str
    keys: SweepFile
    kind: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    until: UntilRecord | None
    reached: Threshold | None

    @property
    def base(self) -> list[str]:
        """The overrides of every arm."""
        return self.keys.base or []

    @property
    def body(self) -> dict[str, Any]:
        """The value of the key that defines the arms."""
        body: dict[str, Any] = getattr(self.keys, self.kind)
        return body

    @property
    def tune(self) -> dict[str, list[Any]]:
        """The settings that every arm tries; empty where nothing is tuned."""
        return self.keys.tune or {}

    @property
    def space(self) -> Space:
        """The search space; empty where nothing is searched."""
        if self.keys.search:
            return self.keys.search["space"]
        return {}

    def as_dict(self) -> dict[str, Any]:
        """Return the content as plain data under the file's own keys, defaults included, as `plan.json` records it."""
        record = {key: value for key, value in self.keys if key not in COMMAND_KEYS}
        record |= {"base": self.base, "tune": self.tune, "seeds": list(self.seeds), "until": self.until}
        record |= {"name": self.name, "path": self.path, "header": self.header, "kind": self.kind}
        return {key: value for key, value in record.items() if value is not None or key in NULL_IN_RECORD}


def read(path: Path, seeds: int | None = None, until_decided: bool = False, fresh_from: int | None = None) -> Question:
    """Read the question in a file. Raises BadQuestionError with every problem.

    seeds: replaces the seeds of the file
    until_decided: add seeds until every comparison is decided, at most `seeds` if given
    fresh_from: the first of as many fresh seeds, of a confirmation, whose name ends in -confirm
    """
    try:
        content = sweep_yaml.read(path)
        header = sweep_yaml.header(path)
    except StrictYamlError as error:
        raise BadQuestionError([f"{path}: {error}"]) from error
    content |= _seeds_of_command(content.get("seeds"), seeds, until_decided)
    name = path.stem
    if fresh_from is not None:
        value = content.get("seeds", DEFAULT_SEEDS)
        if isinstance(value, dict):
            content["seeds"] = {**value, "from": fresh_from}
        else:
            # The check that follows refuses a value that does not name seeds.
            content["seeds"] = {"from": fresh_from, "count": len(value) if isinstance(value, list) else value}
        name += CONFIRMATION
    question = parse(content, name=name, path=str(path), header=header)
    arms = tuple(replace(arm, overrides=beside(arm.overrides, path)) for arm in question.arms)
    keys = question.keys.model_copy(update={"base": beside(question.base, path)})
    return replace(question, keys=keys, arms=arms)


def parse(content: dict[str, Any], *, name: str, path: str = "", header: str = "") -> Question:
    """Return the question of a file's content. Raises BadQuestionError with every problem."""
    keys, wrong_keys, problems = checked(content)
    if not _FILE_NAME.fullmatch(name):
        problems.append(f"invalid file name {name!r}: it names the sweep's folder; use letters, digits and _ . -")
    base = override_list(content.get("base"), "base", problems)
    kind, listed = _read_arms(content, problems)
    keys = _with_baseline(keys, listed, problems)
    if keys.search:
        problems += _only_problems(keys.search.get("only", {}), listed)
    arms = listed
    if keys.ladder:
        arms = ladders.climb(listed, keys.ladder)
        problems += [problem for arm in arms if (problem := name_problem(arm.name, "ladder"))]
        keys = _at_rungs(keys, keys.ladder, listed, problems)
    if keys.expect:
        parse_expectation(keys.expect, [arm.name for arm in arms], problems)

    seeds, until = _seeds_and_until(keys.seeds)
    num_seeds = 0 if "seeds" in wrong_keys else len(seeds)
    problems += _owner_problems(keys, listed)
    problems += _seed_problems(keys, num_seeds, content)
    problems += _metric_problems(keys)
    cells = len(arms) * num_seeds * len(settings_of(keys.tune or {}))
    if cells > MAX_CELLS:
        problems.append(f"seeds: {cells:,} cells in all are too many; at most {MAX_CELLS:,}")

    tune_seeds = keys.tune_seeds
    if tune_seeds is not None and tune_seeds >= len(seeds):  # on all seeds, which is the default
        tune_seeds = None
    if until and keys.tune and tune_seeds is None:  # a setting is chosen before testing begins
        tune_seeds = until["first"]
    resolved = {"base": base, "tune_seeds": tune_seeds, "resplit": keys.resplit or None}
    question = Question(
        name=name,
        path=path,
        header=header,
        keys=keys.model_copy(update=resolved),
        kind=kind,
        arms=tuple(arms),
        seeds=seeds,
        until=until,
        reached=next((threshold(kind, getattr(keys, kind)) for kind in OUTCOMES if getattr(keys, kind)), None),
    )
    problems += _combination_problems(question)
    if problems:
        raise BadQuestionError([f"{path}: {problem}" if path else problem for problem in problems], base, arms)
    return question


def command_keys(path: Path) -> tuple[list[str], list[str]]:
    """Return the config folders of a sweep file, relative to it, and the packages that its arms come from.

    Raises BadQuestionError where either is no list of names.
    """
    try:
        content = sweep_yaml.read(path)
    except StrictYamlError:
        return [], []  # `read` reports the error
    # `claim` is the one key that every file needs.
    keys, _, problems = checked({"claim": "?"} | {key: content[key] for key in COMMAND_KEYS if key in content})
    if problems:
        raise BadQuestionError([f"{path}: {problem}" for problem in problems])
    folders = [os.path.normpath(path.parent / Path(folder).expanduser()) for folder in keys.config_dirs or ()]
    return folders, keys.allow or []


def beside(overrides: Iterable[str], file: Path) -> tuple[str, ...]:
    """Return the overrides with an absolute path in place of a relative one that exists only beside `file`.

    A relative path names a file in the working folder, as for `blockyard train`. One that does not exist there but lies
    beside the sweep file is meant there, so that a sweep file and its data work from any folder.
    """
    folder = file.absolute().parent
    return tuple(_beside(override, folder) for override in overrides)


def _beside(override: str, folder: Path) -> str:
    key, _, value = override.partition("=")
    if key.lstrip("+") not in PATH_KEYS or not value or _NOT_PLAIN & set(value) or os.path.isabs(value):
        return override
    path = Path(os.path.normpath(folder / value))
    if value.startswith("~") or os.path.lexists(value) or not path.exists():
        return override
    return to_override(key, str(path))


def _seeds_of_command(value: Any, seeds: int | None, until_decided: bool) -> dict[str, Any]:
    """Return the key `seeds` as the options of the command line change it; {} where they do not.

    value: of `seeds` in the file
    """
    start = {"from": value["from"]} if isinstance(value, dict) and "from" in value else {}
    in_file = isinstance(value, dict) and "count" not in value
    if not until_decided and (seeds is None or not in_file):
        if seeds is None:
            return {}
        return {"seeds": {**start, "count": seeds} if start else seeds}
    until = dict(value) if in_file else {**start, "first": FIRST}
    if seeds is not None:
        first = until.get("first", FIRST)
        until["most"] = seeds
        # Another type is kept, so that the check of the keys reports it.
        until["first"] = min(first, seeds) if isinstance(first, int) else first
    until["until"] = "decided"
    return {"seeds": until}


def _seeds_and_until(seeds: int | list[int] | Counted | Until) -> tuple[tuple[int, ...], UntilRecord | None]:
    """Return all seeds, and the first and the largest number of them where they are added until decided."""
    if isinstance(seeds, dict):
        start = seeds["start"]
        if "count" in seeds:
            return tuple(range(start, start + seeds["count"])), None
        until: UntilRecord = {"first": seeds["first"], "most": seeds["most"], "by": seeds["by"]}
        return tuple(range(start, start + until["most"])), until
    if isinstance(seeds, list):
        return tuple(seeds), None
    return tuple(range(seeds)), None


def _read_arms(content: dict[str, Any], problems: list[str]) -> tuple[str, list[Arm]]:
    """Return the key that defines the arms, and the arms; append their problems to `problems`."""
    kinds = [kind for kind in KINDS if kind in content]
    if len(kinds) != 1:
        present = " and ".join(kinds) or "none"
        problems.append(f"arms: exactly one of {', '.join(KINDS)} must define the arms; this file has {present}")
    # All of them are read, so that their problems are reported too.
    arms = [expand_arms(kind, content[kind], problems) for kind in kinds]
    return (kinds[0], arms[0]) if kinds else ("arms", [])


def _with_baseline(keys: SweepFile, arms: list[Arm], problems: list[str]) -> SweepFile:
    """Return the keys with a baseline: the first arm where the file names none."""
    names = [arm.name for arm in arms]
    if not names or keys.baseline in names:
        return keys
    if keys.baseline:
        problems.append(f"baseline: {unknown_arm(keys.baseline, names)}")
        return keys
    return keys.model_copy(update={"baseline": names[0]})


def _at_rungs(keys: SweepFile, ladder: Ladder, listed: list[Arm], problems: list[str]) -> SweepFile:
    """Return the keys with the arms at their rungs: in `baseline` and `expect` the largest, in `search.only` all."""
    names = [arm.name for arm in listed]
    changes: dict[str, Any] = {}
    for key, text in (("baseline", keys.baseline), ("expect", keys.expect)):
        if text:
            changes[key] = ladders.at_last_rung(text, names, ladder)
    search = keys.search
    if search and "only" in search:
        problems += ladders.only_problems(search["only"], ladder)
        changes["search"] = search | {"only": ladders.at_every_rung(search["only"], ladder)}
    return keys.model_copy(update=changes)


def _owner_problems(keys: SweepFile, arms: list[Arm]) -> Iterator[str]:
    """Yield a problem for each key that an arm sets although it is tuned, searched, matched or climbed."""
    which = "search" if keys.search else "tune"
    chosen = [*(keys.tune or ())]
    if keys.search:
        chosen += keys.search["space"]
    solved = ladders.owned_keys(keys.ladder) if keys.ladder else {}
    if keys.matched_size and not keys.ladder:
        solved["model.dim"] = "match: it solves for the width"
    if keys.matched_length:
        solved |= dict.fromkeys(LENGTHS, "match: it sets how long every arm trains")
    for key, reason in solved.items():
        if key in chosen:
            yield f"{reason}, so {which} cannot contain {key}"
    owners = dict.fromkeys(chosen, f"{which}: every arm tries the same settings") | solved
    for key, reason in owners.items():
        names = [arm.name for arm in arms if key in map(key_of, arm.overrides)]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"{reason}, so no arm may set {key}; remove it from {', '.join(names[:3])}{more}"


def _only_problems(only: Mapping[str, Space], arms: list[Arm]) -> Iterator[str]:
    """Yield the problems of the search spaces of single arms: the arm does not exist, or sets the key itself."""
    by_name = {arm.name: arm for arm in arms}
    for name, space in only.items():
        if name not in by_name:
            yield f"search.only: {unknown_arm(name, list(by_name))}"
            continue
        for key in sorted({*space} & set(map(key_of, by_name[name].overrides))):
            yield f"search.only.{name}.{key}: the arm sets it; remove one of them"


def _seed_problems(keys: SweepFile, num_seeds: int, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield conflicts between the keys that say how much is tried. num_seeds: 0 where the number is not known"""
    search = keys.search
    tune_seeds = keys.tune_seeds
    seeds = content.get("seeds")
    if keys.budget and not (isinstance(seeds, dict) and "count" not in seeds):
        yield f"budget: has no effect with a fixed number of seeds; remove it, or write seeds: {UNTIL_FORM}"
    if content.get("tune") is not None and content.get("search") is not None:
        yield "search: tune and search both choose settings; remove one of them"
    if search and num_seeds and search.get("seeds", 0) > num_seeds:
        yield f"search.seeds: expected on how many of the {num_seeds} seeds a setting is tried, not {search['seeds']}"
    if tune_seeds and search:
        yield f"tune_seeds: has no effect on a search; write search: {{seeds: {tune_seeds}}}"
    elif tune_seeds and not content.get("tune"):
        yield "tune_seeds: has no effect without tune: {key: [values]}; remove it"
    elif tune_seeds and num_seeds and tune_seeds > num_seeds:
        yield f"tune_seeds: {tune_seeds} is more than the {num_seeds} seeds of the sweep; at most {num_seeds}"


def _metric_problems(keys: SweepFile) -> Iterator[str]:
    """Yield why the metric does not suit the choice of settings, and other keys that name a quantity to compare."""
    metric = keys.metric or ""
    chooses = bool(keys.tune or keys.search)
    if chooses and metric in COSTS:
        yield (
            f"metric: {metric} is a cost, and settings are chosen by a metric of validation; report that one, and "
            f"print the cost by `blockyard compare --metric {metric}`"
        )
    if chooses and metric.startswith(("test/written_", "test/inspect_")):
        yield (
            f"metric: {metric} is measured at the end of a run, and settings are chosen by a metric of validation; "
            "report that one, or drop tune and search"
        )
    if chooses and metric.startswith("val/"):
        twin = MetricName.parse(metric).logged().on("test")
        yield f"metric: {metric} chooses the settings, so it cannot judge them too; report {twin}"
    if keys.tune_by and not keys.tune:
        yield "tune_by: has no effect without tune: {key: [values]}; remove it"
    outcomes = [key for key in OUTCOMES if getattr(keys, key)]
    compared = [*outcomes, "metric"] if metric else outcomes
    if len(compared) > 1:
        yield f"{compared[0]}: {' and '.join(compared)} all say what is compared; keep one of them"
    if outcomes and _WITHIN_MARGIN.search(keys.expect or ""):
        yield f"expect: {outcomes[0]} is compared by signs, which have no interval; use > and < alone"


def _combination_problems(question: Question) -> Iterator[str]:
    """Yield the keys of the file that exclude each other."""
    keys = question.keys
    until = question.until
    if until and not keys.margin and _WITHIN_MARGIN.search(keys.expect or ""):
        yield "margin: `~` and `>=` cannot be decided without the smallest difference that matters; state it"
    if keys.over in ("samples", "both") and (until or question.reached):
        subject = "a sweep that stops when it is decided" if until else "an outcome of whole runs"
        yield f"over: {subject} is judged over seeds; remove `over: {keys.over}`"
    if keys.resplit:
        yield from _resplit_problems(question)
    if keys.ladder and keys.matched_length:
        yield "match: the rungs of `ladder` set how long an arm trains; match a size, or remove `ladder`"
    if keys.matched_length:
        set_by_base = {key_of(override) for override in question.base}
        for key in LENGTHS:
            if key in set_by_base:
                yield f"match: it sets how long every arm trains, so the base may not set {key}; remove it"
    if keys.ladder and (until or question.reached):
        subject = "seeds: a sweep that stops when it is decided" if until else f"{question.reached}: an outcome of runs"
        yield f"{subject} has no law in compute; remove it, or `ladder`"


def _resplit_problems(question: Question) -> Iterator[str]:
    """Yield why a split for each seed does not suit the other keys."""
    if question.until:
        yield "resplit: splits of one data set overlap, for which no test with looks is valid; give a number of seeds"
    over = question.keys.over
    if over:
        yield f"resplit: each seed has its own test samples, so verdicts cannot be over {over}; remove `over`"
    if question.reached:
        yield "resplit: an outcome of whole runs is compared by signs, a test without a correction; use a metric"
    setters = [arm.name for arm in question.arms if SPLIT_SEED in map(key_of, arm.overrides)]
    if SPLIT_SEED in map(key_of, question.base):
        setters.append("base")
    if setters:
        yield f"resplit: it sets {SPLIT_SEED} to the seed; remove {SPLIT_SEED} from {', '.join(setters[:3])}"
