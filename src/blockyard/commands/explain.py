"""`blockyard explain`: describe a choice or an option."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from blockyard.commands._signature import command
from blockyard.commands._types import Allow, ConfigDirs, Keys, Value, check_config_dirs, overrides_of
from blockyard.config import tree
from blockyard.config.choices import catalog
from blockyard.errors import UserError, did_you_mean, fold, near
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from blockyard.config.rules import Facts, Pick, Rule
    from blockyard.config.schema import Option


@command()
def explain(
    *names: Annotated[
        str,
        Value(
            "FAMILY=CHOICE|OPTION",
            values=lambda _before, typed: overrides_of(catalog.groups(), typed, options=False),
            everything="overrides",
        ),
    ],
    match: Annotated[Mapping[str, str], Keys("match."), Value("N")] | None = None,
    allow: Allow = (),
    config_dirs: ConfigDirs = (),
) -> None:
    """Describe a choice, or an option.

    Of a choice: what it is, its paper and equation, its cost, its options with types and defaults, what it declares,
    what it can and cannot be combined with and why, and a command to copy. Of an option: which components have it, with
    its type and default in each.

    Options:
        match: a budget, match.params, match.flops, match.active or match.state; also prints the size (match.by=dim,
            depth or expansion) that brings the choice nearest to so many parameters, FLOPs, parameters that a token
            uses, or bytes of cache

    Examples:
        blockyard explain token_mixer=attention
        blockyard explain rope
        blockyard explain qk_norm
        blockyard explain model.dim
    """
    from blockyard.config.overrides import meant_by

    budget = [f"match.{key}={value}" for key, value in (match or {}).items()]
    if not names:
        raise UserError("explain needs family=choice, such as token_mixer=attention; `blockyard list` shows them")
    screen = console()
    folders = check_config_dirs(config_dirs, names)
    packages = list(allow)
    for text in names:
        family, equals, name = text.partition("=")
        is_name = not equals and family not in catalog.groups() and not meant_by(family, folders)
        if is_name and (matches := _option_places(text, folders, packages)):
            if budget:
                raise UserError(f"{budget[0]} has an effect beside a choice, and {text} is an option")
            screen.print(_option_table(matches))
            continue
        choice = _find(family, name, folders)
        for line in _lines(choice, folders, packages):
            screen.print(line)
        if budget:
            overrides = [f"{choice.family}={choice.name}", *budget]
            if packages:
                overrides.append(f"allow=[{','.join(packages)}]")
            screen.print(f"\n  matched    {_matched(overrides, config_dirs)}")


def _matched(overrides: list[str], config_dirs: Sequence[str]) -> str:
    """Return the size at which a choice comes nearest to a budget, with the defaults in all other families."""
    from blockyard.config.compose import compose
    from blockyard.config.size_matching import describe_match

    composed = compose(overrides, config_dirs)
    if not composed.matched:
        raise UserError("; ".join(map(str, composed.issues)))
    return describe_match(composed.matched)


def _find(family: str, name: str, folders: tuple[Path, ...]) -> catalog.Choice:
    """Return the choice of `family=name`, or of a name alone that one family has. Raises UserError."""
    from blockyard.config.overrides import meant_by

    groups = catalog.groups()
    if not name and family not in groups and (whole := meant_by(family, folders)):
        if len(whole) > 1:
            raise UserError(f"{family}: the name of several choices; which one? {fold(whole)}")
        family, _, name = whole[0].partition("=")
    if family not in (*groups, *catalog.OF_SOURCE):
        raise UserError(_unknown(family, name, folders))
    names = catalog.choices(family, folders)
    if name not in names:
        hint = did_you_mean(name, names)
        shown = f"choices: {fold(list(names))}; see `blockyard list {family}`"
        raise UserError(f"{family}={name}: unknown {family} {name!r}{hint} ({shown})")
    return names[name]


def _unknown(name: str, choice: str, folders: tuple[Path, ...]) -> str:
    """Return the message about an unknown family; without a choice, about an unknown family, choice or option."""
    from blockyard.config.known_keys import absent

    groups = catalog.groups()
    if missing := absent(name):
        return f"{name}: {missing}"
    if choice:
        return f"{name}: unknown family{did_you_mean(name, groups)} (families: {', '.join(groups)})"
    meanings = {family: [family] for family in groups}
    for family in groups:
        for own_choice in catalog.choices(family, folders):
            meanings.setdefault(own_choice, []).append(f"{family}={own_choice}")
    for place in _option_places(None, folders, []):
        meanings.setdefault(place.name, []).append(place.key)
    hint = ""
    nearest = near(name, meanings)
    if nearest:
        hint = f"; did you mean {fold(list(dict.fromkeys(meanings[nearest[0]])))}?"
    return f"{name}: unknown family, choice or option{hint} (families: {', '.join(groups)})"


@dataclasses.dataclass(frozen=True)
class OptionPlace:
    """An option of one choice.

    key: the option as an override names it
    option: from the signature
    default: with this choice
    """

    key: str
    choice: str
    option: Option
    default: Any

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.option.name


def _option_places(name: str | None, folders: tuple[Path, ...], allow: list[str]) -> list[OptionPlace]:
    """Return every option of this name, `qk_norm` or `token_mixer.qk_norm`, in all choices; every option for None.

    For a name of another library it returns the options that are called so there: `d_model` finds model.dim.
    """
    from blockyard.config.defaults import whole_node
    from blockyard.config.known_keys import options_for
    from blockyard.config.schema import Root, options
    from blockyard.config.untrusted.targets import allowed, locate

    every = [OptionPlace(key, "", option, option.default) for key, option in options(Root).items()]
    for family in catalog.groups():
        for choice in catalog.choices(family, folders).values():
            if family in ("preset", "experiment", "recipe", "debug"):
                continue
            for prefix, node in tree.nodes(whole_node(choice, allow), family):
                if not allowed(str(node["_target_"]), allow):
                    continue
                for option in options(locate(str(node["_target_"]))).values():
                    default = node.get(option.name, option.default)
                    every.append(OptionPlace(f"{prefix}.{option.name}", choice.name, option, default))
    if name is None:
        return every
    named = [place for place in every if name in (place.key, place.name)]
    return named or [place for place in every if place.key in options_for(name)]


def _option_table(matches: Sequence[OptionPlace]) -> Any:
    """Return a table with a row for each meaning of an option, and all choices that share it."""
    choices: dict[tuple[str, ...], list[str]] = {}
    for place in matches:
        row = (place.key, place.option.describe(), _default_text(place.default), place.option.help)
        choices.setdefault(row, []).append(place.choice)
    rows = table(None, "option", "of", "type", "default", "what it does")
    for (key, kind, default, text), names in choices.items():
        rows.add_row(key, ", ".join(dict.fromkeys(names)), kind, default, text)
    return rows


def _lines(choice: catalog.Choice, folders: tuple[Path, ...], allow: list[str]) -> Iterator[Any]:
    """Yield the description of a choice, as texts and tables to print."""
    from rich.text import Text

    from blockyard.config.untrusted.targets import allowed

    doc = ""
    if choice.target:
        doc = catalog.docstring(choice.target)
    yield Text(f"{choice.family}={choice.name}", style="bold")
    yield f"  {choice.summary}"
    for heading in ("Source", "Reference", "Equation", "Cost"):
        text = catalog.section(doc, heading)
        if text:
            yield f"  {heading.lower():<10} {text}"
    if choice.target and allowed(choice.target, allow):
        yield from _options(choice, allow)
        yield from _declares(choice, allow)
        yield from combinations(choice, folders, allow)
    elif choice.target:  # no code of a package is run before the package is allowed
        yield f"\n  its options and what it declares: add 'allow=[{choice.target.split('.')[0]}]'"
    else:
        yield ""
        for line in choice.path.read_text(encoding="utf-8").rstrip().splitlines():
            yield f"  {line}"
        yield from _options_of_parts(choice, allow)
    yield ""
    yield from _command(choice, folders, allow)


def _command(choice: catalog.Choice, folders: tuple[Path, ...], allow: list[str]) -> Iterator[str]:
    """Yield a command to copy, and the data or packages that it needs."""
    from blockyard.config.runnable import runnable
    from blockyard.config.untrusted.targets import allowed

    if choice.family in catalog.OUTSIDE_RUN:
        yield f"  blockyard sweep FILE {choice.family}={choice.name}"
        return
    if choice.target and not allowed(choice.target, allow):
        return
    command = runnable(choice, folders, allow)
    line = ["blockyard train", *command.overrides, *(f"--config-dir {folder}" for folder in folders)]
    if allow:
        line.append(f"'allow=[{','.join(allow)}]'")
    yield f"  {' '.join(line)}"
    if command.needs:
        yield f"  needs: {command.needs}"


def _options(choice: catalog.Choice, allow: list[str]) -> Iterator[Any]:
    """Yield the table of the options of a choice's class."""
    from blockyard.config.alternatives import default_pick
    from blockyard.config.schema import options
    from blockyard.config.untrusted.targets import locate

    signature = options(locate(str(choice.target)))
    pick = default_pick(choice, allow)
    rows = table(None, "option", "type", "default", "what it does")
    for name, option in signature.items():
        default = option.default
        if pick:
            default = pick.options.get(name, default)
        rows.add_row(f"{choice.family}.{name}", option.describe(), _default_text(default), option.help)
    yield ""
    yield rows if signature else "  no options"


