"""What a run writes between its setup and its first step: run.json, tokenizer.json, repaired checkpoints."""

from __future__ import annotations

import logging
from pathlib import Path

from blockyard.engine.resume_point import ResumePoint, restore_files
from blockyard.engine.setup_data import Data, Run
from blockyard.engine.setup_model import Model
from blockyard.engine.summary import sizes
from blockyard.errors import UserError
from blockyard.runs.folder import SOURCE_TOKENIZER, TOKENIZER
from blockyard.runs.lock import holder

log = logging.getLogger("blockyard")


def record(run: Run, data: Data, model: Model, point: ResumePoint) -> Path | None:
    """Write what other processes and later readers need, before the first step; return the checkpoint to load."""
    folder, components = run.folder, run.components
    fingerprint = components.data.fingerprint()
    recorded = folder.facts().get("data")
    if point.path is not None and isinstance(recorded, dict) and recorded.get("fingerprint") not in (None, fingerprint):
        raise UserError(
            f"the data of {folder.path} changed since the run began (fingerprint {recorded['fingerprint']}, now "
            f"{fingerprint}); restore the old data, or force=true starts over"
        )
    checkpoint = restore_files(folder, point)
    own = components.source_tokenizer is not components.tokenizer
    tokenizers = {TOKENIZER: components.tokenizer, **({SOURCE_TOKENIZER: components.source_tokenizer} if own else {})}
    for name, tokenizer in tokenizers.items():
        if state := tokenizer.state():
            folder.write_json(name, state)
    # Last: the other processes wait until the holder of the lock has written this.
    start = {"by": holder(folder.path), "checkpoint": checkpoint and checkpoint.name}
    facts = {"threads": model.threads, "precision": model.precision, "start": start}
    limits = components.data.limits()
    for limit in limits:
        log.warning("%s", limit)
    not_promised = {"limits": list(limits)} if limits else {}
    folder.add_facts(facts | {"data": {"fingerprint": fingerprint, **sizes(data.splits), **not_promised}})
    return checkpoint
