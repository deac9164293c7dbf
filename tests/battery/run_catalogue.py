"""A tiny run for every registered component: the first legal combination of choices that holds it.

The choices come from the catalogue and from `legal_cover`, so that a new YAML is covered without being named
here. Runs have twelve steps of eight samples in all; data sets on disk are those of `data_files`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from blockyard.config import presets
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from tests.battery.data_files import data_overrides
from tests.config import products
from tests.config.cover import legal_cover
from tests.support.tiny import ON_CPU, ONE_BATCH

Choice = tuple[str, str]  # a family and a name

# Overrides that make a run tiny, where its config has the key.
SMALL = {
    "model": {"dim": 32, "depth": 2, "heads": 2, "num_latents": 4},
    "data": {
        "batch_size": 8,
        "eval_batch_size": 8,
        "samples": 64,
        "eval_samples": 8,
        "context": 20,
        "source_context": 20,
        "length": 24,
        "pairs": 2,
        "held": 4,
    },
    "tokenizer": {"vocab_size": 300, "stage": 1, "steps": 20},
}
LENGTH = ("trainer.max_steps=12", "trainer.max_epochs=null", "trainer.eval_every=4", "trainer.log_every=2", *ONE_BATCH)
SMALL_NETWORK = ("timm", "view_timm")  # tokenizers that name a network of timm's
# What a choice needs beside it that no config without files has.
BESIDE = {
    ("data", "tokens"): {"tokenizer": "ids"},
    ("tokenizer", "ids"): {"data": "tokens"},
    ("data", "table"): {"tokenizer": "byte", "head": "mean_pool", "objective": "classify"},
    ("data", "mixture"): {"tokenizer": "byte", "model": "decoder", "head": "token", "objective": "next_token"},
    ("data", "hf"): {"tokenizer": "byte", "head": "mean_pool", "objective": "classify"},
    ("trainer", "context"): {
        "data": "code",
        "tokenizer": "byte",
        "model": "decoder",
        "head": "token",
        "objective": "next_token",
    },
}
# Choices that are a machine's: here they run on its CPU.
TRAINER = {
    "gpu": ("trainer.accelerator=cpu",),
    "ddp": ("trainer.accelerator=cpu",),
    "fsdp": ("trainer.accelerator=cpu",),
    "context": ("trainer.accelerator=cpu",),
}

# Data of which only the file says what it has, so that no combination is legal without one.
OF_THEIR_FILE = {"series_table": {"tokenizer": "series_patch"}}


def registered() -> list[Choice]:
    """Every choice of every family of a run, from the YAML files."""
    return [(family, name) for family in catalog.families() for name in catalog.choices(family)]


@cache
def overrides(family: str, name: str, files: Path) -> tuple[str, ...]:
    """Overrides of a tiny run that holds a choice and that `check` accepts."""
    problems = []
    for choices in _candidates(family, name):
        base = (*_choice_overrides(choices), *_options(choices, files))
        issues = check(compose(base))
        if not issues:
            return base
        problems.append(str(issues[0]))
    raise AssertionError(f"no legal run holds {family}={name}: {problems}")


def _candidates(family: str, name: str) -> Iterator[dict[str, str]]:
    """Choices that may be legal together, the likeliest first."""
    configs = legal_cover(1)
    if family in ("experiment", "preset"):
        own = presets.choices(family, name)
        kinds = {"data": own["data"]} if "data" in own else {}
        for data in dict.fromkeys([*kinds.values()] or [row["data"] for row in configs]):
            yield {**kinds, family: name, "data": data}
    elif name in OF_THEIR_FILE:
        yield {**_defaults(), **OF_THEIR_FILE[name], family: name}
    elif family in products.FAMILIES:
        held = [row for row in configs if row[family] == name and (family, name) not in BESIDE]
        yield from held
        yield from ({**row, "position": "learned", family: name} for row in held)  # one_hot needs a channel a position
        beside = BESIDE.get((family, name), {})
        yield from ({**row, **beside, family: name} for row in configs)
    else:
        yield {**_defaults(), **BESIDE.get((family, name), {}), family: name}


def _defaults() -> dict[str, str]:
    return {key: str(value) for key, value in catalog.default_choices().items() if key in products.FAMILIES}


def _choice_overrides(choices: dict[str, str]) -> tuple[str, ...]:
    base = [override for override in ON_CPU if override.partition("=")[0] not in choices]
    overrides = [*base, *(f"{family}={name}" for family, name in choices.items())]
    if "data" in choices and not {"preset", "experiment"} & set(choices):
        source = products.readers(choices["data"])
        overrides += [f"{key}={name}" for key, name in source.items()]
        overrides += ["model.shared=false"] if source and choices.get("model") == "encoder_decoder" else []
    return tuple(overrides)


def _options(choices: dict[str, str], files: Path) -> tuple[str, ...]:
    """The options that make a run of these choices small, and point it to its data."""
    composed = compose(_choice_overrides(choices))
    config, names = composed.config, {**composed.choices, **choices}
    overrides = [*LENGTH, *data_overrides(str(names["data"]), files), *TRAINER.get(str(names["trainer"]), ())]
    for family, sizes in SMALL.items():
        own = products.set_by_preset(names.get("preset"), family)
        sized = [option for option in sizes if option in (config[family] or {}) and option not in own]
        overrides += [f"{family}.{option}={sizes[option]}" for option in sized]
    if names["tokenizer"] in SMALL_NETWORK:
        overrides.append("tokenizer.name=test_resnet")
    if names["tokenizer"] == "pretrained":
        overrides.append(f"tokenizer.path={files / 'tokenizer.json'}")
    if names["data"] == "translation" and names.get("experiment") in ("translate_languages", "translate_pairs"):
        overrides.append(f"data.path={files / 'pairs.tsv'}")
    if names["callbacks"] == "dropout_schedule":
        overrides.append("model.dropout=0.1")
    head = str(names["head"])
    if products.needs_class_token(head) and "prefix" in config["model"]:
        overrides.append("model.prefix={class_token: true, registers: 1}")
    return tuple(overrides)
