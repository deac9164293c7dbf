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
from typing import Any

from blockyard.atomic_files.strict_yaml import StrictYamlError
from blockyard.config.override_grammar import to_override
from blockyard.errors import UserError
from blockyard.runs.costs import COSTS
from blockyard.sweep.cells import Arm
from blockyard.sweep.spec import ladder as ladders
from blockyard.sweep.spec import sweep_yaml
from blockyard.sweep.spec.arms import default_baseline, expand_arms, name_problem, override_list
from blockyard.sweep.spec.expectation import parse_expectation, unknown_arm
from blockyard.sweep.spec.keys import (
    COMMAND_KEYS,
    FIRST,
    KINDS,
    UNTIL_FORM,
    Search,
    Space,
    SweepFile,
    checked,
    settings_of,
)
from blockyard.sweep.spec.override_text import key_of
from blockyard.sweep.spec.threshold import Threshold, threshold

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


def check_owners(arms: list[Arm], chosen: list[str], keys: SweepFile, problems: list[str]) -> None:
    """Append a problem for each arm that sets a key which is tuned, searched, matched or climbed."""
    which = "search" if keys.search else "tune"
    owners = dict.fromkeys(chosen, f"{which}: every arm tries the same settings")
    solved = ladders.owned_keys(keys.ladder) if keys.ladder else {}
    if keys.match and not keys.ladder:
        solved["model.dim"] = "match: it solves for the width"
    problems += [f"{reason}, so {which} cannot contain {key}" for key, reason in solved.items() if key in chosen]
    owners |= solved
    for key, reason in owners.items():
        setting = [arm.name for arm in arms if key in map(key_of, arm.overrides)]
        if setting:
            more = f" and {len(setting) - 3} more" if len(setting) > 3 else ""
            problems.append(f"{reason}, so no arm may set {key}; remove it from {', '.join(setting[:3])}{more}")


SPLIT_SEED = "data.split_seed"
MAX_CELLS = 200_000
# Keys of a plan's record that are null where the file has no such key; a later one is missing there.
NULL_IN_RECORD = ("source", "baseline", "tune_seeds", "search", "match", "metric", "expect", "margin")


@dataclass(frozen=True)
class Question:
    """A sweep file with its arms and seeds.

    header: the comments at the top of the file
    keys: the file's content, with the baseline, the expectation and the search as they hold for `arms`
    kind: which of `keys.KINDS` defines the arms
    arms: with a ladder those at each rung, and the baseline is the one at the largest
    seeds: with `until` the most that there may be
    until: where seeds are given out until every comparison is decided: how many at first, at most
    reached: the meaning of `success` or `steps_to`: an outcome of whole runs is compared, not a metric
    """

    name: str
    path: str
    header: str
    keys: SweepFile
    kind: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    until: dict[str, int] | None
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
        return self.keys.search["space"] if self.keys.search else {}

    def as_dict(self) -> dict[str, Any]:
        """The content as plain data under the file's own keys, defaults included, as `plan.json` records it."""
        record = {key: value for key, value in self.keys if key not in COMMAND_KEYS}
        record |= {"base": self.base, "tune": self.tune, "seeds": list(self.seeds), "until": self.until}
        record |= {"name": self.name, "path": self.path, "header": self.header, "kind": self.kind}
        return {key: value for key, value in record.items() if value is not None or key in NULL_IN_RECORD}


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
    keys = question.keys.model_copy(update={"base": beside(question.base, path)})
    return replace(question, keys=keys, arms=arms)


def _only_problems(search: Search, arms: list[Arm]) -> Iterator[str]:
    """What is wrong with the spaces of single arms: such an arm does not exist, or sets the key itself."""
    by_name = {arm.name: arm for arm in arms}
    for name, own in search.get("only", {}).items():
        if name not in by_name:
            yield f"search.only: {unknown_arm(name, list(by_name))}"
            continue
        for key in sorted({*own} & set(map(key_of, by_name[name].overrides))):
            yield f"search.only.{name}.{key}: the arm sets it; remove one of them"


def _seed_problems(keys: SweepFile, seeds: int, content: Mapping[str, Any]) -> Iterator[str]:
    """What does not go together in the keys that say how much is tried. seeds: 0 where their number is not known"""
    search, tune_seeds = keys.search, keys.tune_seeds
    if keys.budget and not isinstance(content.get("seeds"), dict):
        yield f"budget: has no effect with a fixed number of seeds; remove it, or write seeds: {UNTIL_FORM}"
    if content.get("tune") is not None and content.get("search") is not None:
        yield "search: tune and search both choose settings; remove one of them"
    if search and seeds and search.get("seeds", 0) > seeds:
        yield f"search.seeds: expected on how many of the {seeds} seeds a setting is tried, not {search['seeds']}"
    if tune_seeds and search:
        yield f"tune_seeds: has no effect on a search; write search: {{seeds: {tune_seeds}}}"
    elif tune_seeds and not content.get("tune"):
        yield "tune_seeds: has no effect without tune: {key: [values]}; remove it"
    elif tune_seeds and seeds and tune_seeds > seeds:
        yield f"tune_seeds: {tune_seeds} is more than the {seeds} seeds of the sweep; at most {seeds}"


def _metric_problems(keys: SweepFile) -> Iterator[str]:
    """Why the metric does not suit the choice of settings, and what else says what is compared."""
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
        yield f"metric: {metric} chooses the settings, so it cannot judge them too; report test/{metric[4:]}"
    outcomes = [key for key in ("success", "steps_to") if getattr(keys, key)]
    compared = [*outcomes, "metric"] if metric else outcomes
    if len(compared) > 1:
        yield f"{compared[0]}: {' and '.join(compared)} all say what is compared; keep one of them"
    if outcomes and re.search(r"~|>=|<=", keys.expect or ""):
        yield f"expect: {outcomes[0]} is compared by signs, which have no interval; use > and < alone"


