"""Which data a preset reads in tests."""

from __future__ import annotations

DATA = {
    "classify": "digits",
    "translate": "translation",
    "next_token": "code",
    "masked_token": "code",
    "forecast": "co2",
    "regress": "atlas",
    "ctc": "dial_tones",
}


def data_of(choices: dict[str, str]) -> str:
    """Data that the choices of a preset read."""
    if "view" in choices["tokenizer"]:
        return "digits_views"
    if choices["tokenizer"] == "levels":
        return "digits"
    if choices.get("source_tokenizer") == "patch":
        return "canvas_captions" if choices["objective"] == "translate" else "canvas_questions"
    return "dial_tones" if choices.get("source_tokenizer") == "log_mel" else DATA[choices["objective"]]
