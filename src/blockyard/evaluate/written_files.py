"""The written texts of a split in the run's folder, and their scores in its summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.atomic_files import write_text

if TYPE_CHECKING:
    from blockyard.evaluate.written import Written
    from blockyard.runs.load import Loaded


def write(loaded: Loaded, written: Written) -> tuple[Path, bool]:
    """Writes written-PART.jsonl into the run's folder; returns its path, and whether the summary has the scores.

    The summary is about one checkpoint and a whole split: scores of other weights, or of some batches, are not added.
    """
    beam = "" if written.beam is None else f"-beam{written.beam}"
    path = loaded.folder.path / f"written-{written.part}{beam}.jsonl"
    head = {"scores": written.scores, "beam": written.beam, "weights": loaded.weights, "step": loaded.step}
    samples = [
        {"source": source, "reference": reference, "written": text, "exact": text == reference}
        for source, reference, text in written.texts
    ]
    write_text(path, "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in (head, *samples)))
    summary = loaded.folder.summary()
    if not written.whole or not summary or summary.get("weights") != loaded.weights:
        return path, False
    summary["metrics"] = {**summary["metrics"], **written.metrics()}
    summary["directions"] = {**summary.get("directions", {}), **written.directions()}
    loaded.folder.write_summary(summary)
    return path, True
