"""Build the documentation's site of this version beside those of the versions before it.

    python tools/publish_site.py FOLDER

FOLDER/0.2.0 is the site, by the version of the package. FOLDER/versions.json is the list that the menu of versions in
the head of every page reads, the newest first; FOLDER/index.html leads to the newest. What other versions have written
there stays. FOLDER can be served as it is by any web server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

from blockyard import __version__
from blockyard.atomic_files import write_text

ROOT = Path(__file__).resolve().parents[1]
LEAD = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={0}/index.html">
<a href="{0}/index.html">blockyard {0}</a>
"""


def main(arguments: list[str] | None = None) -> None:
    """Build the site, and add it to the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{__version__}.new"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(new.resolve())],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    publish(new, folder, __version__)


def publish(site: Path, folder: Path, version: str) -> None:
    """Move a built site to its place in a folder of versions, and write the list and the page that leads to the newest.

    Args:
        site: a folder on the same disk; an earlier site of the same version is replaced by it
        folder: holds a site for each version
        version: such as 0.2.0
    """
    shutil.rmtree(folder / version, ignore_errors=True)
    site.rename(folder / version)
    published = [path.parent.name for path in folder.glob("[0-9]*/index.html")]
    newest_first = sorted(published, key=Version, reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in newest_first]
    listed[0]["aliases"] = ["latest"]
    write_text(folder / "versions.json", json.dumps(listed, indent=1) + "\n")
    write_text(folder / "index.html", LEAD.format(newest_first[0]))


if __name__ == "__main__":
    main()
