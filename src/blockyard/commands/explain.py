"""blockyard explain FAMILY=CHOICE [match.params=N | match.flops=N] [--config-dir DIR] [allow=[mypackage]]

One choice in full: what it is, its paper and equation, its cost law, its options with types and
defaults, what it declares, what it combines with and what not and why, and a line to copy. With a budget
also the size (match.by=dim, depth or expansion) that brings it nearest to so many parameters, or FLOPs.

example: blockyard explain token_mixer=attention
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from blockyard.commands._args import read
from blockyard.config import catalog
from blockyard.errors import UserError
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from blockyard.config.rules import Facts, Pick, Rule


def run(arguments: Sequence[str]) -> int:
    """Print what is known of a choice."""
    words = read(arguments, {})
    allow = [word for word in (words.take("allow") or "").strip("[]").split(",") if word]
    budget = [word for word in words.overrides if word.startswith("match.")]
    words.overrides = [word for word in words.overrides if word not in budget]
    if not words.overrides:
        raise UserError("explain takes family=choice, such as token_mixer=attention; `blockyard list` shows them")
    screen = console()
    for word in words.overrides:
        family, _, name = word.partition("=")
        choice = _find(family, name, words.folders())
        for line in _lines(choice, words.folders(), allow):
            screen.print(line)
        if budget:
            named = [f"allow=[{','.join(allow)}]"] if allow else []
            screen.print(f"\n  matched    {_matched([word, *budget, *named], words.config_dirs)}")
    return 0


def _matched(overrides: list[str], config_dirs: Sequence[str]) -> str:
    """The size that brings a choice, with all else as it is without words, nearest to a budget."""
    from blockyard.config.compose import compose
    from blockyard.config.size_matching import told

    composed = compose(overrides, config_dirs)
    return told(composed.matched) if composed.matched else "; ".join(map(str, composed.issues))


def _find(family: str, name: str, folders: tuple[Any, ...]) -> catalog.Choice:
    from blockyard.errors import near

    if family not in catalog.groups():
        raise UserError(f"{family}: there is no such family (families: {', '.join(catalog.groups())})")
    names = catalog.choices(family, folders)
    if name not in names:
        nearest = near(name, names)
        hint = f"; nearest: {nearest[0]}" if nearest else ""
        raise UserError(f"{family}={name}: there is no such choice{hint} (choices: {', '.join(names)})")
    return names[name]


def _lines(choice: catalog.Choice, folders: tuple[Any, ...], allow: list[str]) -> Iterator[Any]:
    from rich.text import Text

    from blockyard.config.schema import allowed

    doc = catalog.docstring(choice.target) if choice.target else ""
    yield Text(f"{choice.family}={choice.name}", style="bold")
    yield f"  {choice.summary}"
    for heading in ("Source", "Reference", "Equation", "Cost"):
        text = catalog.section(doc, heading)
        if text:
            yield f"  {heading.lower():<10} {text}"
    if choice.target and allowed(choice.target, allow):
        yield from _options(choice, allow)
        yield from _declares(choice, allow)
        yield from _combines(choice, folders, allow)
    elif choice.target:  # nothing of a package is run before it is named
        yield f"\n  its options and what it declares: add 'allow=[{choice.target.split('.')[0]}]'"
    else:
        yield ""
        yield from (f"  {line}" for line in choice.path.read_text(encoding="utf-8").rstrip().splitlines())
    yield ""
    yield f"  blockyard {'sweep FILE' if choice.family in catalog.BESIDE else 'train'} {_copy(choice)}"


def _options(choice: catalog.Choice, allow: list[str]) -> Iterator[Any]:
    from blockyard.config.check import default_pick
    from blockyard.config.schema import REQUIRED, locate, options

    known = options(locate(str(choice.target)))
    pick = default_pick(choice, allow)
    rows = table(None, "option", "type", "default", "what it does")
    for name, option in known.items():
        default = pick.options.get(name, option.default) if pick else option.default
        default = ", ".join(default) if isinstance(default, dict | tuple) else default  # of nodes by name, the names
        shown = "(none: give it)" if default is REQUIRED else "null" if default is None else _shown(default)
        rows.add_row(f"{choice.family}.{name}", option.describe(), shown, option.help)
    yield ""
    yield rows if known else "  no options"


def _shown(value: Any) -> str:
    """A default in words; of a factory the name of what it makes."""
    made = getattr(value, "func", None)
    return str(value) if made is None else str(made.__name__)


def _declares(choice: catalog.Choice, allow: list[str]) -> Iterator[str]:
    """The class's public declarations, whatever the family calls them; those that options change, as they are given."""
    from blockyard.config.build import CONTRACTS
    from blockyard.config.check import default_pick
    from blockyard.config.schema import locate
    from blockyard.contracts import TokenMixer

    target, pick = locate(str(choice.target)), default_pick(choice, allow)
    given = pick.options if pick is not None else {}
    promised = CONTRACTS.get(choice.family, object)
    names = inspect.get_annotations(promised) if promised.__module__ == "blockyard.contracts" else {}
    said = []
    for name in names:
        value = getattr(target, name, None)
        if name == "traits":
            value = target.traits_for(given)
        if dataclasses.is_dataclass(value):
            fields = dataclasses.asdict(value)
            said += [k for k, v in fields.items() if v is True] + [f"not {k}" for k, v in fields.items() if v is False]
            said += [f"{k}: {_set(v)}" for k, v in fields.items() if v and not isinstance(v, bool)]
        elif isinstance(value, bool):
            said.append(name if value else f"not {name}")
        elif isinstance(value, (str, frozenset)) and name != "incidental":
            said.append(f"{name}: {_set(value)}")
    for method, word in (("init_cache", "cacheable"), ("mix", "projected")):
        able = target.has(method, given) if issubclass(target, TokenMixer) else callable(getattr(target, method, None))
        if able:
            said.append(word)
    if said:
        yield ""
        yield f"  declares   {'; '.join(said).replace('_', ' ')}"
    if hasattr(target, "traits_for") and target.traits_for.__func__ is not TokenMixer.traits_for.__func__:
        yield "             that, and what follows, with its options as given above; they change what it declares"


