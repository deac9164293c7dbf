"""Trains in a process of a run that is not the main one; it writes nothing but a note of how it ended."""

from __future__ import annotations

import logging

from blockyard.engine.ending import cause_of
from blockyard.engine.peers import symptom
from blockyard.engine.system.interrupts import Interrupted, Interrupts, silence_libraries
from blockyard.objective._named_metrics import import_torchmetrics
from blockyard.ops.kernel import attention_kernel
from blockyard.runs.folder import RunFolder
from blockyard.runs.rank import rank_in, started_by_run
from blockyard.runs.rank_notes import Note, write_note
from blockyard.runs.status import reason_of

log = logging.getLogger("blockyard")

_SECONDS = 20.0  # for the main process to record a reason and end


def train_worker_rank(folder: RunFolder, resume: bool) -> int:
    """Train until the run ends or this process fails; return its exit code, which is not that of the run."""
    import_torchmetrics(folder.config.get("allow") or ())
    from blockyard.engine.setup import ignore_metrics, prepare
    from blockyard.engine.system.processes import abort_rank

    silence_libraries()
    rank = rank_in(folder.config)
    job = None
    with Interrupts() as interrupts:
        try:
            with attention_kernel(folder.config["trainer"].get("attention", "auto")):
                job = prepare(folder, ignore_metrics, interrupts, resume=resume)
                job.fit()
        except Interrupted as stop:
            if job is None or not job.trained:  # alone: the others are to know why
                write_note(folder.path, Note(rank, str(stop), stop.signum))
                abort_rank(seconds=0, kill=False)
        except BaseException as error:
            interrupts.close()
            waited = symptom(error)
            write_note(folder.path, Note(rank, reason_of(cause_of(error)), waited=waited))
            seconds = _SECONDS
            if job is not None and waited:  # the note of the others tell more
                reason = job.peers.explain(error)
                write_note(folder.path, Note(rank, str(reason), waited=waited))
                log.warning("process %s: %s", rank, reason)
            else:
                log.warning("process %s failed: %s", rank, reason_of(cause_of(error)))
                seconds = max(_SECONDS, job.options.timeout if job else 0.0)
            abort_rank(seconds=seconds, kill=started_by_run())
            return 1
    return 0
