"""`blockyard soup`: the average of the weights of several runs, or of several checkpoints of one.

Source: Wortsman et al. 2022, Model soups: averaging weights of multiple fine-tuned models improves accuracy without
    increasing inference time (arXiv 2203.05482), section 2, the uniform soup and the greedy soup (recipe 1)
Equation: w = mean_i w_i over the ingredients, summed in float64; greedy: from the best by validation to the worst, an
    ingredient is kept if the validation metric of the average with it is not worse than without it

Averages are of use where the ingredients lie in one valley of the loss, as runs do that start from the same weights,
and checkpoints of one run. Runs from other seeds do not, and their average predicts next to nothing: the metrics show
it. Additions of LoRA are put into the weights of each ingredient first.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from blockyard.atomic_files import new_folder, write_json, write_yaml
from blockyard.config.tree import Node
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError, fold, shortened
from blockyard.evaluate.api import PassSettings, as_recorded
from blockyard.evaluate.loop import evaluate
from blockyard.runs.folder import CONFIG, RUN, RunFolder
from blockyard.runs.identity import identity, semantic
from blockyard.runs.load import Loaded, load
from blockyard.runs.provenance import provenance
from blockyard.runs.redact import redact
from blockyard.runs.weights_file import WEIGHTS, write_weights
from blockyard.weights.convert.converter import MODEL_FAMILIES
from blockyard.weights.convert.exporting import write_tokenizers
from blockyard.weights.lora import merge
from blockyard.weights.transfer import content_hash

if TYPE_CHECKING:
    from blockyard.contracts import Model, Split

Recipe = Literal["uniform", "greedy"]
# Families that decide what weights compute, and what the tokens are; rates of dropout do not.
_FAMILIES = (*MODEL_FAMILIES, "tokenizer", "source_tokenizer", "source_position")
_IN_TRAINING = frozenset({"dropout", "drop_path"})


@dataclass(frozen=True)
class Ingredient:
    """A checkpoint of a run: its weights by name, without additions, and their hash."""

    loaded: Loaded
    weights: Mapping[str, Tensor]
    sha256: str

    @property
    def name(self) -> str:
        """The run and the file of its weights."""
        return f"{self.loaded.folder.name} {self.loaded.weights}"


@dataclass(frozen=True)
class Tasted:
    """The validation metric of an ingredient or of the soup.

    test: the metric on the test split, None unless it was asked for; used: whether it is in the soup
    """

    name: str
    value: float
    test: float | None = None
    used: bool = True


@dataclass(frozen=True)
class Soup:
    """A soup that was written. metric: by which checkpoints are selected, and whether "min" or "max" is better"""

    folder: Path
    metric: tuple[str, str]
    ingredients: tuple[Tasted, ...]
    result: Tasted


def average(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of tensors by name, summed in float64, in their own type. Others than floats must be equal."""
    means = {}
    for name, first in states[0].items():
        if not first.is_floating_point():
            means[name] = first
            continue
        total = torch.zeros(first.shape, dtype=torch.float64)
        for state in states:
            total += state[name].double()
        means[name] = (total / len(states)).to(first.dtype)
    return means


def cook(
    runs: Sequence[str],
    out: str | Path,
    *,
    recipe: Recipe = "uniform",
    which: Sequence[str] = ("best",),
    outputs: str = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    test: bool = False,
) -> Soup:
    """Average the weights of every checkpoint in `which` of every run, and write them as a run, whole or not at all.

    test: whether the test split is evaluated too, of every ingredient and of the soup

    Raises UserError for runs that are not of one architecture, tokenizer and data, for statistics that cannot be
    averaged, for fewer than two ingredients, for a greedy soup of models that all predict NaN, and for a folder that is
    not empty.
    """
    folder = local_path(str(out), "out").absolute()
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"out={out}: it exists; choose another folder")
    ingredients = [_ingredient(run, checkpoint, outputs, allow) for run in runs for checkpoint in which]
    _check(ingredients)
    first = ingredients[0]
    best = first.loaded.objective.best()

    def taste(part: str, states: Sequence[Mapping[str, Tensor]]) -> list[float]:
        """Return the metric of each state on a split, whose data are read once."""

        def measured(model: Model, split: Split, settings: PassSettings) -> list[float]:
            values = []
            for state in states:
                model.load_state_dict(state)
                values.append(evaluate(model, split, first.loaded.objective, **settings)[best[0]])
            return values

        return as_recorded(first.loaded, part, measured)

    def greedy(model: Model, split: Split, settings: PassSettings) -> list[int]:
        return _greedy(order, lambda chosen: value_of(model, split, settings, chosen), best[1])

    def value_of(model: Model, split: Split, settings: PassSettings, chosen: Sequence[int]) -> float:
        model.load_state_dict(average([ingredients[number].weights for number in chosen]))
        return evaluate(model, split, first.loaded.objective, **settings)[best[0]]

    states = [ingredient.weights for ingredient in ingredients]
    values = taste("validation", states)
    order = best_first(values, best[1])
    chosen = list(range(len(ingredients)))
    if recipe == "greedy":
        chosen = as_recorded(first.loaded, "validation", greedy)
    weights = average([states[number] for number in chosen])
    (value,) = taste("validation", [weights])
    tests: Sequence[float | None] = [None] * (len(states) + 1)
    if test:
        tests = taste("test", [*states, weights])
    tasted = []
    for number, ingredient in enumerate(ingredients):
        tasted.append(Tasted(ingredient.name, values[number], tests[number], number in chosen))
    soup = Soup(folder, best, tuple(tasted), Tasted("soup", value, tests[-1]))
    _write(soup, first.loaded, weights, [ingredients[number] for number in chosen], recipe)
    return soup


