"""Presets: named models, each a list of choices and options, over any data.

A preset names every part of a model, its tokenizer, head and objective included, so that `data=code preset=llama`
is a complete command. Choices of the command line take precedence, and an experiment keeps the parts that belong to its
data (tokenizer, head, objective): `experiment=vit_digits preset=llama` changes the model and not the task.
Where a choice of the preset is replaced in this way, the options that the preset sets for it do not apply. Neither do
options that an experiment sets for a choice of its own, where an override or a preset makes another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from blockyard.config.choices import catalog
from blockyard.config.tree import Node

FAMILY = "preset"
EXPERIMENT = "experiment"
RECIPE = "recipe"
TASK = ("tokenizer", "source_tokenizer", "head", "objective")


def expand(groups: Sequence[str], folders: tuple[Path, ...] = ()) -> tuple[list[str], list[str]]:
    """Return the choices of a command line and of its task, and the families with another choice than the preset's.

    The task is that of the experiment or of the recipe.

    groups: `family=name`
    """
    chosen = dict(group.split("=", 1) for group in groups)
    preset = chosen.get(FAMILY)
    if not _is_named(preset):
        return list(groups), []
    of_preset = choices(FAMILY, str(preset), folders)
    of_task = _of_task(chosen, folders)
    kept = {family: of_task[family] for family in TASK if family in of_task and family not in chosen}
    effective = chosen | kept
    replaced = [family for family, name in of_preset.items() if effective.get(family, name) != name]
    return [*groups, *(f"{family}={name}" for family, name in kept.items())], replaced


def choices(
    group: str, name: str, folders: tuple[Path, ...] = (), seen: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Return the choices that the defaults list of a YAML makes, by family. It may build on another YAML's choices.

    seen: the YAMLs that build on this one
    """
    import yaml

    choice = catalog.choices(group, folders).get(name)
    if choice is None or name in seen:
        return {}
    try:
        entries = (catalog.content(choice.path) or {}).get("defaults")
    except (yaml.YAMLError, AttributeError):
        return {}  # Hydra says what is wrong with it
    result: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, str) and entry != "_self_":
            result |= choices(group, entry, folders, seen | {name})
        elif isinstance(entry, dict):
            for key, value in entry.items():
                # `override /data`, or `override /tokenizer@source_tokenizer`
                family = str(key).removeprefix("override /").rpartition("@")[2]
                result[family] = catalog.SAME if value is None else str(value)
    return result


def remove_options(config: Node, chosen: dict[str, str | None], folders: tuple[Path, ...] = ()) -> None:
    """Remove in place the options that only the experiment's, or recipe's, choice of a family has, for another one.

    `experiment=speech_ctc` masks bands of its spectrogram. With `source_tokenizer=waveform` there are none, and these
    options do not apply. Options of both choices, such as a learning rate, do. An option that neither choice has stays
    in the config, and the check refuses it.

    chosen: the choice of each family
    """
    of_task = _of_task(chosen, folders)
    if not of_task:
        return
    for family, present in chosen.items():
        former = of_task.get(family, catalog.default_choices().get(family))
        node = config.get(family)
        if present == former or family in catalog.SEVERAL or not isinstance(node, dict):
            continue
        of_family = catalog.choices(family, folders)
        if former in of_family and present in of_family:
            for option in {*of_family[former].options} - {*of_family[present].options}:
                node.pop(option, None)


def _of_task(chosen: Mapping[str, str | None], folders: tuple[Path, ...]) -> dict[str, str]:
    """Return the choices of the experiment, or without one those of the recipe."""
    for group in (EXPERIMENT, RECIPE):
        name = chosen.get(group)
        if _is_named(name):
            return choices(group, str(name), folders)
    return {}


def _is_named(name: str | None) -> bool:
    return name not in (None, "", "null", "None")
