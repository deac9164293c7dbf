"""Reports all problems of a config together, before anything is built or read.

Four passes, each over what the earlier ones found sound: targets (may this be named at all), values (does each fit
its signature), combinations (`rules`), and construction (`trial_build`: every component on the meta device, where a
constructor can object but nothing is allocated).
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from blockyard.atomic_files import stamp
from blockyard.config import layer_kinds, lightning, tree
from blockyard.config.build import CONTRACTS, OPTIONAL, SOURCE_CONTRACTS
from blockyard.config.choices import catalog
from blockyard.config.compose import Composed
from blockyard.config.defaults import complete
from blockyard.config.instantiate import settings
from blockyard.config.nested_choices import unknown_names
from blockyard.config.override_grammar import as_quoted, parse_value, to_text
from blockyard.config.placed_nodes import Placed, placed_nodes
from blockyard.config.rules import RULES, Facts, Pick, Rule
from blockyard.config.schema import REQUIRED, RESERVED, Option, Root, options
from blockyard.config.tree import Node
from blockyard.config.trial_build import build_components, build_model, trained_alike
from blockyard.config.untrusted.local_path import url_problem
from blockyard.config.untrusted.targets import TRUSTED_PACKAGES, allow_of, allowed, locate
from blockyard.contracts import Issue
from blockyard.errors import first_line, fold, near, quoted, shortened

# Choices that rules accept in place of one that they refuse.


def picks(composed: Composed, families: Sequence[str]) -> dict[str, Pick]:
    """The choices of families as rules see them; families without a node are left out.

    So are those with a node inside that cannot be built, which is reported when the whole is built.
    """
    result = {}
    for family in families:
        node = composed.config.get(family)
        if isinstance(node, dict) and "_target_" in node:
            name = composed.choices.get(family) or node["_target_"]
            with suppress(ValueError):
                result[family] = _pick(family, str(name), node, allow_of(composed.config))
    return result


def refusal(rule: Rule, facts: Facts) -> str | None:
    """The reason why a rule refuses, or None; also None where a family that the rule needs is missing or unsound."""
    try:
        return rule.reason(facts)
    except (KeyError, ValueError):
        return None  # reported elsewhere: an unsound node, or an incompatible shape


def alternatives(
    rule: Rule,
    facts: Facts,
    folders: tuple[Path, ...] = (),
    allow: Sequence[str] = (),
    typed: frozenset[str] = frozenset(),
) -> list[str]:
    """Overrides `family=name` that a rule accepts in place of one of the two choices that it refuses.

    Only those that no other rule refuses, where there are any; the rest would need further overrides. First are those
    that experiments use with the other choice, then the nearest; where both families vary, they alternate.

    typed: families whose choice is wanted: the other one varies where it can, and data that was typed never does
    """
    free = [family for family in rule.pair if family not in typed]
    rest = [family for family in rule.pair if family in typed and family != "data"]
    instead_of_free = _accepted(free, rule, facts, folders, allow)
    instead_of_typed = _accepted(rest, rule, facts, folders, allow)
    alone = instead_of_free.alone or instead_of_typed.alone
    return alone or instead_of_free.with_others or instead_of_typed.with_others


class _Accepted(NamedTuple):
    """Overrides that a rule accepts: those that need no further one, and all."""

    alone: list[str]
    with_others: list[str]


def _accepted(
    families: Sequence[str], rule: Rule, facts: Facts, folders: tuple[Path, ...], allow: Sequence[str]
) -> _Accepted:
    others = [rule for rule in RULES if not refusal(rule, facts)]
    by_family: list[list[tuple[str, bool]]] = []
    for family in families:
        accepted = []
        own = catalog.OF_SOURCE.get(family, family)
        wanted = facts[family].name if facts[family].name != catalog.SAME else facts[own].name
        (other,) = set(rule.pair) - {family}
        for choice in _best_first(own, wanted, catalog.choices(family, folders), str(facts[other])):
            pick = default_pick(choice, allow) if choice.name != facts[family].name else None
            if pick is None:
                continue
            swapped = facts.swapped(pick)
            # An experiment may set options of the refused choice, which the other one then has too; those of data
            # sets and tokenizers mean something else in each.
            own_options = {} if family in ("data", "tokenizer") else facts[family].options
            shared = {name: value for name, value in own_options.items() if name in pick.options}
            kept = facts.swapped(replace(pick, options={**pick.options, **shared}))
            try:
                if rule.reason(swapped) is None and rule.reason(kept) is None:
                    accepted.append((str(pick), not any(refusal(other, swapped) for other in others)))
            except (KeyError, ValueError):
                continue
        by_family.append(accepted)
    alone = [[override for override, is_alone in accepted if is_alone] for accepted in by_family]
    with_others = [[override for override, _ in accepted] for accepted in by_family]
    return _Accepted(_alternating(alone), _alternating(with_others))


def default_pick(choice: catalog.Choice, allow: Sequence[str] = ()) -> Pick | None:
    """A choice with the options of its YAML; None where it needs more, or its package is not allowed."""
    if not choice.target or not allowed(choice.target, list(allow)):
        return None
    if choice.target.startswith("blockyard."):  # other classes may be loaded again
        return _own_pick(choice, stamp(choice.path))
    return _read_pick(choice, allow)


@lru_cache(maxsize=1024)
def _own_pick(choice: catalog.Choice, _stamp: tuple[int, ...]) -> Pick | None:
    """A choice of the package, made again only after its YAML has changed."""
    return _read_pick(choice, ())


def _read_pick(choice: catalog.Choice, allow: Sequence[str]) -> Pick | None:
    node = catalog.content(choice.path) or {}
    try:
        complete({choice.family: node, "allow": list(allow)})
        return _pick(choice.family, choice.name, node, list(allow))
    except (KeyError, ValueError):
        return None


def _pick(family: str, name: str, node: Node, allow: list[str]) -> Pick:
    with torch.device("meta"):  # a module among the options
        options = settings(node, allow)
    return Pick(family, name, locate(node["_target_"]), options)


def _best_first(family: str, name: str, choices: dict[str, catalog.Choice], other: str) -> list[catalog.Choice]:
    """The choices that experiments use with `other`, then the default, then those whose names are most like `name`."""
    default = catalog.default_choices().get(family)
    together = Counter(
        chosen
        for experiment in catalog.choices("experiment").values()
        if other in experiment.chosen
        for chosen in experiment.chosen
    )

    def distance(choice: catalog.Choice) -> tuple[int, bool, float]:
        likeness = difflib.SequenceMatcher(None, name, choice.name).ratio()
        return -together[f"{family}={choice.name}"], choice.name != default, -likeness

    return sorted(choices.values(), key=distance)


def _alternating(lists: Sequence[list[str]]) -> list[str]:
    longest = max(map(len, lists), default=0)
    return [names[index] for index in range(longest) for names in lists if index < len(names)]


def check(
    composed: Composed,
    *,
    on_this_machine: bool = True,
    training: bool = True,
    starts: bool = True,
    models: dict[str, list[Issue]] | None = None,
) -> list[Issue]:
    """Every problem of a composed config, those of composing it included.

    on_this_machine: False where the run is for another one, so that a missing GPU is not an issue
    training: False where a trained model is only loaded, so that it need not fit with its gradients
    starts: False where the run has begun, and needs the weights no more that it started from
    models: the issues of models that earlier calls with the same arguments have built, which this one may add to: the
        arms of a sweep often differ only in how they train
    """
    config = composed.config if on_this_machine else _on_any_device(composed.config)
    issues = list(composed.issues)
    if not config:
        return issues
    allow = allow_of(config)
    issues += _root(config, composed.typed_values)
    unsound = set()  # keys of nodes
    for place in placed_nodes(config):
        here = on_this_machine and training
        of_node = [*_target(place, allow)] or [*_values(place, composed.typed_values, on_this_machine=here)]
        issues += of_node
        unsound |= {place.key} if of_node else set()
    for issue in unknown_names(config, composed.folders):
        issues.append(issue)
        unsound.add(issue.key)
    issues += _families(config)
    families = {key.partition(".")[0] for key in unsound}
    sound = [family for family in (*CONTRACTS, *SOURCE_CONTRACTS) if family not in families]
    facts = Facts(picks(replace(composed, config=config), sound))
    kinds = {} if unsound else _kinds(replace(composed, config=config), sound)
    if kinds:
        carried = _carried([facts, *(of_kind for _, of_kind in kinds.values())])
        facts.carried = carried
        for _, of_kind in kinds.values():
            of_kind.carried = carried
    combinations = list(_combinations(composed, facts, allow))
    issues += [issue for _, issue in combinations]
    own = {rule for rule, _ in combinations}
    of_kinds = {name: list(_combinations_of_kind(name, *kind, own, allow)) for name, kind in kinds.items()}
    issues += [issue for issues_of_kind in of_kinds.values() for _, issue in issues_of_kind]
    # The constructor of a component that a rule refused would only repeat the reason.
    refused = {family for rule, _ in combinations for family in rule.pair}
    # What only the layers of a kind have, which no rule refuses there.
    parts = {
        f"{layer_kinds.KINDS}.{name}": facts.only(
            facts.differing - {f for rule, _ in of_kinds[name] for f in rule.pair}
        )
        for name, (_, facts) in kinds.items()
    }
    issues += build_components(config, facts, refused, unsound, parts, reads_data=training)
    if not issues:
        key = None if models is None else trained_alike(config)
        if models is None or key is None or key not in models:
            built = list(build_model(config, on_this_machine=on_this_machine, training=training, starts=starts))
            if models is not None and key is not None:
                models[key] = built
        else:
            built = models[key]
        issues += built
    return list({str(issue): issue for issue in issues}.values())


def reasons(
    composed: Composed, *, on_this_machine: bool = True, models: dict[str, list[Issue]] | None = None
) -> list[str]:
    """Why a config cannot run, one text a problem; empty where it can. models: as in `check`."""
    return [str(issue) for issue in check(composed, on_this_machine=on_this_machine, models=models)]


def _on_any_device(config: Node) -> Node:
    trainer = config.get("trainer")
    if not isinstance(trainer, dict) or trainer.get("accelerator") != "gpu":
        return config
    return config | {"trainer": trainer | {"accelerator": "auto"}}


def _invalid(option: Option, key: str, value: Any, problem: str, typed: Mapping[str, str]) -> Issue:
    """Return the issue of an invalid value; of one that would be valid as text, with the override that makes it so."""
    text = f"invalid value {quoted(value)}: {problem}"
    items = value if isinstance(value, list) else [value]
    if isinstance(value, str) or not all(isinstance(item, bool | int | float | str) for item in items):
        return Issue(key, text)
    as_text = as_quoted(typed.get(key, to_text(value)))
    try:
        works = option.problem(parse_value(as_text)) is None
    except ValueError:  # of a text that quotes end
        works = False
    return Issue(key, text, [f"'{key}={as_text}'"] if works else [])


def _root(config: Node, typed: Mapping[str, str]) -> Iterator[Issue]:
    root_options = options(Root)
    for key, value in config.items():
        if key in root_options:
            problem = root_options[key].problem(value)
            if problem:
                yield _invalid(root_options[key], key, value, problem, typed)
            elif key == "outputs" and (address := url_problem(value)):
                yield Issue(key, address)
        elif key not in catalog.run_keys():
            yield Issue(key, "unknown config key", near(key, [*root_options, *catalog.run_keys()]))


def _families(config: Node) -> Iterator[Issue]:
    for family in CONTRACTS:
        if family in OPTIONAL and family not in config:
            continue
        node = config.get(family)
        if not tree.is_node(node):
            yield Issue(family, f"{quoted(node)} is not a {family}", see=f"`blockyard list {family}`")
    for family in ("logger", "callbacks"):
        if not isinstance(config.get(family) or {}, dict):
            yield Issue(family, f"{quoted(config[family])} is not a {family}", see=f"`blockyard list {family}`")
    for family, of in catalog.OF_SOURCE.items():
        if family in config and not tree.is_node(config[family]):
            yield Issue(family, f"{quoted(config[family])} is not a {of}", see=f"`blockyard list {of}`")


def _target(place: Placed, allow: list[str]) -> Iterator[Issue]:
    key, target = place.key, place.target
    if not allowed(target, allow):
        package = target.split(".")[0]
        text = f"{shortened(target)} is not in an allowed package ({', '.join(TRUSTED_PACKAGES)})"
        yield Issue(f"{key}._target_", text, [f"allow=[{package}] for a package of your own"])
        return
    if target.split(".")[0] not in (*place.packages, *place.own):
        packages = " or ".join((*place.packages, "a package of your own"))
        yield Issue(f"{key}._target_", f"{target} cannot be a {place.kind} here; one of {packages} can")
        return
    try:
        located = locate(target)
    except ValueError as error:
        yield Issue(f"{key}._target_", first_line(error))
        return
    family = key.partition(".")[0]
    if lightning.is_lightning(family, located):
        reason = lightning.refusal(located) if family == "callbacks" else None
        if reason:
            yield Issue(f"{key}._target_", reason)
    elif not issubclass(located, place.required):
        yield Issue(f"{key}._target_", f"{target} is not a {place.kind}")
    elif bool(place.node.get("_partial_")) != place.late:
        text = "must be true for what is built from a Context, and false elsewhere"
        yield Issue(f"{key}._partial_", text, [str(place.late)])


def _values(place: Placed, typed: Mapping[str, str], *, on_this_machine: bool) -> Iterator[Issue]:
    key, declared = place.key, place.options
    for name, value in place.node.items():
        if name in RESERVED:
            continue
        if name not in declared:
            has = f"it has {fold(list(declared))}" if declared else "it has none"
            hints = [f"{key}.{each}" for each in near(name, declared)]
            yield Issue(f"{key}.{name}", f"{place.target} has no option {quoted(name)}; {has}", hints)
            continue
        slot = declared[name].slot
        if (
            slot is not None
            and slot.named
            and not slot.or_plain
            and isinstance(value, dict)
            and not tree.is_node(value)
        ):
            named = [each for each in value if tree.is_node(value[each])]
            for each in (each for each in value if each not in named):
                yield Issue(
                    f"{key}.{name}.{each}", "is not a node, and no choice of that name is used", near(each, named)
                )
            continue
        problem = declared[name].problem(value, on_this_machine=on_this_machine)
        if problem:
            yield _invalid(declared[name], f"{key}.{name}", value, problem, typed)
    for name, option in declared.items():
        if option.default is REQUIRED and place.node.get(name) is None and name not in place.node:
            yield Issue(f"{key}.{name}", f"is required: {option.describe()}", [f"{key}.{name}=..."])


def _kinds(composed: Composed, families: Sequence[str]) -> dict[str, tuple[Composed, Facts]]:
    """Each kind of layers as a config of its own, and the choices of that."""
    kinds = {}
    for name, nodes in layer_kinds.nodes_of_kinds(composed.config).items():
        names = {
            family: layer_kinds.choice_name(node, catalog.choices(family, composed.folders))
            for family, node in nodes.items()
        }
        kind = replace(composed, config=composed.config | nodes, choices={**composed.choices, **names})
        kinds[name] = kind, Facts(picks(kind, families), differing=frozenset(nodes))
    return kinds


def _carried(kinds: Sequence[Facts]) -> frozenset[str]:
    """What layers of any kind give to others. Whether they are in front of those is seen when the model is built."""
    carried: frozenset[str] = frozenset()
    for facts in kinds:
        try:
            carried |= facts.traits.gives
        except (KeyError, ValueError):
            continue  # reported elsewhere
    return carried


def _combinations_of_kind(
    name: str, kind: Composed, facts: Facts, refused: set[Rule], allow: list[str]
) -> Iterator[tuple[Rule, Issue]]:
    """As `_combinations`, in the layers of a kind. refused: rules that refuse the config's own parts."""
    key = f"{layer_kinds.KINDS}.{name}"
    for rule, issue in _combinations(kind, facts, allow):
        if rule not in refused and {*rule.pair} & facts.differing:
            inside = [
                f"{key}.{each}" if each.partition("=")[0] in layer_kinds.FAMILIES else each for each in issue.legal
            ]
            yield rule, Issue(f"{key}: {issue.key}", issue.text, inside)


def _combinations(composed: Composed, facts: Facts, allow: list[str]) -> Iterator[tuple[Rule, Issue]]:
    for rule in RULES:
        reason = refusal(rule, facts)
        if reason:
            first, second = rule.pair
            see = f"`blockyard list {first} {second} --compatible` with the same overrides"
            works = alternatives(rule, facts, composed.folders, allow, composed.typed_families)
            yield rule, Issue(f"{first} with {second}", reason, works, see)