def _options_of_parts(choice: catalog.Choice, allow: list[str]) -> Iterator[Any]:
    """Yield the table of the options of nodes below the top level of a YAML file, such as callbacks."""
    from blockyard.config.schema import options
    from blockyard.config.untrusted.targets import allowed, locate

    rows = table(None, "option", "type", "default", "what it does")
    for prefix, node in tree.nodes(catalog.content(choice.path), choice.family):
        if allowed(node["_target_"], allow):
            for name, option in options(locate(node["_target_"])).items():
                default = _default_text(node.get(name, option.default))
                rows.add_row(f"{prefix}.{name}", option.describe(), default, option.help)
    if rows.row_count:
        yield ""
        yield rows


def _default_text(default: Any) -> str:
    """Return a default as it is typed; of a factory the name of its class, of nodes by name the names."""
    from blockyard.config.schema import REQUIRED

    if default is REQUIRED:
        return "(required)"
    if isinstance(default, dict):
        names = list(default)
        if all(isinstance(value, list) for value in default.values()):
            names = [f"{name}: {_default_text(value)}" for name, value in default.items()]
        return ", ".join(names) or "{}"
    if isinstance(default, tuple | list):
        return f"[{', '.join(map(_default_text, default))}]"
    product = getattr(default, "func", None)
    if product is not None:
        return str(product.__name__)
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default)


