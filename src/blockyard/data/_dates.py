"""Pairs of written-out dates, formatted with the Unicode Consortium's CLDR data from the package Babel."""

from __future__ import annotations

import importlib.util
from datetime import date

import torch

from blockyard.data._order import mix
from blockyard.data._pairs import Pair

ISO = "iso"
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
COUNT = 10_000  # of the 73,049 days in that range
FORMATS = ("full", "long", "medium")  # the short format leaves the century out


def date_pairs(source: str, target: str, seed: int) -> list[Pair]:
    """Returns 10,000 different days, drawn by `seed`, each written in two languages.

    The source is in full, long or medium format, the target always in long format. The language "iso"
    writes 2026-11-21. Raises ValueError for a language that CLDR does not have.
    """
    if problem := unavailable(source, target):
        raise ValueError(problem)
    generator = torch.Generator().manual_seed(mix("dates", seed))
    days = torch.randperm((LAST - FIRST).days + 1, generator=generator)[:COUNT].tolist()
    formats = torch.randint(len(FORMATS), (COUNT,), generator=generator).tolist()
    dates = [date.fromordinal(FIRST.toordinal() + day) for day in days]
    source_locale, target_locale = _locale(source), _locale(target)
    assert source_locale is not None
    assert target_locale is not None
    return [
        (_format(day, FORMATS[index], source_locale), _format(day, "long", target_locale))
        for day, index in zip(dates, formats, strict=True)
    ]


def unavailable(*languages: str) -> str | None:
    """Returns why dates cannot be written in these languages, or None."""
    if importlib.util.find_spec("babel") is None:
        return "data=translation without a file needs the package Babel: pip install babel, or set data.path=FILE"
    for language in languages:
        if _locale(language) is None:
            return f"CLDR has no language {language!r}; use one such as en, de, fr, es, zh, ar or {ISO}"
    return None


def normalize(language: str) -> str:
    """Returns the canonical spelling of a language: en-GB and EN_gb become en_gb."""
    return language.strip().replace("-", "_").lower()


def _locale(language: str) -> str | None:
    """Returns CLDR's name of a language, or None if it has none."""
    from babel import localedata

    name = normalize(language)
    return ISO if name == ISO else localedata.normalize_locale(name)


def _format(day: date, form: str, locale: str) -> str:
    from babel.dates import format_date

    return day.isoformat() if locale == ISO else format_date(day, form, locale=locale)
