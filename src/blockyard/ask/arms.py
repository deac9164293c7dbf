"""The arms of a question: as the user names them, or by the kind of the data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from blockyard.config.choices import catalog
from blockyard.errors import UserError, did_you_mean, fold

FORM = "arms=position=rope,position=learned, or choices of one family, arms=rope,learned"
MOST_ARMS = 20
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
# The claim where no arms are named, by the recipe of the data; the arms are positions.
_CLAIMS = {
    "text_class": "The order of the words helps to tell these texts apart",
    "text_labels": "The order of the words helps to label these texts",
    "text_values": "The order of the words helps to predict these numbers",
    "text_tags": "Tags are better if the model knows the order of the words",
    "text_from_text": "A translation is better if the model knows the order of the words",
    "text_from_image": "A caption is better if the model knows the order of its words",
    "text_from_audio": "Speech is written down better if the model knows when each sound was heard",
    "text": "The next token is predicted better if the model knows how long ago each token was",
    "image_class": "It helps to know where in the image a patch lies",
    "series_class": "It helps to know when in the series something happens",
    "series_future": "A forecast is better if the model knows how long ago each value was",
    "graph_class": "It helps to know which atoms are bound to each other",
    "graph_values": "It helps to know which atoms are bound to each other",
}
_COLUMNS = "Attention between the columns predicts better than each column by itself"


def default_arms(recipe: str, choices: Mapping[str, str | None]) -> tuple[str, dict[str, list[str]]]:
    """Return a claim and arms that suit data: with positions and without, or of columns with attention and without.

    recipe: of the data; choices: of a config with it, by family
    """
    if recipe.startswith("vector"):
        return _COLUMNS, {"none": ["token_mixer=none"], "attention": ["token_mixer=attention"]}
    position = choices.get("position")
    if position in (None, "none"):
        position = "rope"
    claim = _CLAIMS.get(recipe, "It helps to know where in the sequence a token stands")
    return claim, {"none": ["position=none"], str(position): [f"position={position}"]}


def read_arms(text: str) -> dict[str, list[str]]:
    """Return the overrides of each arm by its name. Raises UserError for fewer than two, or a choice of no family.

    text: arms with commas between them; several overrides of an arm have spaces between them
    """
    parts = [part.strip() for part in _outside_brackets(text) if part.strip()]
    if len(parts) < 2:
        raise UserError(f"arms={text}: a comparison has two arms or more, such as {FORM}")
    if len(parts) > MOST_ARMS:
        raise UserError(f"arms: {len(parts)} arms are too many for one question; at most {MOST_ARMS}")
    bare = [part for part in parts if "=" not in part]
    family = _family_of(bare) if bare else ""
    arms: dict[str, list[str]] = {}
    for part in parts:
        overrides = part.split()
        if "=" not in part:
            overrides = [f"{family}={part}"]
        name = _name(overrides)
        if name in arms:
            raise UserError(f"arms={text}: the arm {name} is there twice")
        arms[name] = overrides
    return arms


def _family_of(names: Sequence[str]) -> str:
    """Return the one family that has all the names. Raises UserError where none has, or several have."""
    by_family = {family: catalog.choices(family) for family in catalog.families()}
    for name in names:
        if not any(name in choices for choices in by_family.values()):
            raise UserError(f"arms: no family has the choice {name}{_hint(name, by_family)}; write {FORM}")
    families = [family for family, choices in by_family.items() if all(name in choices for name in names)]
    if not families:
        raise UserError(f"arms: {fold(names)} are choices of different families; write FAMILY=CHOICE for each")
    if len(families) > 1:
        examples = ",".join(f"{families[0]}={name}" for name in names)
        raise UserError(f"arms: {fold(names)} are choices of {fold(families)}; say of which, such as arms={examples}")
    return families[0]


def _outside_brackets(text: str) -> list[str]:
    """Return the parts of a list between the commas outside of brackets."""
    parts = [""]
    depth = 0
    for character in text:
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _hint(name: str, by_family: Mapping[str, Mapping[str, catalog.Choice]]) -> str:
    """Return the choice that has the name as another name, or the nearest name."""
    every: list[str] = []
    for family, choices in by_family.items():
        every += choices
        for choice in choices.values():
            if name in choice.aliases:
                return f"; did you mean {family}={choice.name}?"
    return did_you_mean(name, every)


def _name(overrides: Iterable[str]) -> str:
    """Return the name of an arm: the choice of a family, or the end of a key with its value."""
    parts = []
    for override in overrides:
        key, _, value = override.partition("=")
        family, dot, option = key.lstrip("+~").rpartition(".")
        parts.append(f"{option}_{value}" if dot else value or family)
    return _NOT_IN_NAMES.sub("_", "_".join(parts)).strip("_") or "arm"
