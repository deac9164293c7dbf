"""Dates written out, by the Unicode Consortium's CLDR as the package Babel brings it."""

from __future__ import annotations

import importlib.util
from datetime import date

import torch

from blockyard.data._order import mix
from blockyard.data._pairs import Pair

ISO = "iso"
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
COUNT = 10_000  # of the 73,049 days between them
FORMATS = ("full", "long", "medium")  # the short ones do not say the century


def date_pairs(source: str, target: str, seed: int) -> list[Pair]:
    """10,000 different days drawn by `seed`: each in one of three forms of a language, and in the long form of another.

    "iso" is 2026-11-21. Raises ValueError for a language that CLDR does not know.
    """
    if problem := unknown(source, target):
        raise ValueError(problem)
    generator = torch.Generator().manual_seed(mix("dates", seed))
    days = torch.randperm((LAST - FIRST).days + 1, generator=generator)[:COUNT].tolist()
    forms = torch.randint(len(FORMATS), (COUNT,), generator=generator).tolist()
    dates = [date.fromordinal(FIRST.toordinal() + day) for day in days]
    read, written = _locale(source), _locale(target)
    return [
        (_written(day, FORMATS[form], read), _written(day, "long", written))
        for day, form in zip(dates, forms, strict=True)
    ]


def unknown(*languages: str) -> str | None:
    """What keeps these languages from being written, or None."""
    if importlib.util.find_spec("babel") is None:
        return "the dates of data=translation need the package Babel: pip install babel, or data.path=FILE"
    for language in languages:
        if _locale(language) is None:
            return f"CLDR has no language {language!r}; take one such as en, de, fr, es, zh, ar or {ISO}"
    return None


def spelled(language: str) -> str:
    """The one spelling of a language: en-GB and EN_gb are en_gb."""
    return language.strip().replace("-", "_").lower()


def _locale(language: str) -> str | None:
    """A language as CLDR names it, or None where it has none."""
    from babel import localedata

    name = spelled(language)
    return ISO if name == ISO else localedata.normalize_locale(name)


def _written(day: date, form: str, locale: str) -> str:
    from babel.dates import format_date

    return day.isoformat() if locale == ISO else format_date(day, form, locale=locale)
