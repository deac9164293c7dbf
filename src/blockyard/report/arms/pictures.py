"""Pictures and sounds of predictions that runs have saved, for the page.

`forecast`, `generate`, `eval` and `inspect` write them.
"""

from __future__ import annotations

import base64
import itertools
import logging
from collections.abc import Iterable
from pathlib import PurePath

from blockyard.atomic_files import read_member
from blockyard.errors import UserError
from blockyard.report.load.document import PictureRow
from blockyard.report.load.run_record import LoadedRun

log = logging.getLogger("blockyard")

FILES = {
    "forecast": "forecast.png",
    "samples": "samples.png",
    "restoration": "inspect/restore.png",
    "resolution": "resolution-test.png",
    "spectrograms": "written-test.png",
    "drawings": "drawn-test.png",
    "sounds, true and written": "spoken-test.png",
    "first written sound": "spoken-test-1.wav",
    "second written sound": "spoken-test-2.wav",
    "attention on a graph": "inspect/attention_graph.png",
}
MAX_PICTURES = 24  # in all; each arm shows those of its first run that has any
MAX_BYTES = 2_000_000  # of a picture, which the page holds as text
MAX_SOUND_BYTES = 100_000  # six seconds at 8 kHz
# How a file begins, its type and its largest size, by suffix.
_KINDS = {
    ".png": (b"\x89PNG\r\n\x1a\n", "image/png", MAX_BYTES),
    ".wav": (b"RIFF", "audio/wav", MAX_SOUND_BYTES),
}


def pictures(records: Iterable[LoadedRun]) -> list[PictureRow]:
    """Return pictures and sounds of each arm's first run that has any: arm, seed, name, content as a data URL."""
    by_arm: dict[str, list[PictureRow]] = {}
    for record in records:
        if not record.done or record.arm in by_arm:
            continue
        for name, file in FILES.items():
            image = _image(record, file)
            if image:
                row = PictureRow(arm=record.arm, seed=record.seed, name=name, image=image)
                by_arm.setdefault(record.arm, []).append(row)
    return list(itertools.chain(*by_arm.values()))[:MAX_PICTURES]


def _image(record: LoadedRun, file: str) -> str | None:
    """Return a PNG or WAV file as a data URL; None for a file that is missing, too large or of another type."""
    begins, kind, largest = _KINDS[PurePath(file).suffix]
    path = record.path / file
    try:
        if path.parent.is_symlink():  # the folder `inspect`
            raise UserError(f"{path} is not copied: {path.parent} is a link")
        content = read_member(path, largest)
    except UserError as error:
        log.warning("%s", error)
        return None
    except (OSError, ValueError):
        return None
    if not content.startswith(begins):
        return None
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
