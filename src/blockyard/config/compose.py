"""From a command line to a config: Hydra composes. Every override is checked first, to report all problems together.

Hydra accepts `model.attention=gqa` (the sub-config becomes a string) and `+typo=1` (a key that no component reads), and
stops at its first error. Here each override is parsed with Hydra's grammar, sorted into choices (`block=pre_norm`)
and values (`model.dim=64`), and compared with the config tree and the signatures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TypeGuard

from pydantic import TypeAdapter, ValidationError

from blockyard.config import layer_kinds, presets, size_matching, user_folders
from blockyard.config.choices import catalog
from blockyard.config.hydra_config import Choices, HydraConfig, Node, compose_groups
from blockyard.config.instantiate import instantiate
from blockyard.config.known_keys import KnownKeys
from blockyard.config.override_grammar import allowed_packages
from blockyard.config.overrides import SortedOverrides, sort_overrides
from blockyard.config.placed_nodes import default_node, fill, fill_defaults, nested_choices
from blockyard.config.schema import RESERVED, options
from blockyard.config.tree import is_node
from blockyard.config.untrusted.targets import allow_of, allowed, locate
from blockyard.contracts import Issue, Text
from blockyard.errors import UserError, near
from blockyard.tokenizer.pretrained import read_tokenizer

# What a config records of a tokenizer's file as it is composed: the hash of its content, and its vocabulary.
#
# A frozen config then has both, and a run is loaded where the file is not.

TARGET = "blockyard.tokenizer.pretrained.Pretrained"
KEYS = ("tokenizer", "source_tokenizer")


def record_files(config: Node, issues: list[Issue]) -> None:
    """Fill in what a file says; a file that is missing, damaged or too large for its model is an issue."""
    for key in KEYS:
        node = config.get(key)
        if not isinstance(node, dict) or node.get("_target_") != TARGET or node.get("sha256") is not None:
            continue
        path = node.get("path")
        if not _is_text(path):
            continue  # the schema says so
        try:
            content, tokenizer = read_tokenizer(path)
        except UserError as error:
            _, _, reason = str(error).partition(path)
            issues.append(Issue(f"{key}.path", f"{path}{reason}"))
            continue
        size = tokenizer.get_vocab_size()
        wanted = node.get("vocab_size")
        if isinstance(wanted, int) and wanted < size:
            text = f"{wanted} is less than the {size} token ids of {path}"
            issues.append(Issue(f"{key}.vocab_size", text, [f"{key}.vocab_size={size}"]))
            continue
        node["sha256"] = hashlib.sha256(content).hexdigest()
        if wanted is None:
            node["vocab_size"] = size


def _is_text(path: object) -> TypeGuard[str]:
    try:
        TypeAdapter(Text).validate_python(path, strict=True)
    except ValidationError:
        return False
    return True


# Options of tokenizers that are `auto` follow from the data. A config has their values, so that a run freezes them.


def resolve_tokenizers(config: Node) -> None:
    """Put the values of options that are `auto` into the config, in place, as far as the tokenizers say them."""
    allow = allow_of(config)
    for key in KEYS:
        node = config.get(key)
        if not is_node(node) or "auto" not in node.values():
            continue
        try:
            data = instantiate(config["data"], allow).spec
            read = data if key == "tokenizer" else data.source
            config[key] = {**node, **instantiate(node, allow).resolved(read)}
        except Exception:  # a class of the user's own may fail in any way; `check` says so
            continue


# Families whose node is left out of a config where it is the default, as it was before there was the family: the
# identity of those runs is the same.

LEFT_OUT = {"residual": "add", "layers": "same", "parametrization": "standard", "init": "default"}


def leave_out_defaults(config: Node, choices: dict[str, str | None]) -> None:
    """Remove the nodes that say nothing, in place."""
    for family, name in LEFT_OUT.items():
        if is_node(config.get(family)) and config[family] == default_node(family, name):
            del config[family]
            choices.pop(family, None)


# The node `init` of a config is filled in where weights are taken.

KEY = "init"


def resolve(config: Node, issues: list[Issue]) -> None:
    """Put the hash of the weights that a run starts from into its config, in place."""
    node = config.get(KEY)
    if not is_node(node):
        return
    target = str(node["_target_"])
    if not allowed(target, allow_of(config)):
        return  # `check` says so, as it does of values that do not fit
    try:
        kind = locate(target)
        allowed_options = options(kind)
        if any(
            name not in allowed_options or allowed_options[name].problem(node[name])
            for name in node
            if name not in RESERVED
        ):
            return
        config[KEY] = kind.resolved(node, str(config.get("outputs") or "outputs"))  # type: ignore[attr-defined]
    except UserError as error:
        issues.append(Issue("init.from", str(error).removeprefix("init.from: ").removeprefix("init.from=")))
    except (ValueError, AttributeError):
        return


# The node `objective` is filled in where a trained model teaches. The module is named, as it stands on a higher floor.

OBJECTIVE, TEACHERS = "objective", "blockyard.weights.teacher"


def resolve_teacher(config: Node, issues: list[Issue]) -> None:
    """Put the hash of the model that teaches into the config, in place."""
    node = config.get(OBJECTIVE)
    if not is_node(node) or node.get("teacher") is None or not allowed(str(node["_target_"]), allow_of(config)):
        return
    declared = options(locate(str(node["_target_"])))
    keys = [key for key in ("teacher", "teacher_sha256") if key in node]
    if any(key not in declared or declared[key].problem(node[key]) for key in keys):
        return  # `check` says so
    try:
        config[OBJECTIVE] = import_module(TEACHERS).resolved(node, str(config.get("outputs") or "outputs"))
    except UserError as error:
        issues.append(Issue("objective.teacher", str(error).removeprefix("objective.teacher=")))


# `callbacks.NAME._target_=...` and `logger._target_=...` on the command line: a class without a YAML of its own.

FAMILIES = ("callbacks", "logger")  # used alongside the model; the choices of other families are the files in conf/
_SUFFIX = "._target_"


def retargeted(values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The nodes of these families that get another class, by dotted key."""
    targets = {key.removesuffix(_SUFFIX): value.strip("'\"") for key, value in values if key.endswith(_SUFFIX)}
    depth = {"callbacks": 2, "logger": 1}
    return {key: target for key, target in targets.items() if key.count(".") + 1 == depth.get(key.partition(".")[0])}


