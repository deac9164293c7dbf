"""The size of the model: halved where the hours are too short, larger where hours and data have room for more.

A larger model by the rule of `model.size` is chosen where twenty seeds of the recipe's model leave most of the hours
over. With N0 parameters of the recipe's model, and N of the larger one:

    hours   a run takes about N / N0 times as long, and (N / N0)^2 times where its steps are limited, which grow too
    data    20 training tokens for each parameter (Hoffmann et al. 2022, arXiv 2203.15556, table 3), each seen in at
            most 4 epochs, until which it is about as good as a new one (Muennighoff et al. 2023, arXiv 2305.16264)
    rate    carries over by muP, so that N is at most 16 N0, for widths of about 2.5 times the recipe's
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from blockyard.ask.measure import Prepared
from blockyard.ask.subject import Setting
from blockyard.config.compose import compose
from blockyard.config.model_size import KEY as SIZE
from blockyard.config.size_matching import ModelSizes

LEAST_SIZES = {"dim": 32, "depth": 1}  # of a model that is halved
SHAPE = ("model.dim", "model.depth", "model.heads")
STEPS = ("trainer.max_steps", "trainer.eval_every")
LEAST_GROWTH = 2
MOST_GROWTH = 16
TOKENS_OF_PARAMETER = 20
MOST_EPOCHS = 4


def smaller_model(prepared: Prepared, typed: Collection[str]) -> list[Setting]:
    """Return half the width and half the depth of the model, with muP, by which the learning rate carries over.

    Empty where the model is as small as can be, or where the user typed its size.
    """
    options = prepared.config["model"]
    settings = []
    for name, least in LEAST_SIZES.items():
        key = f"model.{name}"
        value = options.get(name)
        if isinstance(value, int) and value // 2 >= least and not {key, SIZE} & set(typed):
            settings.append(Setting(key, value // 2, "half of the recipe's or less, so that the hours are enough"))
    choices = prepared.plan.variants[prepared.draft.baseline].choices
    if settings and choices.get("parametrization", "standard") == "standard" and "parametrization" not in typed:
        settings.append(Setting("parametrization", "mup", "the learning rate carries over to the smaller model"))
        for name in ("dim", "heads", "depth"):
            settings.append(Setting(f"parametrization.base_{name}", options[name], "of the recipe"))
    return settings


def larger_models(
    prepared: Prepared, typed: Collection[str], config_dirs: Sequence[str], room: float
) -> Iterator[list[Setting]]:
    """Yield the settings of larger models, the largest that hours and data have room for first, then halves of it.

    typed: keys of the user's overrides; none is yielded where they, or the arms, set a size
    room: how many times as long as the longest sweep of the present model the hours are
    """
    families = {key.partition(".")[0] for key in typed if not key.startswith("model.")} | prepared.draft.varied
    if {"model", "parametrization", "preset"} & families or {SIZE, *SHAPE} & set(typed):
        return
    base = ModelSizes().measure(prepared.config, "params")
    if base is None:
        return
    components, splits = prepared.reader.splits(prepared.config)
    tokens = len(splits.train) * components.tokens().max_len
    limits = {
        "the hours have room for": _growth(prepared, typed, room),
        f"{MOST_EPOCHS} epochs of {tokens:,} training tokens are enough for": MOST_EPOCHS
        * tokens
        / TOKENS_OF_PARAMETER
        / base,
        "a learning rate carries over to": MOST_GROWTH,
    }
    limit = min(limits, key=lambda name: limits[name])
    growth = limits[limit]
    reason = f"as many as {limit}"
    while growth >= LEAST_GROWTH:
        settings = _sized(prepared, config_dirs, round(base * growth), f"{{}} parameters, {reason}; before {base:,}")
        if settings:
            yield settings
        growth /= 2
        reason = "so that the hours are enough"


def _growth(prepared: Prepared, typed: Collection[str], room: float) -> float:
    """Return how many times as many parameters the hours have room for."""
    steps_grow = prepared.config["trainer"].get("max_steps") and "trainer.max_steps" not in typed
    if steps_grow:
        return math.sqrt(room)
    return room


def _sized(prepared: Prepared, config_dirs: Sequence[str], size: int, reason: str) -> list[Setting]:
    """Return the settings of a model with so many parameters in the baseline, for all arms; empty where none has them.

    reason: of the width, with a place for the number of parameters
    """
    draft = prepared.draft
    kept = [setting.override for setting in draft.settings if setting.key not in (*SHAPE, *STEPS)]
    overrides = [*kept, *draft.typed, *draft.arms[draft.baseline], f"{SIZE}={size}"]
    composed = compose(overrides, config_dirs)
    if composed.sized is None:
        return []
    settings = []
    for key, value in composed.sized.settings.items():
        text = "of the larger model"
        if key == "model.dim":
            text = reason.format(f"{composed.sized.value:,}")
        settings.append(Setting(key, value, text))
    return settings
