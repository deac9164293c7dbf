"""The recipe of a kind of data: what is not looked at in the file."""

from __future__ import annotations

from blockyard.ask.subject import Setting

_EXPERIMENTS = {
    "texts": "spam_table",
    "molecules": "molecules",
    "speech": "speech_ctc",
    "captions": "captions",
    "pairs": "translate_languages",
    "text": "gpt_shakespeare",
    "tags": "tag_names",
    "forecast": "etth1",
}
_CHOICES = {
    "numbers": {"tokenizer": "columns", "position": "none"},
    "series": {"tokenizer": "series_patch"},
}


def recipe_settings(kind: str) -> tuple[Setting, ...]:
    """Return the settings of a recipe."""
    if kind in _EXPERIMENTS:
        return (Setting("experiment", _EXPERIMENTS[kind], "the recipe"),)
    return tuple(Setting(key, value, "the recipe") for key, value in _CHOICES.get(kind, {}).items())