def _resplit_problems(question: Question) -> Iterator[str]:
    """Why a split for each seed does not suit the other keys."""
    if question.until:
        yield "resplit: splits of one data set overlap, for which no test with looks is valid; give a number of seeds"
    if over := question.keys.over:
        yield f"resplit: each seed has its own test samples, so verdicts cannot be over {over}; remove `over`"
    if question.reached:
        yield "resplit: an outcome of whole runs is compared by signs, a test without a correction; use a metric"
    setting = [arm.name for arm in question.arms if SPLIT_SEED in map(key_of, arm.overrides)]
    setting += ["base"] if SPLIT_SEED in map(key_of, question.base) else []
    if setting:
        yield f"resplit: it sets {SPLIT_SEED} to the seed; remove {SPLIT_SEED} from {', '.join(setting[:3])}"


def _combination_problems(question: Question) -> Iterator[str]:
    """Which keys of the file do not go together."""
    until = question.until
    if until and question.keys.expect and not question.keys.margin and re.search(r"~|>=|<=", question.keys.expect):
        yield "margin: `~` and `>=` cannot be decided without the smallest difference that matters; state it"
    if question.keys.over in ("samples", "both") and (until or question.reached):
        what = "a sweep that stops when it is decided" if until else "an outcome of whole runs"
        yield f"over: {what} is judged over seeds; remove `over: {question.keys.over}`"
    if question.keys.resplit:
        yield from _resplit_problems(question)
    if question.keys.ladder and (until or question.reached):
        what = "seeds: a sweep that stops when it is decided" if until else f"{question.reached}: an outcome of runs"
        yield f"{what} has no law in compute; remove it, or `ladder`"


def _seeds(own: Any, seeds: int | None, until_decided: bool) -> dict[str, Any]:
    """What the command line puts in place of a file's seeds."""
    if until_decided or (isinstance(own, dict) and seeds is not None):
        own_seeds = dict(own) if isinstance(own, dict) else {"first": FIRST}
        first = own_seeds.get("first", FIRST)
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
    named = {key: content[key] for key in COMMAND_KEYS if key in content}
    keys, _, problems = checked({"claim": "?", **named})
    if problems:
        raise BadQuestionError([f"{path}: {problem}" for problem in problems])
    folders = [os.path.normpath(path.parent / Path(folder).expanduser()) for folder in keys.config_dirs or ()]
    return folders, keys.allow or []


def parse(content: dict[str, Any], *, name: str, path: str = "", header: str = "") -> Question:
    """The question of a file's content. Raises BadQuestionError with every problem."""
    keys, wrong, problems = checked(content)
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,79}", name):
        problems.append(f"invalid file name {name!r}: it names the sweep's folder; use letters, digits and _ . -")
    base = override_list(content.get("base"), "base", problems)
    kind, listed = read_arms(content, problems)
    own, arms, ladder = [arm.name for arm in listed], listed, keys.ladder
    if keys.baseline and own and keys.baseline not in own:
        problems.append(f"baseline: {unknown_arm(keys.baseline, own)}")
    baseline, expect = keys.baseline or default_baseline(listed), keys.expect
    search = keys.search
    if search:
        problems += _only_problems(search, listed)
    if ladder:
        arms = ladders.climb(listed, ladder)
        problems += list(filter(None, (name_problem(arm.name, "ladder") for arm in arms)))
        baseline = baseline and ladders.at_last_rung(baseline, own, ladder)
        expect = expect and ladders.at_last_rung(expect, own, ladder)
        if search and "only" in search:
            problems += ladders.only_problems(search["only"], ladder)
            search["only"] = ladders.at_every_rung(search["only"], ladder)
    if expect:
        parse_expectation(expect, [arm.name for arm in arms], problems)
    until = None
    if isinstance(keys.seeds, dict):
        until = {"first": keys.seeds["first"], "most": keys.seeds["most"]}
        seeds = tuple(range(until["most"]))
    else:
        seeds = tuple(keys.seeds if isinstance(keys.seeds, list) else range(keys.seeds))
    known_seeds = 0 if "seeds" in wrong else len(seeds)
    check_owners(listed, [*(keys.tune or ()), *(search["space"] if search else ())], keys, problems)
    problems += [*_seed_problems(keys, known_seeds, content), *_metric_problems(keys)]
    cells = len(arms) * known_seeds * len(settings_of(keys.tune or {}))
    if cells > MAX_CELLS:
        problems.append(f"seeds: {cells:,} cells in all are too many; at most {MAX_CELLS:,}")
    tune_seeds = keys.tune_seeds if (keys.tune_seeds or 0) < len(seeds) else None
    if until and keys.tune and tune_seeds is None:  # a setting is chosen before testing begins
        tune_seeds = until["first"]
    resolved = {"base": base, "baseline": baseline, "expect": expect, "search": search, "tune_seeds": tune_seeds}
    resolved["resplit"] = keys.resplit or None
    reached = threshold("success", keys.success or "") or threshold("steps_to", keys.steps_to or "")
    question = Question(name, path, header, keys.model_copy(update=resolved), kind, tuple(arms), seeds, until, reached)
    problems += _combination_problems(question)
    if problems:
        messages = [f"{path}: {problem}" if path else problem for problem in problems]
        raise BadQuestionError(messages, base, arms)
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
