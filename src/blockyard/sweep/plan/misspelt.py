"""What a sweep file names that exists nowhere."""

from __future__ import annotations

from collections.abc import Sequence

from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.sweep_plan import Arm

LISTED = 10  # problems of one kind that are reported in full


def misspelt(composer: CellComposer, base: Sequence[str], arms: Sequence[Arm]) -> list[str]:
    """What the base and the arms name that exists nowhere, so that it is told with the other problems of a file."""
    shared = [str(issue) for issue in composer.compose(base).issues if issue.unknown]
    own = {
        f"{arm.name}: {issue}": None
        for arm in arms
        for issue in composer.compose([*base, *arm.overrides]).issues
        if issue.unknown and str(issue) not in shared
    }
    return [*(f"base: {text}" for text in shared), *list(own)[:LISTED]]
