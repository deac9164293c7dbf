"""Which data a preset reads in tests, and how small it is there."""

from __future__ import annotations

import yaml

from blockyard.config import presets
from blockyard.config.choices import catalog
from blockyard.config.schema import options
from blockyard.config.untrusted.targets import locate
from tests.config import products

DATA = {
    "classify": "digits",
    "translate": "translation",
    "next_token": "code",
    "masked_token": "code",
    "forecast": "co2",
    "regress": "atlas",
    "ctc": "dial_tones",
}
SIZES = {"dim": 16, "depth": 2, "heads": 2}
CONTEXTS = {"code": ["data.context=8"], "translation": ["data.context=8", "data.source_context=8"]}


def data_of(choices: dict[str, str]) -> str:
    """Data that the choices of a preset read."""
    if "view" in choices["tokenizer"]:
        return "digits_views"
    if choices["tokenizer"] == "levels":
        return "digits"
    if choices.get("source_tokenizer") == "patch":
        return "canvas_captions" if choices["objective"] == "translate" else "canvas_questions"
    return "dial_tones" if choices.get("source_tokenizer") == "log_mel" else DATA[choices["objective"]]


def small(preset: str) -> list[str]:
    """Overrides of a preset, small, over data that it reads."""
    choices = presets.choices("preset", preset)
    data = data_of(choices)
    available = options(locate(str(catalog.choices("model")[choices["model"]].target)))
    available = set(available) - products.set_by_preset(preset, "model")
    layers = yaml.safe_load(catalog.choices("preset")[preset].path.read_text()).get("layers", {})
    kinds = [kind for part in ("first", "pattern", "last") for kind in layers.get(part, [])]
    shape = SIZES | {"depth": max(SIZES["depth"], len(kinds))}
    sizes = [f"model.{name}={size}" for name, size in shape.items() if name in available]
    return [f"preset={preset}", f"data={data}", *sizes, *CONTEXTS.get(data, [])]
