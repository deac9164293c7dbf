"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Tiny models on two cores: one thread each is faster, and figures repeat.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_MODE", "offline")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no shared data sets beside this checkout")
    return SHARED