def _declares(choice: catalog.Choice, allow: list[str]) -> Iterator[str]:
    """Yield the declarations that the family's contract names (traits, axes, ports), with the choice's own options."""
    from blockyard.config.alternatives import default_pick
    from blockyard.config.build import CONTRACTS
    from blockyard.config.untrusted.targets import locate
    from blockyard.contracts import TokenMixer

    target = locate(str(choice.target))
    pick = default_pick(choice, allow)
    options: Mapping[str, Any] = {}
    if pick is not None:
        options = pick.options
    contract = CONTRACTS.get(choice.family, object)
    names: list[str] = []
    if contract.__module__.startswith("blockyard.contracts"):  # nn.Module, a norm's, declares nothing
        names = list(inspect.get_annotations(contract))
    declared: list[str] = []
    for name in names:
        value = target.traits_for(options) if name == "traits" else getattr(target, name, None)  # type: ignore[attr-defined]
        declared += _declaration(name, value)
    for method, adjective in (("init_cache", "cacheable"), ("mix", "projected")):
        if issubclass(target, TokenMixer):
            able = target.has(method, options)
        else:
            able = callable(getattr(target, method, None))
        if able:
            declared.append(adjective)
    if declared:
        yield ""
        yield f"  declares   {'; '.join(declared)}"
    # A bound class method is a new object each time it is read, so the functions are compared.
    if issubclass(target, TokenMixer) and _function(target.traits_for) is not _function(TokenMixer.traits_for):
        yield "             This, and what follows, holds for the options above; others change what it declares."


