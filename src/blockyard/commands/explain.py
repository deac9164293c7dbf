"""blockyard explain FAMILY=CHOICE ... [match.params=N | match.flops=N] [--config-dir DIR] [allow=[mypackage]]

Describe a choice: what it is, its paper and equation, its cost, its options with types and defaults, what it
declares, what it can and cannot be combined with and why, and a command to copy. With a budget, also the size
(match.by=dim, depth or expansion) that brings it nearest to so many parameters, or FLOPs.

Example:
  blockyard explain token_mixer=attention
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blockyard.commands._args import read
from blockyard.config import catalog
from blockyard.config.overrides import meant_by
from blockyard.errors import UserError, did_you_mean, fold
from blockyard.terminal import console, table

# Data that presets run on.
PRESET_DATA = (
    *("", " data=code", " data=translation", " data=digits_views", " data=co2", " data=atlas"),
    *(" data=canvas_captions", " data=canvas_questions"),
)


def run(arguments: Sequence[str]) -> int:
    """Print the description of each choice."""
    args = read("explain", arguments)
    allow = args.pop_allow()
    budget = [f"match.{key}={value}" for key, value in args.pop_prefix("match.").items()]
    if not args.overrides:
        raise UserError("explain needs family=choice, such as token_mixer=attention; `blockyard list` shows them")
    screen, folders = console(), args.folders()
    for text in args.overrides:
        family, _, name = text.partition("=")
        choice = _find(family, name, folders)
        for line in _lines(choice, folders, allow):
            screen.print(line)
        if budget:
            allowing = [f"allow=[{','.join(allow)}]"] if allow else []
            screen.print(f"\n  matched    {_matched([text, *budget, *allowing], args.config_dirs)}")
    return 0


def _matched(overrides: list[str], config_dirs: Sequence[str]) -> str:
    """The size at which a choice comes nearest to a budget, with the defaults in all other families."""
    from blockyard.config.compose import compose
    from blockyard.config.size_matching import describe_match

    composed = compose(overrides, config_dirs)
    return describe_match(composed.matched) if composed.matched else "; ".join(map(str, composed.issues))


def _find(family: str, name: str, folders: tuple[Path, ...]) -> catalog.Choice:
    groups = catalog.groups()
    if not name and family not in groups and (whole := meant_by(family, folders)):
        if len(whole) > 1:
            raise UserError(f"{family}: the name of several choices; which one? {fold(whole)}")
        family, _, name = whole[0].partition("=")
    if family not in (*groups, *catalog.OF_SOURCE):
        raise UserError(f"{family}: unknown family{did_you_mean(family, groups)} (families: {', '.join(groups)})")
    names = catalog.choices(family, folders)
    if name not in names:
        hint = did_you_mean(name, names)
        shown = f"choices: {fold(list(names))}; see `blockyard list {family}`"
        raise UserError(f"{family}={name}: unknown {family} {name!r}{hint} ({shown})")
    return names[name]


def _lines(choice: catalog.Choice, folders: tuple[Path, ...], allow: list[str]) -> Iterator[Any]:
    from rich.text import Text

    from blockyard.config.targets import allowed

    doc = catalog.docstring(choice.target) if choice.target else ""
    yield Text(f"{choice.family}={choice.name}", style="bold")
    yield f"  {choice.summary}"
    for heading in ("Source", "Reference", "Equation", "Cost"):
        text = catalog.section(doc, heading)
        if text:
            yield f"  {heading.lower():<10} {text}"
    if choice.target and allowed(choice.target, allow):
        from blockyard.commands._combinations import combinations

        yield from _options(choice, allow)
        yield from _declares(choice, allow)
        yield from combinations(choice, folders, allow)
    elif choice.target:  # no code of a package is run before the package is allowed
        yield f"\n  its options and what it declares: add 'allow=[{choice.target.split('.')[0]}]'"
    else:
        yield ""
        yield from (f"  {line}" for line in choice.path.read_text(encoding="utf-8").rstrip().splitlines())
    yield ""
    yield f"  blockyard {'sweep FILE' if choice.family in catalog.OUTSIDE_RUN else 'train'} {_runnable(choice)}"


def _options(choice: catalog.Choice, allow: list[str]) -> Iterator[Any]:
    from blockyard.config.alternatives import default_pick
    from blockyard.config.schema import REQUIRED, options
    from blockyard.config.targets import locate

    signature = options(locate(str(choice.target)))
    pick = default_pick(choice, allow)
    rows = table(None, "option", "type", "default", "what it does")
    for name, option in signature.items():
        default = pick.options.get(name, option.default) if pick else option.default
        default = ", ".join(default) if isinstance(default, dict | tuple) else default  # of nodes by name, the names
        text = "(required)" if default is REQUIRED else "null" if default is None else _default_text(default)
        rows.add_row(f"{choice.family}.{name}", option.describe(), text, option.help)
    yield ""
    yield rows if signature else "  no options"


def _default_text(default: Any) -> str:
    """A default as text; a factory as the name of its class."""
    product = getattr(default, "func", None)
    return str(default) if product is None else str(product.__name__)


def _declares(choice: catalog.Choice, allow: list[str]) -> Iterator[str]:
    """The declarations that the family's contract names (traits, axes, ports, ...), under the choice's own options."""
    from blockyard.config.alternatives import default_pick
    from blockyard.config.build import CONTRACTS
    from blockyard.config.targets import locate
    from blockyard.contracts import TokenMixer

    target, pick = locate(str(choice.target)), default_pick(choice, allow)
    options = pick.options if pick is not None else {}
    contract = CONTRACTS.get(choice.family, object)
    names = inspect.get_annotations(contract) if contract.__module__.startswith("blockyard.contracts") else {}
    declared: list[str] = []
    for name in names:
        value = target.traits_for(options) if name == "traits" else getattr(target, name, None)  # type: ignore[attr-defined]
        declared += _declaration(name, value)
    for method, adjective in (("init_cache", "cacheable"), ("mix", "projected")):
        if issubclass(target, TokenMixer):
            able = target.has(method, options)
        else:
            able = callable(getattr(target, method, None))
        declared += [adjective] if able else []
    if declared:
        yield ""
        yield f"  declares   {'; '.join(declared).replace('_', ' ')}"
    if issubclass(target, TokenMixer) and _function(target.traits_for) is not _function(TokenMixer.traits_for):
        yield "             This, and what follows, holds for the options above; others change what it declares."


def _function(method: Any) -> Any:
    """The function of a class method, to compare an override with what it overrides."""
    return getattr(method, "__func__", method)


def _declaration(name: str, value: Any) -> list[str]:
    """A class attribute as text: `causal`, `not causal`, `ports: queries_and_keys, scores`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [text for key, each in dataclasses.asdict(value).items() for text in _declaration(key, each)]
    if isinstance(value, bool):
        return [name if value else f"not {name}"]
    if isinstance(value, frozenset):
        return [f"{name}: {', '.join(sorted(map(str, value)))}"] if value else []
    return [f"{name}: {value}"] if isinstance(value, str) and value else []


def _runnable(choice: catalog.Choice) -> str:
    """Overrides that run as they are, taken from an experiment that uses the choice where one does."""
    override = f"{choice.family}={choice.name}"
    if choice.family == "experiment":
        return override
    if choice.family == "preset":
        return next((line for data in PRESET_DATA if _is_sound(line := override + data)), override)
    for experiment in catalog.choices("experiment").values():
        if re.search(rf"override /{choice.family}: *{choice.name}\s*$", experiment.path.read_text(), re.MULTILINE):
            return f"experiment={experiment.name} {override}"
    return override


def _is_sound(line: str) -> bool:
    from blockyard.config.check import check
    from blockyard.config.compose import compose

    return not check(compose(line.split()))
