"""Chooses the recipe for data that was named alone: the choices and options that nobody typed.

A recipe is a YAML in `conf/recipe`, and reads like an experiment without data. Its name says what it is for: the
modality of the data, their target, and what a source beside them is.

    text                 running text            series_class        series with a class each
    text_class           texts with a class      series_future       a series to continue
    text_from_image      captions of images      vector_values       columns of numbers with real values

    blockyard train data=table data.path=FILE.csv                       recipe=text_class, or vector_class, ...
    blockyard train data=table data.path=FILE.csv tokenizer=bpe recipe=text_class

Nothing is chosen for a config that works without a recipe, so that its meaning never changes: typed choices and values
stay, and with an experiment there is no recipe. `recipe=NAME` takes one in any case, and `recipe=null` none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from blockyard.config import presets
from blockyard.config.alternatives import picks, refusal
from blockyard.config.build import CONTRACTS, SOURCE_CONTRACTS
from blockyard.config.choices import catalog
from blockyard.config.merge import merge
from blockyard.config.override_grammar import to_override
from blockyard.config.overrides import OverrideValue, SortedOverrides
from blockyard.config.placed_nodes import are_sound, placed_nodes
from blockyard.config.presets import RECIPE
from blockyard.config.rules import RULES, Facts
from blockyard.config.tree import Node
from blockyard.config.untrusted.targets import allow_of, allowed
from blockyard.contracts import DataModule, DataSpec, FittingValue, TextTokenizer, Tokenizer

_TARGETS = {
    "class": "a class",
    "labels": "several labels",
    "values": "real values",
    "tags": "a tag for each word",
    "pixels": "a class for each pixel",
    "symbols": "a token id for each token",
    "future": "the steps that follow",
}


@dataclass(frozen=True)
class ChosenRecipe:
    """A recipe and the reason for it.

    automatic: it was chosen here, and not typed
    choices: the choice of each family that the recipe makes
    fitting: values of options that fit the files
    """

    name: str
    reason: str
    automatic: bool = True
    choices: dict[str, str] = field(default_factory=dict)
    fitting: tuple[FittingValue, ...] = ()

    def described(self) -> list[str]:
        """Return lines: the recipe with its reason, its choices, and each value that fits the files."""
        lines = [f"{self.name}: {self.reason}"]
        if self.choices:
            lines.append(", ".join(f"{family}={name}" for family, name in self.choices.items()))
        for value in self.fitting:
            lines.append(f"{to_override(value.key, value.value)}: {value.reason}")
        return lines


def choose(ordered: SortedOverrides, folders: tuple[Path, ...]) -> ChosenRecipe | None:
    """Return the recipe for the data of a command line, typed or chosen; None where there is none."""
    typed = dict(group.split("=", 1) for group in ordered.groups)
    name = typed.get(RECIPE)
    if presets.EXPERIMENT in typed:
        return None
    if name is None and (ordered.without_recipe or "data" not in typed):
        return None
    try:
        data = _data(ordered, folders)
        if data is None:
            return None
        contents = _not_typed(data.fitting_contents(), ordered)
        if contents:
            ordered = _with_values(ordered, contents)
            data = _data(ordered, folders)
            assert data is not None
        spec = data.spec
    except Exception:  # a file that cannot be used, of which `check` says so; a class of the user's own
        return None
    automatic = name is None
    if name is None:
        name = name_for(spec)
        if name not in catalog.choices(RECIPE) or not _needed(name, typed, ordered, folders):
            return None
    chosen = presets.choices(RECIPE, name, folders)
    if typed.get(presets.FAMILY):
        chosen = {family: choice for family, choice in chosen.items() if family in presets.TASK}
    chosen = {family: choice for family, choice in chosen.items() if family not in typed}
    recipe = ChosenRecipe(name, f"data={typed.get('data')} {_contents(spec)}", automatic, chosen)
    return replace(recipe, fitting=(*contents, *_fitting(recipe, data, ordered, folders)))


def with_recipe(ordered: SortedOverrides, recipe: ChosenRecipe) -> SortedOverrides:
    """Return the overrides with the recipe, and with the values that fit the files in front of the typed ones."""
    groups = ordered.groups
    if recipe.automatic:
        groups = [*groups, f"{RECIPE}={recipe.name}"]
    return _with_values(replace(ordered, groups=groups), recipe.fitting)


def _with_values(ordered: SortedOverrides, fitting: Iterable[FittingValue]) -> SortedOverrides:
    """Return the overrides with values in front of the typed ones, which take precedence."""
    values = [OverrideValue(value.key, str(value.value), value.value) for value in fitting]
    return replace(ordered, values=[*values, *ordered.values])


def _not_typed(proposed: Iterable[FittingValue], ordered: SortedOverrides) -> tuple[FittingValue, ...]:
    """Return the values of options that nobody typed."""
    typed_keys = {value.key for value in ordered.values}
    return tuple(value for value in proposed if value.key not in typed_keys)


def name_for(spec: DataSpec) -> str:
    """Return the name of the recipe for data, whether there is one or not."""
    parts = [spec.modality]
    target = _target(spec)
    if target is not None:
        parts.append(target)
    elif spec.joined:
        parts.append("joined")
    elif spec.modality == "text" and spec.vocabulary is not None:
        parts.append("ids")
    if spec.source is not None:
        parts += ["from", spec.source.modality]
    return "_".join(parts)


def _target(spec: DataSpec) -> str | None:
    """Return the target; of series with steps and channels to predict, `future`."""
    if spec.modality == "series" and spec.values is not None and len(spec.values) > 1:
        return "future"
    return spec.target


def _contents(spec: DataSpec) -> str:
    """Return the contents of data and their target in words."""
    reads = spec.things
    if spec.source is not None:
        reads = f"{spec.source.things} and {reads}"
    target = _target(spec)
    if target is None:
        return f"reads {reads}"
    return f"reads {reads}, and the target is {_TARGETS.get(target, target)}"


def _data(ordered: SortedOverrides, folders: tuple[Path, ...]) -> DataModule | None:
    """Return the data of a command line; None where a rule of its options refuses them."""
    groups = [group for group in ordered.groups if group.startswith("data=")]
    values = [value for value in ordered.values if value.key == "allow" or value.key.startswith("data.")]
    facts = _facts(*merge(SortedOverrides(groups, values), folders, []), ["data"])
    if "data" not in facts.picks or not issubclass(facts["data"].target, DataModule):
        return None
    data: DataModule = facts["data"].target(**facts["data"].options)
    return data


def _facts(config: Node, choices: dict[str, str | None], families: list[str]) -> Facts:
    """Return the choices of a merged config as rules see them; none where a node is not allowed or not valid."""
    allow = allow_of(config)
    if not all(allowed(place.target, allow) for place in placed_nodes(config)) or not are_sound(config):
        return Facts({})
    return Facts(picks(config, choices, families))


def _needed(name: str, typed: dict[str, str], ordered: SortedOverrides, folders: tuple[Path, ...]) -> bool:
    """Return whether the config does not work without a recipe, and the recipe leaves a family to choose.

    Where the tokenizer was typed, the recipe must also make the config work.
    """
    of_recipe = presets.choices(RECIPE, name, folders)
    of_preset = presets.choices(presets.FAMILY, typed.get(presets.FAMILY, ""), folders)
    if of_recipe.keys() <= typed.keys():
        return False
    if "tokenizer" in of_recipe and "tokenizer" not in typed | of_preset:
        return True  # the general tokenizer reads images alone
    with_it = replace(ordered, groups=[*ordered.groups, f"{RECIPE}={name}"])
    return _is_refused(ordered, folders) and not _is_refused(with_it, folders)


def _is_refused(ordered: SortedOverrides, folders: tuple[Path, ...]) -> bool:
    """Return whether a rule refuses the choices. Of options that are no options of theirs, `check` says so."""
    facts = _facts(*merge(ordered, folders, []), [*CONTRACTS, *SOURCE_CONTRACTS])
    with suppress(Exception):
        return any(refusal(rule, facts) for rule in RULES)
    return False


def _fitting(
    recipe: ChosenRecipe, data: DataModule, ordered: SortedOverrides, folders: tuple[Path, ...]
) -> tuple[FittingValue, ...]:
    """Return the values of options that fit the files and the callbacks, and that nobody typed."""
    config, choices = merge(with_recipe(ordered, recipe), folders, [])
    facts = _facts(config, choices, ["tokenizer", "source_tokenizer"])
    lengths: dict[str, Callable[[str], int]] = {}
    typed_keys = {value.key for value in ordered.values}
    proposed = _for_early_stopping(config)
    for key in ("tokenizer", "source_tokenizer"):
        if key not in facts.picks or not issubclass(facts[key].target, Tokenizer):
            continue
        tokenizer: Tokenizer = facts[key].target(**facts[key].options)
        read = data.spec if key == "tokenizer" else data.spec.source
        if isinstance(tokenizer, TextTokenizer):
            lengths[key] = tokenizer.expected_length
        of_tokenizer = tokenizer.fitting(read) if read is not None else []
        of_tokenizer = [replace(value, key=f"{key}.{value.key}") for value in of_tokenizer]
        if not typed_keys & {value.key for value in of_tokenizer}:  # they depend on each other
            proposed += of_tokenizer
    length = lengths.get("tokenizer", len)
    with suppress(ValueError):  # of a file that cannot be used, of which `check` says so
        proposed += data.fitting(length, lengths.get("source_tokenizer", length))
    return _not_typed(proposed, ordered)


def _for_early_stopping(config: Node) -> list[FittingValue]:
    """Return an evaluation each epoch for early stopping, where the recipe evaluates after the last step alone."""
    trainer = config.get("trainer", {})
    every, steps = trainer.get("eval_every"), trainer.get("max_steps")
    if "early_stopping" not in config.get("callbacks", {}) or every is None:
        return []
    if steps is not None and every < steps:
        return []
    return [FittingValue("trainer.eval_every", None, "callbacks.early_stopping compares evaluations, one each epoch")]
