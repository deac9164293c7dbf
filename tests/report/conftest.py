"""Fixtures of the tests that look at pages in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tools.browser import launched


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the pages of a file; each test opens a page of its own."""
    with launched() as instance:
        yield instance
