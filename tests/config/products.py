"""Configs made straight from the YAML files, one choice for each family."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import yaml

from blockyard.config import layer_kinds
from blockyard.config.alternatives import default_pick
from blockyard.config.choices import catalog
from blockyard.config.compose import Composed, compose
from blockyard.config.defaults import complete, default_node
from blockyard.config.untrusted.targets import locate

# What a model is made of. The rest (optimizer, trainer, ...) does not change what can be combined; `layers` combines
# these with themselves, and is put into rows of them.
FAMILIES = (
    "data",
    "tokenizer",
    "position",
    "token_mixer",
    "channel_mixer",
    "norm",
    "block",
    "residual",
    "model",
    "head",
    "objective",
    "parametrization",
)

# What reads a source of another kind than the data's own sequence, in all rows.
READERS = {
    "image": {"source_tokenizer": "patch", "source_position": "learned"},
    "audio": {"source_tokenizer": "log_mel"},
    "text": {"source_tokenizer": "char", "source_position": "learned"},
}

SMALL_OPTIONS = {
    "model": {"dim": 48, "depth": 2, "heads": 2},
    "data": {
        "context": 20,
        "source_context": 20,
        "length": 12,
        "pairs": 2,
        "held": 4,
        "samples": 64,
        "eval_samples": 8,
    },
    # An early map of timm's: the last one of so small an image is one token, which a strict mixer shows nothing.
    # Of a sound, as few tokens as one-hot positions leave room for.
    "tokenizer": {"vocab_size": 300, "stage": 1, "hop_ms": 40.0},
}
# Of a choice alone. Of a sound that is written, too, as few tokens as one-hot positions leave room for.
SMALL_CHOICES = {
    ("tokenizer", "audio_vq"): {"levels": 1, "hop_ms": 75.0, "window_ms": 150.0},
    ("tokenizer", "vq"): {"steps": 20},
}


@cache
def _base() -> dict[str, Any]:
    return compose(["logger=none"]).config


@cache
def _node(family: str, name: str) -> dict[str, Any]:
    node = default_node(family, name)
    small = SMALL_OPTIONS.get(family, {}) | SMALL_CHOICES.get((family, name), {})
    node.update({key: value for key, value in small.items() if key in node})
    return node


def config(choices: dict[str, str]) -> Composed:
    """The composed config of one choice per family, small enough to run in milliseconds."""
    tree = {
        **copy.deepcopy(_base()),
        **{family: copy.deepcopy(_node(family, name)) for family, name in choices.items()},
    }
    if needs_class_token(choices["head"]) and "prefix" in tree["model"]:
        tree["model"]["prefix"] = {"class_token": True, "registers": 1}
    for key, name in readers(choices["data"]).items():
        tree[key] = copy.deepcopy(_node(catalog.OF_SOURCE[key], name))
        tree["model"].update({"shared": False} if "shared" in tree["model"] else {})
    for kind, differing in kinds(choices.get("layers", "same")).items():
        nodes = {family: copy.deepcopy(_node(family, name)) for family, name in differing.items()}
        tree["layers"]["kinds"][kind] = {"_target_": layer_kinds.TARGET, **nodes}
    complete(tree)
    return Composed(tree, dict(choices))


@cache
def kinds(layers: str) -> dict[str, dict[str, str]]:
    """The choices by family in which each kind of a choice of layers differs."""
    described = yaml.safe_load(catalog.choices("layers")[layers].path.read_text()).get("kinds", {})
    return {kind: dict(override.split("=") for override in overrides) for kind, overrides in described.items()}


@cache
def readers(data: str) -> dict[str, str]:
    """What must read the source of a data set, where that is of another kind than its own sequence."""
    plan = plan_of("data", data)
    source = None if plan is None else plan.spec.source
    return {} if source is None or source.modality == plan.spec.modality else READERS[source.modality]


@cache
def names() -> dict[str, list[str]]:
    """Every choice of every family that needs no folder, as it lies on the disk; of data, one for each kind."""
    names_of = {family: list(catalog.choices(family)) for family in FAMILIES}
    kinds: dict[Any, str] = {}
    for name in names_of["data"]:
        plan = plan_of("data", name)
        if plan is not None and plan.missing() is None:
            spec = plan.spec
            kind = (spec.modality, len(spec.shape), spec.variable, spec.packed, spec.target)
            kind += () if spec.source is None else (spec.source.modality,)
            kinds.setdefault(kind, name)
    # A tokenizer that passes ids through reads data that needs a folder, and `pretrained` needs a file.
    tokenizers = [
        name
        for name in names_of["tokenizer"]
        if name != "pretrained" and not locate(catalog.choices("tokenizer")[name].target).reads_ids
    ]
    return {**names_of, "data": list(kinds.values()), "tokenizer": tokenizers}


@cache
def needs_class_token(head: str) -> bool:
    """Whether a head reads the class token, so that its model must have one."""
    return locate(catalog.choices("head")[head].target).needs_class_token


@cache
def set_by_preset(preset: str | None, family: str) -> frozenset[str]:
    """The options of a family that a preset sets."""
    if preset is None:
        return frozenset()
    return frozenset(yaml.safe_load(catalog.choices("preset")[preset].path.read_text()).get(family, {}))


@cache
def pick(family: str, name: str) -> Any:
    return default_pick(catalog.choices(family)[name])


def plan_of(family: str, name: str) -> Any:
    """The plan as its YAML gives it; None where that needs an option of the user's."""
    picked = pick(family, name)
    return None if picked is None else picked.target(**picked.options)
