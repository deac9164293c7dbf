"""Presets: named models, each a list of choices and options, over any data.

A preset names every part of a model, its tokenizer, head and objective too, so that `data=code preset=llama`
is a whole command. What the command line names wins over it, and an experiment keeps what belongs to its data
(tokenizer, head, objective), so that `experiment=vit_digits preset=llama` changes the model and not the task.
Where a choice of the preset is replaced so, the options that it gives that choice go with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blockyard.config import catalog

FAMILY = "preset"
TASK = ("tokenizer", "head", "objective")


def expand(groups: Sequence[str], folders: tuple[Path, ...] = ()) -> tuple[list[str], list[str]]:
    """The choices (`family=name`) of a command line with those that an experiment keeps; and the families whose
    choice is not the preset's any more.
    """
    chosen = dict(word.split("=", 1) for word in groups)
    name, experiment = chosen.get(FAMILY), chosen.get("experiment")
    if not _is_named(name):
        return list(groups), []
    said = choices(FAMILY, str(name), folders)
    held = choices("experiment", str(experiment), folders) if _is_named(experiment) else {}
    kept = {family: held[family] for family in TASK if family in held and family not in chosen}
    replaced = [family for family, choice in said.items() if (chosen | kept).get(family, choice) != choice]
    return [*groups, *(f"{family}={choice}" for family, choice in kept.items())], replaced


def choices(group: str, name: str, folders: tuple[Path, ...] = ()) -> dict[str, str]:
    """The families that the defaults list of a YAML overrides, with their choices; a neighbour's come first."""
    import yaml

    found: dict[str, str] = {}
    choice = catalog.choices(group, folders).get(name)
    if choice is None:
        return found
    try:
        entries = (catalog.content(choice.path) or {}).get("defaults") or []
    except (yaml.YAMLError, AttributeError):
        return found  # Hydra says what is wrong with it
    for entry in entries:
        if isinstance(entry, str) and entry not in ("_self_", name):
            found |= choices(group, entry, folders)
        elif isinstance(entry, dict):
            found |= {str(key).removeprefix("override /"): str(value) for key, value in entry.items()}
    return found


def _is_named(name: str | None) -> bool:
    return name not in (None, "", "null", "None")
