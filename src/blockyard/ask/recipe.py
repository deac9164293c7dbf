"""The recipe of the data, written out: its choices and values as overrides, so that each can be read and changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from blockyard.ask.subject import Setting
from blockyard.config.choices import catalog
from blockyard.config.compose import Composed
from blockyard.config.presets import RECIPE

GENERAL = "the general default"
FAMILIES = ("tokenizer", "position", "token_mixer", "model", "head", "objective")
SIZES = (
    *("tokenizer.size", "model.dim", "model.depth", "model.heads", "data.batch_size", "optimizer.lr"),
    "trainer.max_epochs",
)


def recipe_settings(composed: Composed, varied: Collection[str]) -> list[Setting]:
    """Return the settings of the recipe that a config has; for data without one those of the general defaults.

    varied: families that the arms vary, or that the user typed; the recipe's values in them hold for its own choice
        alone, and are left to `recipe=NAME`
    """
    recipe = composed.recipe
    if recipe is None:
        return list(_general_settings(composed, varied))
    settings = [Setting(RECIPE, recipe.name, recipe.reason)]
    for family, choice in recipe.choices.items():
        value = None if choice == catalog.SAME else choice
        settings.append(Setting(family, value, "of the recipe"))
    values = dict(_values(recipe.name, composed.folders))
    fitting = {value.key: value for value in recipe.fitting}
    for key, value in values.items():
        if key.partition(".")[0] not in varied and key not in composed.typed_values and key not in fitting:
            settings.append(Setting(key, value, "of the recipe"))
    settings += [Setting(value.key, value.value, value.reason) for value in recipe.fitting]
    return settings


def _general_settings(composed: Composed, varied: Collection[str]) -> Iterator[Setting]:
    """Yield the main choices and sizes of a config that has no recipe."""
    for family in FAMILIES:
        if family in composed.choices and family not in composed.typed_families:
            yield Setting(family, composed.choices[family], GENERAL)
    for key in SIZES:
        family, _, option = key.partition(".")
        value = composed.config.get(family, {}).get(option)
        if value is not None and family not in varied and key not in composed.typed_values:
            yield Setting(key, value, GENERAL)


def _values(name: str, folders: tuple[Path, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a recipe, after those of the recipes that it builds on."""
    content = dict(catalog.content(catalog.choices(RECIPE, folders)[name].path) or {})
    for entry in content.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            yield from _values(entry, folders)
    yield from _flat(content)


def _flat(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and the values of a mapping of mappings."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