def _function(method: Any) -> Any:
    """Return the function of a class method, and anything else as it is."""
    return getattr(method, "__func__", method)


def _declaration(name: str, value: Any) -> list[str]:
    """Return the texts of a class attribute: `causal`, `not causal`, `ports: queries_and_keys, scores`."""
    label = name.replace("_", " ")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        texts = []
        for key, entry in dataclasses.asdict(value).items():
            texts += _declaration(key, entry)
        return texts
    if isinstance(value, bool):
        if value:
            return [label]
        return [f"not {label}"]
    if isinstance(value, frozenset) and value:
        return [f"{label}: {', '.join(sorted(map(str, value)))}"]
    if isinstance(value, str) and value:
        return [f"{label}: {value}"]
    return []


def combinations(choice: catalog.Choice, folders: tuple[Path, ...], allow: list[str]) -> Iterator[str]:
    """Yield for each family that a rule relates to this one the choices that fit, and the reasons of the others."""
    from blockyard.config.alternatives import default_pick
    from blockyard.config.rules import RULES
    from blockyard.config.untrusted.placeholders import NeedsTorchError

    pick = default_pick(choice, allow)
    if pick is None:
        return
    settings = [facts.swapped(pick) for facts in _settings()]
    for facts in settings:
        with suppress(KeyError, ValueError):
            _ = facts.tokens  # where a choice's own tokens cannot be read, neither can what it combines with
    rules: dict[str, list[Rule]] = {}  # by the other family
    for rule in RULES:
        if choice.family in rule.pair:
            other = rule.pair[1 - rule.pair.index(choice.family)]
            rules.setdefault(other, []).append(rule)
    yield ""
    for other in rules:
        reasons: dict[str, list[str]] = {}
        not_compared: list[str] = []
        for name, alternative in catalog.choices(other, folders).items():
            against = default_pick(alternative, allow)
            if against is None:
                continue
            try:
                refusals = [_reason(rule, settings, against) for rule in rules[other]]
            except NeedsTorchError:
                not_compared.append(name)
                continue
            reasons[name] = [reason for reason in refusals if reason]
        if any(reasons.values()):
            accepted = [name for name, refused in reasons.items() if not refused]
            yield f"  with {other}: {', '.join(accepted) or 'none with its default options'}"
            yield from _refusals(other, reasons)
            if not_compared:
                yield f"    not compared: {', '.join(not_compared)}, whose tokens only a built network shows"


def _refusals(family: str, reasons: dict[str, list[str]]) -> Iterator[str]:
    """Yield a line for each reason, with all the choices that it holds for."""
    names_of: dict[str, list[str]] = {}
    for name, texts in reasons.items():
        if texts:
            # A reason names the choice that it refuses; without the name, equal reasons share a line.
            reason = "; ".join(texts).replace(f"{family}={name}", f"{family}=...")
            names_of.setdefault(reason, []).append(name)
    for reason, names in names_of.items():
        if len(names) == 1:
            reason = reason.replace(f"{family}=...", f"{family}={names[0]}")
        yield f"    not {', '.join(names)}: {reason}"


def _settings() -> list[Facts]:
    """Return two sets of choices for the families that a rule reads besides its pair: for images, and for text."""
    from blockyard.config.alternatives import picks
    from blockyard.config.build import CONTRACTS
    from blockyard.config.compose import compose
    from blockyard.config.rules import Facts

    text = ["data=code", "tokenizer=char", "model=decoder", "head=token", "objective=next_token"]
    settings = []
    for overrides in ([], text):
        composed = compose(overrides)
        settings.append(Facts(picks(composed.config, composed.choices, list(CONTRACTS))))
    return settings


def _reason(rule: Rule, settings: list[Facts], against: Pick) -> str | None:
    """Return why a rule refuses a pair in every setting that it applies to; None where it accepts the pair in one."""
    reasons = []
    for facts in settings:
        try:
            reasons.append(rule.reason(facts.swapped(against)))
        except (KeyError, ValueError):
            continue  # these choices cannot meet in this setting
    if None in reasons:
        return None
    return next(iter(reasons), None)