def retarget(tree: Node, values: list[tuple[str, str]], *, keep_typed: bool = False) -> None:
    """Give nodes their new class in place, without the options of the former one.

    keep_typed: the tree has the options of `values` already; those stay
    """
    for key, target in retargeted(values).items():
        family, _, name = key.partition(".")
        parent, own = (tree, family) if not name else (tree.setdefault(family, {}), name)
        node = parent.get(own) or {}
        typed = {part for option, _ in values if (part := option.removeprefix(f"{key}.").partition(".")[0]) != option}
        kept = {option: value for option, value in node.items() if keep_typed and option in typed}
        parent[own] = {**kept, "_target_": target}


# Options that an experiment sets for a choice which an override or a preset replaces.
#
# `experiment=speech_ctc` masks bands of its spectrogram. With `source_tokenizer=waveform` there are none, and these
# options do not apply. What both choices have, such as a learning rate, does.

EXPERIMENT = "experiment"


def remove_options(config: Node, choices: dict[str, str | None], folders: tuple[Path, ...] = ()) -> None:
    """Removes in place the options that only the experiment's choice of a family has.

    choices: the name chosen in each family. An option that neither choice has stays in the config, which is refused.
    """
    experiment = choices.get(EXPERIMENT)
    if not experiment:
        return
    of_experiment = presets.choices(EXPERIMENT, experiment, folders)
    for family, present in choices.items():
        former, node = of_experiment.get(family, catalog.default_choices().get(family)), config.get(family)
        if present == former or family in catalog.SEVERAL or not isinstance(node, dict):
            continue
        of_family = catalog.choices(family, folders)
        if former in of_family and present in of_family:
            for option in {*of_family[former].options} - {*of_family[present].options}:
                node.pop(option, None)


@dataclass
class Composed:
    """A resolved config as plain data, the choice made in each family, and every problem.

    folders: the user's own config folders
    matched: the size that was solved for, if any
    typed_values: the values of the command line by their keys, as they were typed
    typed_families: families whose choice an override names, without those that an experiment or a preset chooses
    """

    config: Node
    choices: Choices
    folders: tuple[Path, ...] = ()
    issues: list[Issue] = field(default_factory=list)
    matched: size_matching.SolvedSize | None = None
    typed_values: dict[str, str] = field(default_factory=dict)
    typed_families: frozenset[str] = frozenset()


def compose(overrides: Sequence[str], config_dirs: Iterable[str] = (), *, multirun: bool = False) -> Composed:
    """Return the config of a command line, or of the first run of a multirun. Problems are collected, never raised.

    Hydra composes the choices once. From that follow, one after the other: the *base*, of choices alone; the
    *expanded* config, with nested choices filled in, which decides what keys there are; the *overridden* config, with
    every known value set; and the *complete* one, with all defaults and the solved size. Each kind of layers is
    composed in the same way, and its nodes are put into the overridden config.
    """
    folders, problems = user_folders.folders(config_dirs, overrides)
    if problems:  # a folder that cannot be trusted is not composed from
        return Composed({}, {}, (), [Issue(where, what) for where, what in problems])
    issues: list[Issue] = []
    ordered = sort_overrides(overrides, folders, issues, multirun)
    ordered.values, of_kinds = layer_kinds.split(ordered.values)
    overridden, choices = _overridden(ordered, folders, issues)
    if not overridden:
        return Composed({}, {}, folders, issues)

    def compose_complete(ordered: SortedOverrides, problems: list[Issue]) -> tuple[Node, Choices]:
        config, choices = _overridden(ordered, folders, problems)
        if config:
            retarget(config, ordered.values, keep_typed=True)
            complete(config, folders)
        return config, choices

    layer_kinds.expand(overridden, of_kinds, ordered, folders, issues, compose_complete)
    return _completed(overridden, choices, ordered, folders, issues)


