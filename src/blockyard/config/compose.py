"""Composes the config of a command line: its overrides are sorted, checked and merged, and the rest is filled in.

Hydra accepts `model.attention=gqa` (the sub-config becomes a string) and `+typo=1` (a key that no component reads), and
stops at its first error. Here each override is parsed with Hydra's grammar, sorted into choices (`block=pre_norm`)
and values (`model.dim=64`), and compared with the config tree and the signatures, so that all problems are reported
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blockyard.config import layer_kinds, model_size, presets, recipes, recorded_facts, size_matching, user_folders
from blockyard.config.defaults import complete, leave_out_defaults
from blockyard.config.merge import Choices, merge
from blockyard.config.overrides import OverrideValue, SortedOverrides, sort_overrides
from blockyard.config.tree import Node
from blockyard.contracts import Issue
from blockyard.errors import near


@dataclass
class Composed:
    """A resolved config as plain data, the choice made in each family, and every problem.

    folders: the user's own config folders
    matched: the size that was solved for, if any
    typed_values: the values of the command line by their keys, as they were typed
    typed_families: families with a choice on the command line, not in an experiment, a preset or a recipe
    recipe: the recipe for the data, if there is one
    sized: the size that model.size has set, if any
    """

    config: Node
    choices: Choices
    folders: tuple[Path, ...] = ()
    issues: list[Issue] = field(default_factory=list)
    matched: size_matching.SolvedSize | None = None
    typed_values: dict[str, str] = field(default_factory=dict)
    typed_families: frozenset[str] = frozenset()
    recipe: recipes.ChosenRecipe | None = None
    sized: model_size.SizedModel | None = None


def compose(overrides: Sequence[str], config_dirs: Iterable[str] = (), *, multirun: bool = False) -> Composed:
    """Return the config of a command line, or of the first run of a multirun. Problems are collected, never raised.

    Overrides are sorted into choices and values. The files of the choices are merged, and the values set in the result.
    Each kind of layers is composed in the same way, and its nodes are put into the config. Last, defaults, hashes, a
    name and a solved size are filled in.
    """
    folders, problems = user_folders.folders(config_dirs, overrides)
    if problems:  # a folder that cannot be trusted is not composed from
        return Composed({}, {}, (), [Issue(where, what) for where, what in problems])
    issues: list[Issue] = []
    typed = sort_overrides(overrides, folders, issues, multirun)
    typed.values, of_kinds = layer_kinds.split(typed.values)
    typed.values, dial = model_size.take(typed.values)
    recipe = recipes.choose(typed, folders)
    ordered = typed if recipe is None else recipes.with_recipe(typed, recipe)
    config, choices = merge(ordered, folders, issues)
    if not config:
        return Composed({}, {}, folders, issues)
    dial_of_files = model_size.take_from_files(config)
    if dial is None:
        dial = dial_of_files

    def compose_kind(ordered: SortedOverrides, problems: list[Issue]) -> Node:
        kind, _ = merge(ordered, folders, problems)
        if kind:
            complete(kind, folders)
        return kind

    layer_kinds.expand(config, of_kinds, ordered, folders, issues, compose_kind)
    composed = _completed(config, choices, typed, folders, issues, dial)
    composed.recipe = recipe
    return composed


def of_application(config: Node, choices: Choices) -> Composed:
    """Complete the config of a Hydra application of the user's own as a command line's config, in place.

    config: resolved, as plain data, without the application's own keys
    choices: in each family, as far as known
    """
    kinds = layer_kinds.unexpanded(config)
    if kinds:
        text = f"{', '.join(kinds)}: lists of overrides are composed from blockyard's command line only"
        return Composed(config, choices, (), [Issue(layer_kinds.KINDS, text)])
    presets.remove_options(config, choices)
    return _completed(config, choices, SortedOverrides(), (), [])


def _completed(
    config: Node,
    choices: Choices,
    typed: SortedOverrides,
    folders: tuple[Path, ...],
    issues: list[Issue],
    dial: OverrideValue | None = None,
) -> Composed:
    """Return the config with everything that a frozen one holds: defaults, hashes of files, a name, the solved size."""
    _delete_callbacks(config, typed.deleted, issues)
    complete(config, folders)  # again: a value may have named another class, which has other defaults
    leave_out_defaults(config, choices)
    recorded_facts.fill(config, issues)
    if config.get("name") is None:
        config["name"] = _default_name(choices)
    typed_values = {value.key: value.text for value in typed.values}
    families = frozenset(group.partition("=")[0] for group in typed.groups)
    sized = model_size.solve(config, choices, dial, typed_values, families, issues)
    matched = size_matching.solve(config, typed_values, issues)
    return Composed(config, choices, folders, issues, matched, typed_values, families, sized=sized)


def _delete_callbacks(config: Node, keys: Sequence[str], issues: list[Issue]) -> None:
    """Remove callbacks, the one family that is a collection. `callbacks` alone stands for all of them."""
    callbacks = config["callbacks"]
    for key in keys:
        if key == "callbacks":
            callbacks.clear()
            continue
        name = key.partition(".")[2]
        if name not in callbacks:
            hints = [f"~callbacks.{other}" for other in near(name, callbacks)]
            issues.append(Issue(key, "cannot be deleted: unknown callback", hints))
        callbacks.pop(name, None)


def _default_name(choices: Choices) -> str:
    """Return the experiment and the preset; without an experiment the model, or the preset, and the data."""
    if choices.get("experiment"):
        keys = ("experiment", "preset")
    elif choices.get("preset"):
        keys = ("preset", "data")
    else:
        keys = ("model", "data")
    return "_".join(str(choices[key]) for key in keys if choices.get(key)) or "run"
