"""Takes the screenshots in docs/screenshots from the page of a finished sweep.

    python tools/screenshots.py outputs/sweeps/quickstart [--name quickstart] [--out docs/screenshots]

Reads comparison.json of the sweep's folder, or compares its runs now, opens the page in headless Chromium
(Debian: apt-get install chromium) and writes NAME-light.png, NAME-dark.png (the first screens), NAME-curves.png,
NAME-cost.png, NAME-factors.png (where the sweep has factors) and NAME-phone.png.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SECTIONS = {"curves": "#curves", "cost": "#cost", "factors": "#effects"}


def comparison(folder: Path) -> dict[str, Any]:
    """The comparison that the sweep's command has written, else a new one."""
    from blockyard.atomic_files import read_json
    from blockyard.report.comparison import compare

    written = folder / "comparison.json"
    return read_json(written) if written.is_file() else compare(str(folder)).as_dict()


def screenshots(data: dict[str, Any], out: Path, name: str) -> list[Path]:
    """Takes all screenshots; returns the files."""
    from blockyard.report.page import write
    from tests.report.browser import address, launched, scroll

    out.mkdir(parents=True, exist_ok=True)
    files = []

    def save(target: Any, part: str, **options: Any) -> None:
        files.append(out / f"{name}-{part}.png")
        target.screenshot(path=str(files[-1]), **options)

    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        page_file = write(data, Path(folder) / "report.html")
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1280, "height": 1400}, color_scheme=scheme)
            page.goto(address(page_file))
            scroll(page)
            save(page, scheme)
            if scheme == "light":
                for part, selector in SECTIONS.items():
                    if page.locator(selector).count():
                        # As tall as the section, so that the bar at the top covers nothing.
                        save(page.locator(selector), part, style=".bar, .legend { position: static !important; }")
            page.close()
        phone = browser.new_page(viewport={"width": 390, "height": 844}, device_scale_factor=2)
        phone.goto(address(page_file))
        save(phone, "phone")
    return files


def main() -> int:
    """Prints the files that were written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="a sweep's folder")
    parser.add_argument("--name", help="how the files begin; default the folder's name")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots")
    args = parser.parse_args()
    for path in screenshots(comparison(args.sweep), args.out, args.name or args.sweep.name):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