def _overridden(ordered: SortedOverrides, folders: tuple[Path, ...], issues: list[Issue]) -> tuple[Node, Choices]:
    """Return the config with every known value set, and the choice of each family; ({}, {}) where that fails.

    What is wrong is appended to `issues`.
    """
    groups, replaced = presets.expand(ordered.groups, folders)
    hydra, hydra_issues = compose_groups(groups, replaced, folders)
    if hydra is None:
        issues += hydra_issues
        return {}, {}
    base, base_issues = _with_values(hydra, (), folders)
    if not base:
        issues += [*base_issues, *hydra_issues]
        return {}, {}
    expanded = _expanded(hydra, base, ordered.values, folders)
    values, unknown = _known_values(expanded, hydra.choices, ordered.values, folders)
    issues += unknown
    if values:  # issues of the base that the values do not replace are reported again
        overridden, value_issues = _with_values(hydra, values, folders)
        issues += [*value_issues, *hydra_issues]
    else:
        overridden = expanded
        issues += [*base_issues, *hydra_issues]
    return overridden, hydra.choices if overridden else {}


def _with_values(hydra: HydraConfig, values: Sequence[str], folders: tuple[Path, ...]) -> tuple[Node, list[Issue]]:
    """Return Hydra's config with values set in it, without the options that do not apply to its choices."""
    config, issues = hydra.with_values(values)
    if config:
        remove_options(config, hydra.choices, folders)
    return config, issues


def _expanded(hydra: HydraConfig, base: Node, values: list[tuple[str, str]], folders: tuple[Path, ...]) -> Node:
    """Return the base with its nested choices, those that the values list, and the classes that the values name."""
    listing = {f"{nested.key}.{nested.names}" for nested in nested_choices(base)}
    listed = [f"++{key}={value}" for key, value in values if key in listing]
    config = (_with_values(hydra, listed, folders)[0] or base) if listed else base
    fill(config, folders)
    retarget(config, values)
    return config


def _known_values(
    expanded: Node, choices: Choices, values: list[tuple[str, str]], folders: tuple[Path, ...]
) -> tuple[list[str], list[Issue]]:
    """Return the values whose keys exist, as `++key=value`, and the issues of the others."""
    known_keys = KnownKeys(expanded, choices, allowed_packages(values), folders)
    checked = [(key, value, known_keys.issue(key, value)) for key, value in values]
    assignments = [f"++{key}={value}" for key, value, issue in checked if issue is None]
    return assignments, [issue for _, _, issue in checked if issue is not None]


def of_application(config: Node, choices: Choices) -> Composed:
    """Return what a Hydra application of the user's own composed, completed as a command line's config is; in place.

    config: resolved, as plain data, without the application's own keys; choices: in each family, as far as known
    """
    issues: list[Issue] = []
    kinds = layer_kinds.unexpanded(config)
    if kinds:
        text = f"{', '.join(kinds)}: lists of overrides are composed from blockyard's command line only"
        return Composed(config, choices, (), [Issue(layer_kinds.KINDS, text)])
    remove_options(config, choices)
    return _completed(config, choices, SortedOverrides(), (), issues)


def _completed(
    config: Node, choices: Choices, ordered: SortedOverrides, folders: tuple[Path, ...], issues: list[Issue]
) -> Composed:
    """Return the config with everything that a frozen one holds: defaults, hashes of files, a name, the solved size."""
    _delete(config, ordered.deleted, issues)
    retarget(config, ordered.values, keep_typed=True)
    complete(config, folders)
    record_files(config, issues)
    resolve_tokenizers(config)
    if config.get("name") is None:
        config["name"] = _default_name(choices)
    leave_out_defaults(config, choices)
    resolve(config, issues)
    resolve_teacher(config, issues)
    matched = size_matching.solve(config, {key for key, _ in ordered.values}, issues)
    families = frozenset(key.partition("=")[0].lstrip("+~") for key in ordered.groups)
    return Composed(config, choices, folders, issues, matched, dict(ordered.values), families)


def _delete(config: Node, keys: Sequence[str], issues: list[Issue]) -> None:
    """Remove callbacks, the one family that is a collection."""
    callbacks = config["callbacks"]
    for key in keys:
        if key == "callbacks":
            callbacks.clear()
            continue
        name = key.partition(".")[2]
        if name not in callbacks:
            issues.append(
                Issue(
                    key,
                    "cannot be deleted: unknown callback",
                    [f"~callbacks.{each}" for each in near(name, callbacks)],
                )
            )
        callbacks.pop(name, None)


def complete(config: Node, folders: tuple[Path, ...] = ()) -> None:
    """Write every option into the config, those of nested choices too, so that a frozen config is whole."""
    fill(config, folders)
    fill_defaults(config)


def _default_name(choices: Choices) -> str:
    """The experiment and the preset; without an experiment the model, or the preset, and the data."""
    keys = (
        ("experiment", "preset")
        if choices.get("experiment")
        else ("preset" if choices.get("preset") else "model", "data")
    )
    return "_".join(str(choices[key]) for key in keys if choices.get(key)) or "run"
