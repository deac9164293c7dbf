"""The choices that docs/field.md names compose in its decoder as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose

PAGE = Path(__file__).parents[2] / "docs" / "field.md"
FAMILIES = ("token_mixer", "channel_mixer", "block", "objective", "position", "residual")


def commands() -> list[str]:
    """Return the overrides that begin with a choice, of the last column of each table."""
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row[-2])]
    choices = {f"{family}={name}" for family in FAMILIES for name in catalog.choices(family)}
    return sorted({span for span in spans if span.split()[0] in choices})


@pytest.mark.parametrize("overrides", commands())
def test_a_row_composes_as_it_stands(overrides: str) -> None:
    """Six rows needed a position that is not rope, one another model, and one an option of the experts."""
    assert check(compose(["experiment=gpt_code_small", *overrides.split()])) == []
