"""The attention maps that runs have saved, for the page."""

from __future__ import annotations

import base64
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from blockyard.atomic_files import read_json, read_member
from blockyard.errors import UserError
from blockyard.report.load.document import MapRow, PictureRow
from blockyard.report.load.run_record import LoadedRun

log = logging.getLogger("blockyard")

FILE = "attention.json"  # as callbacks.attention_maps names it; importing that imports torch
MAX_MAPS = 60  # in all; each arm shows its first layers and heads


def maps(records: Iterable[LoadedRun]) -> list[MapRow]:
    """Return the last maps of each arm's first run that has any: arm, seed, name of the layer, map."""
    by_arm: dict[str, list[MapRow]] = {}
    for record in records:
        if record.done and record.arm not in by_arm and (saved := _saved(record)):
            by_arm[record.arm] = saved
    per_arm = max(1, MAX_MAPS // max(1, len(by_arm)))
    return [each for saved in by_arm.values() for each in saved[:per_arm]][:MAX_MAPS]


def _saved(record: LoadedRun) -> list[MapRow]:
    try:
        saved = read_json(record.path / FILE, read=read_member)["maps"]
        last = max((each["step"] for each in saved), default=0)
        shown = [each for each in saved if each["step"] == last]
        return [
            MapRow(arm=record.arm, seed=record.seed, layer=name, map=_finite_table(each["map"]))
            for each, name in zip(shown, _names(shown), strict=True)
        ]
    except UserError as error:
        log.warning("%s", error)
        return []
    except (OSError, ValueError, KeyError, TypeError):
        return []  # missing or damaged: the page shows the rest


def _names(saved: Sequence[Mapping[str, Any]]) -> list[str]:
    """The layer of each map: its block, or its path in the model where a block has several attentions or it has none.

    A block that a run visits more than once has a map for each visit.
    """
    paths: dict[object, set[object]] = {}
    for each in saved:
        paths.setdefault(each["layer"], set()).add(each.get("path"))
    names, seen = list[str](), Counter[str]()
    for each in saved:
        alone = each["layer"] is not None and len(paths[each["layer"]]) == 1
        name = f"block {each['layer']}" if alone else str(each.get("path") or "outside of the blocks")
        head = "" if each.get("head") is None else f", head {each['head']}"
        seen[name + head] += 1
        visit = seen[name + head]
        names.append(name + (f", visit {visit}" if visit > 1 else "") + head)
    return names


def _finite_table(table: Any) -> list[list[float | None]]:
    return [[None if value is None or not math.isfinite(value) else float(value) for value in row] for row in table]


# Pictures and sounds of predictions that runs have, for the page: `forecast`, `generate`, `eval` and `inspect` write
# them.

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
        if record.done and record.arm not in by_arm and (own := _pictures(record)):
            by_arm[record.arm] = own
    return [each for own in by_arm.values() for each in own][:MAX_PICTURES]


def _pictures(record: LoadedRun) -> list[PictureRow]:
    images = {name: _image(record, file) for name, file in FILES.items()}
    return [
        PictureRow(arm=record.arm, seed=record.seed, name=name, image=image) for name, image in images.items() if image
    ]


def _image(record: LoadedRun, file: str) -> str | None:
    """A PNG or WAV file as a data URL; None where it is missing, too large or none: the page shows the rest."""
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
    return f"data:{kind};base64,{base64.b64encode(content).decode()}" if content.startswith(begins) else None
