"""Where the checkout lies, for tests in any folder."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
SHARED = ROOT.parent / "shared" / "data"  # data sets beside the checkout, absent on most machines
