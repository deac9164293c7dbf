"""Pictures of predictions that runs have, for the page: `forecast`, `generate`, `eval resolution=` and `inspect` write
them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from blockyard.atomic_files import read_bytes
from blockyard.report.load.run_record import RunRecord

FILES = {
    "forecast": "forecast.png",
    "samples": "samples.png",
    "restoration": "inspect/restore.png",
    "resolution": "resolution-test.png",
    "spectrograms": "written-test.png",
    "attention on a graph": "inspect/attention_graph.png",
}
MAX_PICTURES = 24  # in all; each arm shows those of its first run that has any
MAX_BYTES = 2_000_000  # of a picture, which the page holds as text
_PNG = b"\x89PNG\r\n\x1a\n"


def pictures(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """Return the pictures of each arm's first run that has any: arm, seed, name, image as a data URL."""
    by_arm: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record.done and record.arm not in by_arm and (own := _pictures(record)):
            by_arm[record.arm] = own
    return [each for own in by_arm.values() for each in own][:MAX_PICTURES]


def _pictures(record: RunRecord) -> list[dict[str, Any]]:
    images = {name: _image(record, file) for name, file in FILES.items()}
    return [
        {"arm": record.arm, "seed": record.seed, "name": name, "image": image}
        for name, image in images.items()
        if image
    ]


def _image(record: RunRecord, file: str) -> str | None:
    """A PNG file as a data URL; None where it is missing, too large or no PNG: the page shows the rest."""
    try:
        content = read_bytes(record.path / file, MAX_BYTES)
    except (OSError, ValueError):
        return None
    return f"data:image/png;base64,{base64.b64encode(content).decode()}" if content.startswith(_PNG) else None
