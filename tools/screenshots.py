"""The screenshots in this folder, taken from the page of a finished sweep.

    python docs/screenshots.py outputs/sweeps/quickstart [--name quickstart] [--out docs/screenshots]

Takes comparison.json of the sweep's folder (or compares its runs now), opens the page in headless Chromium
(Debian: apt-get install chromium) and writes NAME-light.png, NAME-dark.png (the first screens),
NAME-curves.png, NAME-cost.png, NAME-factors.png (where there are factors) and NAME-phone.png.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PARTS = {"curves": "#curves", "cost": "#cost", "factors": "#effects"}


def comparison(folder: Path) -> dict[str, Any]:
    """What the sweep's command has left, else compared now."""
    from blockyard.atomic_files import read_json
    from blockyard.report.comparison import compare

    left = folder / "comparison.json"
    return read_json(left) if left.is_file() else compare(str(folder)).as_dict()


def shots(made: dict[str, Any], out: Path, name: str) -> list[Path]:
    """Take them all; the files."""
    from blockyard.report.page import write
    from tests.report.browser import address, launched, scroll

    out.mkdir(parents=True, exist_ok=True)
    taken = []

    def keep(target: Any, what: str, **options: Any) -> None:
        taken.append(out / f"{name}-{what}.png")
        target.screenshot(path=str(taken[-1]), **options)

    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        page_file = write(made, Path(folder) / "report.html")
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1280, "height": 1400}, color_scheme=scheme)
            page.goto(address(page_file))
            scroll(page)
            keep(page, scheme)
            if scheme == "light":
                for what, selector in PARTS.items():
                    if page.locator(selector).count():
                        # As tall as the section, so that the bar on top lies over nothing.
                        keep(page.locator(selector), what, style=".bar, .legend { position: static !important; }")
            page.close()
        phone = browser.new_page(viewport={"width": 390, "height": 844}, device_scale_factor=2)
        phone.goto(address(page_file))
        keep(phone, "phone")
    return taken


def main() -> int:
    """Say what was written."""
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("sweep", type=Path, help="a sweep's folder")
    read.add_argument("--name", help="how the files begin; default the folder's name")
    read.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots")
    asked = read.parse_args()
    for path in shots(comparison(asked.sweep), asked.out, asked.name or asked.sweep.name):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