def best_first(values: Sequence[float], mode: str) -> list[int]:
    """Return the numbers of ingredients by their metric, from the best to the worst; NaN is the worst."""
    sign = -1 if mode == "max" else 1
    return sorted(range(len(values)), key=lambda number: (math.isnan(values[number]), sign * values[number]))


def _greedy(order: Sequence[int], value_of: Any, mode: str) -> list[int]:
    """Return the ingredients that the greedy recipe keeps. order: from the best to the worst"""
    chosen, best = [order[0]], value_of([order[0]])
    if math.isnan(best):
        raise UserError("no ingredient has a validation metric: all are NaN, so the greedy recipe cannot choose")
    for number in order[1:]:
        value = value_of([*chosen, number])
        if value >= best if mode == "max" else value <= best:
            chosen, best = [*chosen, number], value
    return chosen


def _ingredient(run: str, which: str, outputs: str, allow: tuple[str, ...] | list[str]) -> Ingredient:
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    loaded.folder.check_members()
    merge(loaded.model)
    weights = {name: tensor.detach().clone() for name, tensor in loaded.model.state_dict().items()}
    return Ingredient(loaded, weights, content_hash(weights))


def _check(ingredients: Sequence[Ingredient]) -> None:
    """Raise UserError where the ingredients have no average."""
    if len(ingredients) < 2:
        raise UserError(
            "soup averages at least two checkpoints; name several runs, or several checkpoints of one with "
            "which=[best,last]"
        )
    first = ingredients[0]
    names: dict[str, str] = {}
    for other in ingredients:
        if other.sha256 in names:
            raise UserError(
                f"{other.name} has the weights of {names[other.sha256]}, which would count twice; leave one of them out"
            )
        names[other.sha256] = other.name
        different = list(_differences(first.loaded, other.loaded))
        if different:
            raise UserError(
                f"{first.name} and {other.name} differ in {fold(different)}; a soup is of runs of one architecture, "
                "tokenizer and data"
            )
    trained = {name for name, _ in first.loaded.model.named_parameters()}
    for name, tensor in first.weights.items():
        if name in trained and tensor.is_floating_point():
            continue
        if any(not torch.equal(tensor, other.weights[name]) for other in ingredients):
            raise UserError(
                f"{name} is not a weight but a statistic of what each run saw, such as those of norm=batch; the "
                "average of statistics is not that of the averaged weights, so such models have no soup"
            )


def _differences(one: Loaded, other: Loaded) -> Iterator[str]:
    """Yield each difference between two runs by which their weights mean something else, with both values."""
    left = dict(_flat(_computed(one.config)))
    right = dict(_flat(_computed(other.config)))
    for key in sorted({*left, *right}):
        if left.get(key) == right.get(key):
            continue
        values = []
        for options in (left, right):
            values.append(shortened(str(options[key])) if key in options else "the default")
        yield f"{key} ({' and '.join(values)})"
    for key in ("tokenizer", "source_tokenizer"):
        if getattr(one.components, key).state() != getattr(other.components, key).state():
            yield "what the tokenizer has learned"
            break
    if _data(one) != _data(other):
        yield "the data, or their split"


def _computed(config: Node) -> Node:
    """Return the part of a config that decides what weights compute, and what they predict."""
    kept = {key: config[key] for key in _FAMILIES if config.get(key)}
    objective = {"_target_": config["objective"]["_target_"]}
    return semantic({**kept, "objective": objective, "allow": config.get("allow")})


def _flat(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a config by dotted key, without those that count in training alone."""
    if not isinstance(node, dict):
        yield key, node
        return
    for name, value in node.items():
        if name not in _IN_TRAINING:
            yield from _flat(value, f"{key}.{name}" if key else str(name))


def _data(loaded: Loaded) -> Any:
    """Return the hash of a run's data, split by split; for an imported run, which has read nothing, its options."""
    recorded = loaded.folder.facts().get("data")
    fingerprint = recorded.get("fingerprint") if isinstance(recorded, dict) else None
    return fingerprint or semantic({"data": loaded.config["data"], "allow": loaded.config.get("allow")})


def _write(
    soup: Soup, loaded: Loaded, weights: Mapping[str, Tensor], chosen: Sequence[Ingredient], recipe: Recipe
) -> None:
    """Write the folder of a run without a training, with the config of the first ingredient."""
    # The average has neither the initial weights nor the teacher of an ingredient.
    config = {key: node for key, node in loaded.config.items() if key != "init"} | {"name": soup.folder.name}
    facts = RunFolder(loaded.folder.path, loaded.folder.config).facts()
    kept: dict[str, object] = {
        name: facts[name] for name in ("choices", "data", "precision", "threads") if name in facts
    }
    origin = {
        "recipe": recipe,
        "metric": f"val/{soup.metric[0]}",
        "value": soup.result.value,
        "ingredients": [{"run": str(part.loaded.folder.path), "sha256": part.sha256} for part in chosen],
    }
    with new_folder(soup.folder) as temporary:
        write_weights(temporary / WEIGHTS, weights)
        write_yaml(temporary / CONFIG, redact(config))
        record: dict[str, object] = {
            **provenance(),
            **kept,
            "identity": identity(config),
            "resumes": [],
            "soup": origin,
        }
        write_json(temporary / RUN, record | {"soup": origin}, checked=True)
        write_tokenizers(loaded, temporary)
