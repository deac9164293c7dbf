"""What a run reads and writes between its setup and its first step: the checkpoint to resume, run.json."""

from __future__ import annotations

import logging
from pathlib import Path

from blockyard.atomic_files import write_json
from blockyard.engine.setup_data import Data, Run
from blockyard.engine.setup_model import Model
from blockyard.engine.summary import sizes
from blockyard.errors import UserError
from blockyard.runs.checkpoint import newest_good, verify
from blockyard.runs.folder import TOKENIZER, RunFolder
from blockyard.runs.lock import holder

log = logging.getLogger("blockyard")


def find_checkpoint(folder: RunFolder, rank: int, resume: bool) -> tuple[Path | None, int]:
    """The checkpoint to resume from and its step; None and 0 for a new run."""
    if rank:
        name = folder.facts()["start"]["checkpoint"]
        return (folder.checkpoints / name, verify(folder.checkpoints / name).step) if name else (None, 0)
    if not resume:
        return None, 0
    newest = newest_good(folder.checkpoints, identity=folder.identity, seed=folder.seed)
    if newest.refused:
        log.warning("%s", newest)
    if newest.path is None and newest.refused:
        raise UserError(f"no checkpoint of {folder.path} can be used: {newest}; force=true starts over")
    return newest.path, newest.step or 0


def record(run: Run, data: Data, model: Model, checkpoint: Path | None) -> None:
    """Write what other processes and later readers need, before the first step."""
    folder, components = run.folder, run.components
    fingerprint = components.data.fingerprint()
    recorded = folder.facts().get("data")
    if checkpoint is not None and isinstance(recorded, dict) and recorded.get("fingerprint") not in (None, fingerprint):
        raise UserError(
            f"the data of {folder.path} changed since the run began (fingerprint {recorded['fingerprint']}, now "
            f"{fingerprint}); restore the old data, or force=true starts over"
        )
    state = components.tokenizer.state()
    if state:
        write_json(folder.path / TOKENIZER, state)
    # Last: the other processes wait until the holder of the lock has written this.
    start = {"by": holder(folder.path), "checkpoint": checkpoint and checkpoint.name}
    facts = {"threads": model.threads, "precision": model.precision, "start": start}
    folder.add_facts(facts | {"data": {"fingerprint": fingerprint, **sizes(data.splits)}})
