"""docs/exchange.md says of every preset which class of a library it is, and whether a run of it is exported."""

from __future__ import annotations

import re

import pytest

from blockyard.config.choices import catalog
from blockyard.weights.convert.converter import converters
from tests.support.paths import ROOT


def rows() -> dict[str, list[str]]:
    """The cells of a table's row, by preset."""
    presets: dict[str, list[str]] = {}
    for line in (ROOT / "docs" / "exchange.md").read_text().splitlines():
        if not line.startswith("| `"):
            continue
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        names = re.findall(r"`(\w+)`", first)
        if not set(names) <= set(catalog.choices("preset")):
            continue  # of another table
        for name in names:
            assert name not in presets, f"{name} is listed twice"
            presets[name] = others
    return presets


def test_every_preset_is_listed_once() -> None:
    assert set(rows()) == set(catalog.choices("preset"))


@pytest.mark.parametrize("name", sorted(catalog.choices("preset")))
def test_what_is_listed_is_what_the_converters_do(name: str) -> None:
    cells, converter = rows()[name], converters().get(name)
    if converter is None:
        (reason,) = cells
        assert len(reason.split()) > 2
        return
    theirs, imported, exported, reason = cells
    assert theirs.startswith(converter.library)
    assert {converter.architecture, *converter.others} >= set(re.findall(r"`(\w+)`", theirs))
    assert (imported == "yes", exported) == ((False, "no") if converter.partly else (True, "yes"))
    assert (converter.write is None) == bool(converter.partly)
    assert reason or not converter.partly
