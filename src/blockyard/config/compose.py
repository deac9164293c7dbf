"""From a command line to a config: Hydra composes. Every override is checked first, to report all problems together.

Hydra accepts `model.attention=gqa` (the sub-config becomes a string) and `+typo=1` (a key that no component reads), and
stops at its first error. Here each override is parsed with Hydra's grammar, sorted into choices (`block=pre_norm`)
and values (`model.dim=64`), and compared with the config tree and the signatures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import TypeAdapter, ValidationError

from blockyard.config import catalog, presets, size_matching, user_folders
from blockyard.config.hydra_config import Choices, Config, HydraConfig
from blockyard.config.known_keys import KnownKeys
from blockyard.config.override_grammar import allowed_packages
from blockyard.config.overrides import sort_overrides
from blockyard.config.placed_nodes import default_node, fill, fill_defaults, nested_choices
from blockyard.config.schema import RESERVED, options
from blockyard.config.targets import allow_of, allowed, locate
from blockyard.config.tree import is_node
from blockyard.contracts import Issue, Text
from blockyard.errors import UserError, near
from blockyard.tokenizer.pretrained import read_tokenizer

# What a config records of a tokenizer's file as it is composed: the hash of its content, and its vocabulary.
#
# A frozen config then has both, and a run is loaded where the file is not.

TARGET = "blockyard.tokenizer.pretrained.Pretrained"
KEYS = ("tokenizer", "source_tokenizer")


def record_files(config: dict[str, Any], issues: list[Issue]) -> None:
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


# The node `init` of a config: left out where it says nothing, and filled in where weights are taken.

KEY = "init"


def resolve(config: dict[str, Any], choices: dict[str, str | None], issues: list[Issue]) -> None:
    """Put the hash of the weights that a run starts from into its config, in place.

    A config whose weights are drawn has no such node, as it had before there was one, so its identity is the same.
    """
    node = config.get(KEY)
    if not is_node(node):
        return
    if node == default_node(KEY, "default"):
        del config[KEY]
        choices.pop(KEY, None)
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


# `callbacks.NAME._target_=...` and `logger._target_=...` on the command line: a class without a YAML of its own.

FAMILIES = ("callbacks", "logger")  # used alongside the model; the choices of other families are the files in conf/
_SUFFIX = "._target_"


def retargeted(values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The nodes of these families that get another class, by dotted key."""
    targets = {key.removesuffix(_SUFFIX): value.strip("'\"") for key, value in values if key.endswith(_SUFFIX)}
    depth = {"callbacks": 2, "logger": 1}
    return {key: target for key, target in targets.items() if key.count(".") + 1 == depth.get(key.partition(".")[0])}


def retarget(tree: dict[str, Any], values: list[tuple[str, str]], *, keep_typed: bool = False) -> None:
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


def remove_options(config: dict[str, Any], choices: dict[str, str | None], folders: tuple[Path, ...] = ()) -> None:
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
    matched: the record of the size that was solved for; see `size_matching.solve`
    """

    config: Config
    choices: Choices
    folders: tuple[Path, ...] = ()
    issues: list[Issue] = field(default_factory=list)
    matched: dict[str, Any] = field(default_factory=dict)


def compose(overrides: Sequence[str], config_dirs: Iterable[str] = (), *, multirun: bool = False) -> Composed:
    """The config of a command line, or of the first run of a multirun. Problems are collected, never raised."""
    issues: list[Issue] = []
    folders, problems = user_folders.folders(config_dirs, overrides)
    issues += [Issue(where, what) for where, what in problems]
    if issues:  # a folder that cannot be trusted is not composed from
        return Composed({}, {}, (), issues)
    ordered = sort_overrides(overrides, folders, issues, multirun)
    groups, replaced = presets.expand(ordered.groups, folders)
    hydra = HydraConfig(groups, replaced, folders)
    of_base: list[Issue] = []  # those of values that the overrides do not replace are found again
    base, choices = hydra.compose([], of_base)
    if not base:  # Hydra could not compose at all and has reported the reason
        return Composed({}, {}, folders, [*issues, *of_base])
    remove_options(base, choices, folders)
    # Options that list nested choices come first: they decide which options there are.
    listing = {f"{nested.key}.{nested.names}" for nested in nested_choices(base)}
    early = [f"++{key}={value}" for key, value in ordered.values if key in listing]
    if early:
        base = hydra.compose(early, [])[0] or base
        remove_options(base, choices, folders)
    fill(base, folders)
    retarget(base, ordered.values)
    known_keys = KnownKeys(base, choices, allowed_packages(ordered.values), folders)
    values = []
    for key, value in ordered.values:
        issue = known_keys.issue(key, value)
        issues += [issue] if issue else []
        values += [] if issue else [f"++{key}={value}"]
    issues += [] if values else of_base
    config = hydra.compose(values, issues)[0] if values else base
    if not config:
        return Composed({}, {}, folders, issues)
    remove_options(config, choices, folders)
    _delete(config, ordered.deleted, issues)
    retarget(config, ordered.values, keep_typed=True)
    complete(config, folders)
    record_files(config, issues)
    if config.get("name") is None:
        config["name"] = _default_name(choices)
    resolve(config, choices, issues)
    matched = size_matching.solve(config, {key for key, _ in ordered.values}, issues)
    return Composed(config, choices, folders, issues, matched)


def _delete(config: Config, keys: Sequence[str], issues: list[Issue]) -> None:
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


def complete(config: Config, folders: tuple[Path, ...] = ()) -> None:
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
