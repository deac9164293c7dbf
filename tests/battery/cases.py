"""Cases of a battery as test parameters: a short form for `make test`, all of them for `make battery`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from tests.battery.table import BATTERIES

Case = TypeVar("Case")


def battery(name: str) -> pytest.MarkDecorator:
    """Mark a test module, class or function as part of a battery: `pytestmark = battery("signals")`."""
    assert name in BATTERIES, name
    return pytest.mark.battery_name(name)


def cases(all_cases: Sequence[Case], *, short: int, names: Callable[[Case], str] = str) -> list[Any]:
    """Test parameters of all cases; all but `short` of them, evenly spaced, are left to `make battery`.

    names: the test id of a case
    """
    step = len(all_cases) / short if short else 0
    kept = {int(step * number) for number in range(short)}
    return [
        pytest.param(case, id=names(case), marks=() if number in kept else pytest.mark.battery)
        for number, case in enumerate(all_cases)
    ]
