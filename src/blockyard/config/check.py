"""Reports all problems of a config together, before anything is built or read.

Each of four passes skips the nodes that an earlier one has refused: targets (may this be named at all), values (does
each fit its signature), combinations (`rules`), and construction (`trial_build`: every component on the meta device,
where a constructor can object but nothing is allocated).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blockyard.config import habits, layer_kinds, lightning, tree
from blockyard.config.alternatives import alternatives, picks, refusal
from blockyard.config.build import CONTRACTS, OPTIONAL, SOURCE_CONTRACTS
from blockyard.config.choices import catalog
from blockyard.config.compose import Composed
from blockyard.config.nested_choices import unknown_names
from blockyard.config.override_grammar import as_quoted, parse_value, to_text
from blockyard.config.placed_nodes import Placed, placed_nodes
from blockyard.config.rules import RULES, Facts, Rule
from blockyard.config.schema import REQUIRED, RESERVED, Option, Root, options
from blockyard.config.tree import Node
from blockyard.config.trial_build import BuiltModels, build_components
from blockyard.config.untrusted import placeholders
from blockyard.config.untrusted.local_path import url_problem
from blockyard.config.untrusted.targets import TRUSTED_PACKAGES, allow_of, allowed, locate
from blockyard.contracts import Issue
from blockyard.errors import first_line, fold, near, quoted, shortened


@dataclass
class LayerChoices:
    """The choices of a config's own layers, or of one kind of layers, and the refusals of rules there.

    composed: the config, with the nodes of the kind in place of its own
    key: the dotted key of the kind; empty for the config's own layers
    refused: the issue of each rule that refuses
    """

    composed: Composed
    facts: Facts
    key: str = ""
    refused: dict[Rule, Issue] = field(default_factory=dict)

    @property
    def refused_families(self) -> set[str]:
        """The families in a combination that a rule refuses."""
        families: set[str] = set()
        for rule in self.refused:
            families.update(rule.pair)
        return families

    @property
    def own_parts(self) -> Facts:
        """The choices that only the layers of the kind have and that no rule refuses."""
        return self.facts.only(self.facts.differing - self.refused_families)


def check(
    composed: Composed,
    *,
    on_this_machine: bool = True,
    training: bool = True,
    starts: bool = True,
    builds: bool = True,
    models: BuiltModels | None = None,
) -> list[Issue]:
    """Return every problem of a composed config, including the problems of composing it.

    on_this_machine: False where the run is for another one, so that a missing GPU is not an issue
    training: False where a trained model is only loaded, so that it need not fit with its gradients
    starts: False where the run has begun, and needs the weights no more that it started from
    builds: False where no module is built, and what only a build can show is not reported
    models: models that earlier calls with the same arguments have built and that are not built again
    """
    if not composed.config:
        return list(composed.issues)
    if not on_this_machine:
        composed = replace(composed, config=_on_any_device(composed.config))
    config = composed.config
    issues = [*composed.issues, *_root(config, composed.typed_values)]
    unsound = set()  # keys of nodes
    for place in placed_nodes(config):
        of_node = list(_target(place, allow_of(config)))
        if not of_node:
            of_node = list(_values(place, composed.typed_values, on_this_machine=on_this_machine and training))
        if of_node:
            unsound.add(place.key)
        issues += of_node
    for issue in unknown_names(config, composed.folders):
        issues.append(issue)
        unsound.add(issue.key)
    issues += _families(config)

    unsound_families = {key.partition(".")[0] for key in unsound}
    sound = [family for family in (*CONTRACTS, *SOURCE_CONTRACTS) if family not in unsound_families]
    # Rules also compare the sound families of an unsound config, so that as many problems as possible are reported.
    own = LayerChoices(composed, Facts(picks(config, composed.choices, sound)))
    kinds: list[LayerChoices] = []
    if not unsound:
        kinds = _kinds_of_layers(composed, sound)
    if kinds:
        _give_to_each_other([own.facts, *(kind.facts for kind in kinds)])
    own.refused = _refused(own)
    for kind in kinds:
        kind.refused = _refused(kind, own.refused)
    for layers in (own, *kinds):
        issues += layers.refused.values()

    # The constructor of a component that a rule refused would only repeat the reason.
    parts_of_kinds = {kind.key: kind.own_parts for kind in kinds}
    modules = builds and not placeholders.installed()
    issues += build_components(
        config, own.facts, own.refused_families, unsound, parts_of_kinds, reads_data=training, modules=modules
    )
    if builds and not issues:
        placeholders.require_torch()
        if models is None:
            models = BuiltModels()
        issues += models.issues(config, on_this_machine=on_this_machine, training=training, starts=starts)
    # Two passes may report the same of one value.
    return list({str(issue): issue for issue in issues}.values())


def reasons(
    composed: Composed, *, on_this_machine: bool = True, builds: bool = True, models: BuiltModels | None = None
) -> list[str]:
    """Return why a config cannot run, one text a problem; empty where it can. builds, models: as in `check`."""
    return [str(issue) for issue in check(composed, on_this_machine=on_this_machine, builds=builds, models=models)]


def _on_any_device(config: Node) -> Node:
    """Return the config for a machine that may lack the GPU of the one that the run is for."""
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
        problem_as_text = option.problem(parse_value(as_text))
    except ValueError:  # of a text that quotes end
        return Issue(key, text)
    if problem_as_text is not None:
        return Issue(key, text)
    return Issue(key, text, [f"'{key}={as_text}'"])


def _root(config: Node, typed: Mapping[str, str]) -> Iterator[Issue]:
    """Yield the problems of keys that are no families, and unknown keys."""
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
    """Yield the families that hold something else than a node."""
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
    """Yield the problem of the class of a node."""
    key = place.key
    target = place.target
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
        if family == "callbacks":
            reason = lightning.refusal(located)
            if reason:
                yield Issue(f"{key}._target_", reason)
    elif not issubclass(located, place.required):
        hint = []
        if target.startswith(habits.OF_TORCH.get(key, " ")):
            choice, name = habits.of_torch(key, target)
            hint = [f"{choice} {key}.name={name}"]
        yield Issue(f"{key}._target_", f"{target} is not a {place.kind}", hint)
    elif bool(place.node.get("_partial_")) != place.late:
        text = "must be true for what is built from a Context, and false elsewhere"
        yield Issue(f"{key}._partial_", text, [str(place.late)])


def _values(place: Placed, typed: Mapping[str, str], *, on_this_machine: bool) -> Iterator[Issue]:
    """Yield the problems of the options of a node."""
    key = place.key
    declared = place.options
    for name, value in place.node.items():
        if name in RESERVED:
            continue
        if name not in declared:
            has = "it has none"
            if declared:
                has = f"it has {fold(list(declared))}"
            hints = [f"{key}.{option_name}" for option_name in near(name, declared)]
            yield Issue(f"{key}.{name}", f"{place.target} has no option {quoted(name)}; {has}", hints)
            continue
        slot = declared[name].slot
        takes_nodes_by_name = slot is not None and slot.named and not slot.or_plain
        if takes_nodes_by_name and isinstance(value, dict) and not tree.is_node(value):
            node_names = [member for member in value if tree.is_node(value[member])]
            for member in value:
                if member not in node_names:
                    text = "is not a node, and no choice of that name is used"
                    yield Issue(f"{key}.{name}.{member}", text, near(member, node_names))
            continue
        problem = declared[name].problem(value, on_this_machine=on_this_machine)
        if problem:
            yield _invalid(declared[name], f"{key}.{name}", value, problem, typed)
    for name, option in declared.items():
        if option.default is REQUIRED and place.node.get(name) is None and name not in place.node:
            yield Issue(f"{key}.{name}", f"is required: {option.describe()}", [f"{key}.{name}=..."])


def _kinds_of_layers(composed: Composed, families: Sequence[str]) -> list[LayerChoices]:
    """Return the choices of each kind of layers, as if its layers were all layers of the config."""
    kinds = []
    for name, nodes in layer_kinds.nodes_of_kinds(composed.config).items():
        choices = dict(composed.choices)
        for family, node in nodes.items():
            choices[family] = layer_kinds.choice_name(node, catalog.choices(family, composed.folders))
        kind = replace(composed, config=composed.config | nodes, choices=choices)
        facts = Facts(picks(kind.config, choices, families), differing=frozenset(nodes))
        kinds.append(LayerChoices(kind, facts, f"{layer_kinds.KINDS}.{name}"))
    return kinds


def _give_to_each_other(kinds: Sequence[Facts]) -> None:
    """Let the layers of each kind take values that layers of any kind give.

    The build of the model checks that the givers stand in front of the takers.
    """
    carried: set[str] = set()
    for facts in kinds:
        try:
            carried |= facts.traits.gives
        except (KeyError, ValueError):
            continue  # reported elsewhere
    for facts in kinds:
        facts.carried = frozenset(carried)


def _refused(layers: LayerChoices, by_own_layers: Collection[Rule] = ()) -> dict[Rule, Issue]:
    """Return the issue of each rule that refuses choices of these layers.

    by_own_layers: rules that refuse choices of the config's own layers. A kind does not report them again.
    """
    composed = layers.composed
    refused = {}
    for rule in RULES:
        reason = refusal(rule, layers.facts)
        if not reason:
            continue
        if layers.key and (rule in by_own_layers or not {*rule.pair} & layers.facts.differing):
            continue
        first, second = rule.pair
        works = alternatives(rule, layers.facts, composed.folders, allow_of(composed.config), composed.typed_families)
        if layers.key:
            inside = []
            for override in works:
                if override.partition("=")[0] in layer_kinds.FAMILIES:
                    inside.append(f"{layers.key}.{override}")
                else:  # layers cannot differ in this family
                    inside.append(override)
            refused[rule] = Issue(f"{layers.key}: {first} with {second}", reason, inside)
        else:
            see = f"`blockyard list {first} {second} --compatible` with the same overrides"
            refused[rule] = Issue(f"{first} with {second}", reason, works, see)
    return refused