def _combines(choice: catalog.Choice, folders: tuple[Any, ...], allow: list[str]) -> Iterator[str]:
    from blockyard.config.check import default_pick
    from blockyard.config.rules import RULES

    pick = default_pick(choice, allow)
    if pick is None:
        return
    settings = [base.swapped(pick) for base in _settings()]
    others = {rule.pair[1 - rule.pair.index(choice.family)]: None for rule in RULES if choice.family in rule.pair}
    yield ""
    for other in others:
        against = {name: default_pick(each, allow) for name, each in catalog.choices(other, folders).items()}
        rules = [rule for rule in RULES if set(rule.pair) == {choice.family, other}]
        reasons = {name: _reasons(rules, settings, each) for name, each in against.items() if each}
        if any(reasons.values()):
            yield f"  with {other}: {', '.join(name for name in reasons if not reasons[name]) or 'none as given'}"
            yield from _refusals(other, reasons)


def _refusals(family: str, reasons: dict[str, list[str]]) -> Iterator[str]:
    """A line for each reason, with all the choices that it holds for."""
    alike: dict[str, list[str]] = {}
    for name, said in reasons.items():
        if said:
            alike.setdefault("; ".join(said).replace(f"{family}={name}", f"{family}=..."), []).append(name)
    for reason, names in alike.items():
        told = reason.replace(f"{family}=...", f"{family}={names[0]}") if len(names) == 1 else reason
        yield f"    not {', '.join(names)}: {told}"


def _settings() -> list[Facts]:
    """Choices for the families that a rule asks about beside its pair: images, and text."""
    from blockyard.config.check import picks
    from blockyard.config.compose import compose
    from blockyard.config.rules import Facts

    text = ["data=code", "tokenizer=char", "model=decoder", "head=token", "objective=next_token"]
    return [Facts(picks(compose(overrides), set())) for overrides in ([], text)]


def _reasons(rules: list[Rule], settings: list[Facts], against: Pick) -> list[str]:
    """Why a choice is refused, by each rule that does."""
    return [reason for rule in rules if (reason := _reason(rule, settings, against))]


def _reason(rule: Rule, settings: list[Facts], against: Pick) -> str | None:
    """Why a rule refuses a pair in every setting that it can be judged in; None where one accepts it."""
    reasons = []
    for facts in settings:
        try:
            reasons.append(rule.reason(facts.swapped(against)))
        except (KeyError, ValueError):
            continue  # these choices do not meet in this setting
    return None if None in reasons else next(iter(reasons), None)


def _copy(choice: catalog.Choice) -> str:
    """An override line that runs, taken from an experiment that uses the choice where one does."""
    import re

    word = f"{choice.family}={choice.name}"
    if choice.family == "experiment":
        return word
    if choice.family == "preset":
        bases = ("", " data=code", " data=translation", " data=digits_views")
        return next((line for data in bases if _sound(line := word + data)), word)
    for experiment in catalog.choices("experiment").values():
        if re.search(rf"override /{choice.family}: *{choice.name}\s*$", experiment.path.read_text(), re.MULTILINE):
            return f"experiment={experiment.name} {word}"
    return word


def _sound(line: str) -> bool:
    """Whether a command line without more words is a config without problems."""
    from blockyard.config.check import check
    from blockyard.config.compose import compose

    return not check(compose(line.split()))


def _set(value: Any) -> str:
    return ", ".join(sorted(map(str, value))) if isinstance(value, frozenset) else str(value)
