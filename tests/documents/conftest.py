"""The generated pages of the documentation, made once."""

from __future__ import annotations

import pytest

from tools import components


@pytest.fixture(scope="session")
def component_pages() -> dict[str, str]:
    """What docs/components/ has after `make docs`: the pages by file name. The folder itself is not in git."""
    return components.pages()
