"""What a choice can be combined with, as `blockyard explain` prints it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from blockyard.config import catalog
from blockyard.config.alternatives import default_pick, picks
from blockyard.config.build import CONTRACTS
from blockyard.config.compose import compose
from blockyard.config.rules import RULES, Facts, Pick, Rule


def combinations(choice: catalog.Choice, folders: tuple[Path, ...], allow: list[str]) -> Iterator[str]:
    """For each family that a rule relates to this one: the choices that fit, and those that do not with the reason."""
    pick = default_pick(choice, allow)
    if pick is None:
        return
    settings = [facts.swapped(pick) for facts in _settings()]
    others = {rule.pair[1 - rule.pair.index(choice.family)]: None for rule in RULES if choice.family in rule.pair}
    yield ""
    for other in others:
        against = {name: default_pick(each, allow) for name, each in catalog.choices(other, folders).items()}
        rules = [rule for rule in RULES if set(rule.pair) == {choice.family, other}]
        reasons = {name: _reasons(rules, settings, each) for name, each in against.items() if each}
        if any(reasons.values()):
            accepted = [name for name, refused in reasons.items() if not refused]
            yield f"  with {other}: {', '.join(accepted) or 'none with its default options'}"
            yield from _refusals(other, reasons)


def _refusals(family: str, reasons: dict[str, list[str]]) -> Iterator[str]:
    """One line a reason, with all the choices that it holds for."""
    names_of: dict[str, list[str]] = {}
    for name, texts in reasons.items():
        if texts:
            names_of.setdefault("; ".join(texts).replace(f"{family}={name}", f"{family}=..."), []).append(name)
    for reason, names in names_of.items():
        text = reason.replace(f"{family}=...", f"{family}={names[0]}") if len(names) == 1 else reason
        yield f"    not {', '.join(names)}: {text}"


def _settings() -> list[Facts]:
    """Two sets of choices for the families that a rule reads besides its pair: images, and text."""
    text = ["data=code", "tokenizer=char", "model=decoder", "head=token", "objective=next_token"]
    return [Facts(picks(compose(overrides), list(CONTRACTS))) for overrides in ([], text)]


def _reasons(rules: list[Rule], settings: list[Facts], against: Pick) -> list[str]:
    """Why rules refuse a choice."""
    return [reason for rule in rules if (reason := _reason(rule, settings, against))]


def _reason(rule: Rule, settings: list[Facts], against: Pick) -> str | None:
    """Why a rule refuses a pair in every setting that it applies to; None where it accepts the pair in one."""
    reasons = []
    for facts in settings:
        try:
            reasons.append(rule.reason(facts.swapped(against)))
        except (KeyError, ValueError):
            continue  # these choices cannot meet in this setting
    return None if None in reasons else next(iter(reasons), None)
