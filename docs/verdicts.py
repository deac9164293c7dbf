"""README's table of verdicts, from the folders of finished sweeps.

    python docs/verdicts.py outputs/sweeps/*

Reads each folder's comparison.json and prints a Markdown table: the claim, what was expected and how that
was judged, each arm's figure against the baseline, and the cells done.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SIGNS = {"better": "better", "worse": "worse", "no difference shown": "no difference shown"}


def row(folder: Path) -> str:
    """One sweep as a row."""
    data = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    done = [cell for cell in data["cells"] if cell["state"] == "done"]
    judged = data["expect"] or {"text": "-", "verdict": "-"}
    arms = "; ".join(_arm(arm) for arm in data["arms"])
    return (
        f"| `{folder.name}` | {data['claim']} | {data['metric']} | {arms} | `{judged['text']}`: "
        f"**{judged['verdict']}** | {len(done)} of {len(data['cells'])} |"
    )


def _arm(arm: dict[str, Any]) -> str:
    """A name, its mean, and for all but the baseline the difference with its interval and the verdict."""
    if arm["mean"] is None:
        return f"{arm['name']}: no figure"
    text = f"{arm['name']} {arm['mean']:.3f}"
    difference = arm["difference"]
    if difference is None or difference["interval"] is None:
        return f"{text} ({arm['verdict']})"
    low, high = difference["interval"]
    return f"{text} ({difference['mean']:+.3f} [{low:+.3f}, {high:+.3f}], {SIGNS.get(arm['verdict'], arm['verdict'])})"


def main() -> None:
    """The table of all folders named."""
    folders = [Path(word) for word in sys.argv[1:]]
    folders = [folder for folder in folders if (folder / "comparison.json").is_file()]
    if not folders:
        sys.exit(__doc__)
    sys.stdout.write("| sweep | claim | metric | arms (difference to the baseline, 95 %) | expected | cells |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    sys.stdout.write("".join(f"{row(folder)}\n" for folder in folders))


if __name__ == "__main__":
    main()
