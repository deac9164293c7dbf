"""`blockyard eval`: a run's figures on one split, computed again from its checkpoint.

The same pass over the data as at the end of training (`engine.evaluation`), in the precision and
on the kind of device recorded there, so that on the same machine the figures are equal.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder

log = logging.getLogger("blockyard")

SPLITS = ("test", "validation", "train")
_PREFIX = {"test": "test/", "validation": "val/", "train": "train/"}
_LIMIT = {"test": "limit_test", "validation": "limit_val"}


def evaluate(
    run: str | os.PathLike[str] | RunFolder,
    *,
    split: str = "test",
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> dict[str, float]:
    """The metrics of a run's objective on a split, named as in its metrics.csv: `test/accuracy`.

    run: a path, a name, an id or the beginning of one, or `last`; which: "best", "last" or "previous"
    Raises UserError where the run, its checkpoint or its data are not there.
    """
    if split not in SPLITS:
        raise UserError(f"split={split!r}: takes one of {', '.join(SPLITS)}")
    from blockyard.engine.evaluation import evaluate as measure
    from blockyard.runs.load import load

    loaded = load(run, which=which, outputs=outputs, allow=allow)
    missing = loaded.data.missing()
    if missing:
        raise UserError(missing)
    # An unfinished run has no summary, but what was decided for it is in run.json.
    facts = loaded.folder.facts()
    summary = {key: facts[key] for key in ("precision", "data") if key in facts} | loaded.folder.summary()
    if "threads" not in summary and isinstance(facts.get("threads"), dict):
        summary["threads"] = facts["threads"].get("threads")
    options = loaded.plan.node("trainer")
    threads = _use_threads(summary.get("threads"))
    try:
        loaded.data.prepare()
        splits = loaded.data.load(loaded.tokenizer)
        _same_data(loaded.data.fingerprint(), summary)
        device = _device(summary, options.accelerator)
        found = measure(
            loaded.model.to(device),
            getattr(splits, split),
            loaded.objective,
            batch_size=loaded.data.eval_batch_size,
            device=device,
            precision=_precision(summary, options.precision),
            limit=getattr(options, _LIMIT[split]) if split in _LIMIT else None,
        )
    finally:
        _use_threads(threads)
    return {f"{_PREFIX[split]}{name}": value for name, value in found.items()}


def _precision(summary: dict[str, Any], asked: str | int) -> str:
    recorded = summary.get("precision")
    if isinstance(recorded, dict) and recorded.get("precision"):
        return str(recorded["precision"])
    return "32" if asked == "auto" else str(asked)


def _device(summary: dict[str, Any], accelerator: str) -> str:
    import torch

    recorded = summary.get("device")
    wants_gpu = recorded != "cpu" if recorded else accelerator != "cpu"
    if wants_gpu and torch.cuda.is_available():
        return "cuda"
    if recorded and recorded != "cpu":
        log.warning("the run was on %s, this is the CPU: figures may differ in the last digits", recorded)
    return "cpu"


def _use_threads(wanted: int | None) -> int:
    """Sums are ordered by the number of threads: take the run's, and give back what was set."""
    import torch

    before = torch.get_num_threads()
    if wanted and wanted != before:
        torch.set_num_threads(int(wanted))
    return before


def _same_data(fingerprint: str, summary: dict[str, Any]) -> None:
    recorded = (summary.get("data") or {}).get("fingerprint")
    if recorded and recorded != fingerprint:
        log.warning("the data is not what the run was trained on (%s, now %s)", recorded[:12], fingerprint[:12])
