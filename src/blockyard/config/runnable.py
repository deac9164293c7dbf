"""Finds a command that runs a choice: overrides beside it, so that `check` accepts it.

A choice alone often does not fit the defaults of the other families: `data=parity` has token ids, and the default
tokenizer reads images. The companions come from an experiment that uses the choice; where none does, rules find them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from blockyard.config.alternatives import default_pick, picks, refusal
from blockyard.config.build import CONTRACTS, SOURCE_CONTRACTS
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.presets import choices as choices_of_file
from blockyard.config.rules import RULES, Facts
from blockyard.config.untrusted.placeholders import NeedsTorchError, require_torch

COMPANIONS = 6  # at most so many other families are changed
TRIED = 12  # sets of companions that are checked as whole configs
# Data that need no file, the common kinds first: companions of what reads them.
BUILT_IN = (
    *("digits", "code", "translation", "digits_views", "co2", "atlas", "canvas_captions", "canvas_questions"),
    *("dial_tones", "key_tones", "digit_series", "parity", "breast_cancer", "molecules"),
)
# Families whose choices depend on this machine, or on a built model; for the others declarations tell.
BUILT = ("trainer", "callbacks")
# Token ids from files, with the largest usual vocabulary of such files: GPT-2's.
TOKENS = ("data=tokens", "data.vocabulary=50257")


@dataclass(frozen=True)
class Runnable:
    """Overrides of `blockyard train`. needs: a file or a device that is not here; None for nothing."""

    overrides: tuple[str, ...]
    needs: str | None = None


def runnable(choice: catalog.Choice, folders: Sequence[Path], allow: Sequence[str]) -> Runnable:
    """Return overrides with the choice that run as they are, or that need a file or a device at most.

    folders: the user's own config folders; allow: packages that the command line allows
    """
    builds = choice.family in BUILT
    if builds:
        require_torch()
    dirs = [str(folder) for folder in folders]
    more = [f"allow=[{','.join(allow)}]"] if allow else []
    lacking: Runnable | None = None
    unread: NeedsTorchError | None = None
    for stage, candidates in enumerate(_stages(choice, dirs, more)):
        for overrides in candidates:
            composed = compose([*overrides, *more], dirs)
            try:
                issues = check(composed, builds=builds)
                if not issues:
                    return Runnable(overrides)
                if lacking is None:
                    elsewhere = check(composed, on_this_machine=False, builds=builds)
                    # Another machine may have the user's files.
                    if all(issue.key == "data" or issue.key.endswith(".path") for issue in elsewhere):
                        lacking = Runnable(overrides, issues[0].text)
            except NeedsTorchError as error:  # overrides that can be read are as good
                unread = error
        if lacking is not None and stage >= (0 if choice.family in ("data", "trainer") else 1):
            break
    if lacking is not None:
        return lacking
    if unread is not None:
        raise unread
    plain = (f"{choice.family}={choice.name}",)
    return Runnable(plain, str(check(compose([*plain, *more], dirs), builds=builds)[0]))


def _stages(choice: catalog.Choice, dirs: list[str], more: list[str]) -> Iterator[Iterator[tuple[str, ...]]]:
    """Yield overrides that may run the choice, in stages: with experiments that use it, companions, any experiment."""
    own = f"{choice.family}={choice.name}"
    if choice.family == "experiment":
        yield iter([(own,)])
        return
    experiments = [] if choice.family == "preset" else list(catalog.choices("experiment"))
    yield iter([*((f"experiment={name}", own) for name in experiments if _uses(name, choice)), (own,)])
    yield islice(((own, *beside) for beside in companions(choice, dirs, more)), TRIED)
    if choice.family != "data":
        beside_tokens = companions(choice, dirs, [*more, *TOKENS], fixed=("data",))
        yield islice(((own, *TOKENS, *beside) for beside in beside_tokens), TRIED)
    yield iter([(f"experiment={name}", own) for name in experiments])


def _uses(experiment: str, choice: catalog.Choice) -> bool:
    """Return whether the file of an experiment names a choice."""
    text = catalog.choices("experiment")[experiment].path.read_text(encoding="utf-8")
    return bool(re.search(rf"override /{choice.family}: *{choice.name}\s*$", text, re.MULTILINE))


def companions(
    choice: catalog.Choice, dirs: Sequence[str], more: Sequence[str], fixed: Sequence[str] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield choices of other families that make all rules accept this one, fewest first; `fixed` families stay."""
    composed = compose([f"{choice.family}={choice.name}", *more], dirs)
    facts = Facts(picks(composed.config, composed.choices, [*CONTRACTS, *SOURCE_CONTRACTS]))
    stay = {choice.family, *fixed}
    if choice.family == "preset":
        stay |= {*choices_of_file("preset", choice.name)}
    for count in range(COMPANIONS + 1) if fixed else range(1, COMPANIONS + 1):
        yield from _repaired(facts, stay, count)


def _repaired(facts: Facts, fixed: set[str], count: int) -> Iterator[tuple[str, ...]]:
    """Yield sets of exactly `count` choices with which no rule refuses. Only families outside `fixed` are changed."""
    rule = next((rule for rule in RULES if refusal(rule, facts)), None)
    if rule is None:
        if count == 0:
            yield ()
        return
    if count == 0:
        return
    for family in (family for family in rule.pair if family not in fixed and family in facts.picks):
        for name in _ordered(family):
            pick = default_pick(catalog.choices(family)[name])
            if pick is None or name == facts[family].name:
                continue
            swapped = facts.swapped(pick)
            with suppress(NeedsTorchError):  # a companion that can be read is as good
                if refusal(rule, swapped) is not None:
                    continue
                for rest in _repaired(swapped, fixed | {family}, count - 1):
                    yield (str(pick), *rest)


def _ordered(family: str) -> list[str]:
    """Return the choices of a family, the default first, then built-in data."""
    first = [catalog.default_choices().get(family)]
    if family == "data":
        first += BUILT_IN
    names = catalog.choices(family)
    preferred = [name for name in first if name in names]
    return [*dict.fromkeys([*preferred, *names])]
