"""Random configs that `check` accepts: choices and options drawn from the catalogue and the schema, at tiny sizes."""

from __future__ import annotations

import types
from functools import cache
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt

from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import Composed, compose
from blockyard.config.schema import Option, options, slot
from blockyard.config.untrusted.targets import locate
from tests.support.tiny import ON_CPU, ONE_BATCH, steps

STEPS, SAVED = 4, 2  # of a run, and those after which it is evaluated and saved
COMMON = (*ON_CPU, *ONE_BATCH, *steps(STEPS, SAVED), "trainer.threads=1", "trainer.log_every=1")
SIZES = {
    "model": {"dim": 16, "depth": 2, "heads": 2, "encoder_depth": 1, "num_latents": 4},
    "data": {
        "context": 16,
        "source_context": 16,
        "length": 24,
        "pairs": 2,
        "held": 4,
        "samples": 64,
        "eval_samples": 16,
    }
    | {"batch_size": 8, "eval_batch_size": 16, "train_size": 64},
    "tokenizer": {"vocab_size": 300},
}
# Options that say where a run trains and how long, or that name files and services.
KEPT = {"trainer", "logger", "callbacks", "data.root", "data.path", "data.source", "data.target", "data.download"}
KEPT |= {"data.train_size", "data.validation_size", "data.test_size"}  # at most as many as there are
KEPT |= {"tokenizer.name", "tokenizer.pretrained", "data.pattern", "data.memory_limit", "data.workers"}
# Milliseconds from token to token: a tenth of one makes a hundred times as many tokens as by default.
KEPT |= {"tokenizer.hop_ms", "source_tokenizer.hop_ms"}
KEPT |= {"optimizer.lr"}  # a model without norms diverges at the rates that would be drawn, and its run rightly fails
DRAWN_CHOICES, DRAWN_OPTIONS, TRIES = 3, 4, 4


@cache
def drawn_choices() -> tuple[tuple[str, str], ...]:
    """Every choice of a family that a run without files of its own can have."""
    families = [f for f in catalog.families() if f not in ("experiment", "preset", "debug", "trainer", "logger")]
    return tuple((family, name) for family in families for name in catalog.choices(family))


@cache
def experiments() -> tuple[str, ...]:
    """Experiments whose data is here."""
    names = catalog.choices("experiment")
    return tuple(name for name in names if not check(compose([f"experiment={name}", *ON_CPU])))


def draw(number: int) -> list[str]:
    """Overrides of config `number`, which holds choice `number` of the catalogue where that is legal somewhere."""
    random = Random(number)
    every = drawn_choices()
    wanted = every[number % len(every)]
    overrides = _with_choice(wanted, random)
    for _ in range(DRAWN_CHOICES):
        family, name = random.choice(every)
        if family not in (wanted[0], "data", "objective"):
            overrides = _sound([*_without(overrides, family), f"{family}={name}"]) or overrides
    for _ in range(DRAWN_OPTIONS):
        overrides = _with_option(overrides, random) or overrides
    return overrides


def _with_choice(wanted: tuple[str, str], random: Random) -> list[str]:
    """The overrides of a tiny experiment, with the choice that is wanted if any experiment can have it."""
    family, name = wanted
    shuffled = random.sample(experiments(), len(experiments()))
    for experiment in shuffled:
        overrides = _sound([f"experiment={experiment}", f"{family}={name}"])
        if overrides:
            return overrides
    return _sound([f"experiment={shuffled[0]}"]) or [f"experiment={shuffled[0]}"]


def _without(overrides: list[str], family: str) -> list[str]:
    return [override for override in overrides if not override.startswith((f"{family}=", f"{family}."))]


def _sound(overrides: list[str]) -> list[str] | None:
    """The overrides at a tiny size, or None where `check` refuses them."""
    typed = {override.partition("=")[0] for override in overrides}
    composed = compose([*overrides, *(override for override in COMMON if override.partition("=")[0] not in typed)])
    sizes = [f"{key}={value}" for key, value in _sizes(composed) if key not in typed]
    complete = [*overrides, *sizes, *(override for override in COMMON if override.partition("=")[0] not in typed)]
    return None if composed.issues or check(compose(complete)) else [*overrides, *sizes]


def _sizes(composed: Composed) -> list[tuple[str, int]]:
    return [
        (f"{family}.{name}", value)
        for family, sizes in SIZES.items()
        for name, value in sizes.items()
        if composed.config.get(family, {}).get(name) is not None
    ]


def _with_option(overrides: list[str], random: Random) -> list[str] | None:
    """The overrides with another value of one option, of the first few tried that `check` accepts."""
    config = compose([*overrides, *COMMON]).config
    typed = {override.partition("=")[0] for override in overrides}
    candidates = [
        (f"{family}.{name}", option)
        for family, node in config.items()
        if isinstance(node, dict) and "_target_" in node and family not in KEPT
        for name, option in options(locate(node["_target_"])).items()
        if f"{family}.{name}" not in KEPT | typed
    ]
    for _ in range(TRIES if candidates else 0):
        key, option = random.choice(candidates)
        values = legal_values(option)
        accepted = _sound([*overrides, f"{key}={random.choice(values)}"]) if values else None
        if accepted:
            return accepted
    return None


def legal_values(option: Option) -> list[str]:
    """Values of an option's type that keep a model tiny, as they are written."""
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in _values(option.annotation)]


def _values(annotation: Any) -> list[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if slot(annotation) is not None:
        return []
    if origin in (Union, types.UnionType):
        return [value for each in arguments for value in _values(each)]
    if origin is Literal:
        return list(arguments)
    if origin is Annotated:
        low = max([each.ge if type(each) is Ge else each.gt for each in arguments[1:] if type(each) in (Ge, Gt)] or [0])
        if arguments[0] is int:
            return [low, low + 1, low + 2, low + 3]
        return [0.1, 0.3, 0.7, *([2.0] if low else [])] if arguments[0] is float else []
    return {bool: [True, False], type(None): ["null"]}.get(annotation, [])
