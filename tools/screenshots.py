"""Takes the screenshots of a sweep's page in docs/screenshots again where their sources have changed.

    python tools/screenshots.py                     # `make docs` does this
    python tools/screenshots.py --force             # take them whether or not anything has changed
    python tools/screenshots.py --data FOLDER       # keep the comparison of FOLDER, a finished sweep's, and show that

The page is drawn from docs/screenshots/quickstart.json.gz, the comparison of the sweep `quickstart`, in
headless Chromium (Debian: apt-get install chromium). sources.json beside the pictures holds the hash of what they were
made from: the page's template, styles and scripts without comments, the data, and the views below. A test compares it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

NAME = "quickstart"
FOLDER = ROOT / "docs" / "screenshots"
DATA, RECORD = f"{NAME}.json.gz", "sources.json"
SECTIONS = {"curves": "#curves", "cost": "#cost"}
# Of the whole window, and of a phone's.
DESK, PHONE = {"width": 1280, "height": 1400}, {"width": 390, "height": 844}


def load(folder: Path = FOLDER) -> dict[str, Any]:
    """The comparison that the screenshots show."""
    return dict(json.loads(gzip.decompress((folder / DATA).read_bytes())))


def keep(sweep: Path, folder: Path = FOLDER) -> None:
    """Writes the comparison of a finished sweep as the data of the screenshots, as far as the page shows it."""
    from blockyard.report.page.document import linked
    from blockyard.report.page.thin import thin

    comparison = json.loads((sweep / "comparison.json").read_text(encoding="utf-8"))
    if comparison.get("samples"):
        comparison["samples"] = None  # they are in no screenshot, and larger than all else
    text = json.dumps(thin(linked(comparison, None)), separators=(",", ":"), sort_keys=True)
    (folder / DATA).write_bytes(gzip.compress(text.encode(), mtime=0))


def source_hash(folder: Path = FOLDER) -> str:
    """The SHA-256 of what the screenshots are made from."""
    from blockyard.report.page.document import SCRIPTS, STYLES, joined_script, joined_style, read_part

    parts = [read_part("page.html"), joined_style(STYLES), joined_script(SCRIPTS), json.dumps([SECTIONS, DESK, PHONE])]
    return hashlib.sha256("\0".join(parts).encode() + (folder / DATA).read_bytes()).hexdigest()


def recorded(folder: Path = FOLDER) -> dict[str, Any]:
    """What sources.json says: hash, and the SHA-256 of each picture."""
    file = folder / RECORD
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def take(folder: Path = FOLDER) -> list[Path]:
    """Takes all screenshots and records their sources; returns the files."""
    from blockyard.report.page import write
    from tools.browser import address, launched, scroll

    files = []

    def save(target: Any, part: str, **options: Any) -> None:
        files.append(folder / f"{NAME}-{part}.png")
        target.screenshot(path=str(files[-1]), **options)

    with tempfile.TemporaryDirectory() as temporary, launched() as browser:
        page_file = write(load(folder), Path(temporary) / "report.html")
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=DESK, color_scheme=scheme)
            page.goto(address(page_file))
            scroll(page)
            save(page, scheme)
            if scheme == "light":
                for part, selector in SECTIONS.items():
                    if page.locator(selector).count():
                        # As tall as the section, so that the bar at the top covers nothing.
                        save(page.locator(selector), part, style=".bar, .legend { position: static !important; }")
            page.close()
        phone = browser.new_page(viewport=PHONE, device_scale_factor=2)
        phone.goto(address(page_file))
        save(phone, "phone")
    pictures = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (folder / RECORD).write_text(json.dumps({"sources": source_hash(folder), "pictures": pictures}, indent=1) + "\n")
    return files


def main(arguments: list[str] | None = None) -> int:
    """Prints the files that were written, or why none were."""
    from tools.browser import LEFT_OUT, chromium

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="take them even where nothing has changed")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="a finished sweep whose comparison to keep and show"
    )
    args = parser.parse_args(arguments)
    if args.data:
        keep(args.data)
    if not args.force and recorded().get("sources") == source_hash():
        return 0
    if chromium() is None:
        sys.stderr.write(f"docs/screenshots is out of date and was not taken again: {LEFT_OUT}\n")
        return 0
    for path in take():
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
