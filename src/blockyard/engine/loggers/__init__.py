"""Who is told of a run's metrics, and the one object the engine talks to.

The run folder's metrics.csv is always written; a logger of `conf/logger/` mirrors it elsewhere.
On rank zero, outside Lightning's per-step path:

    log = RunLog(folder, plan.node("logger"))   # raises UserError where a package or login is missing
    log.start()                                 # ids are in run.json before the first step
    log.log(step, {"train/loss": 0.7})          # floats only; microseconds, whatever the network does
    log.finish("done", summary)                 # state of the run; at most 12 s

Nothing a logger does reaches the run: it lives in its own thread behind a queue, its first error
is one warning, and it is left out from then on. A new logger is one file here with a `RunLogger`
and one YAML in `conf/logger/`.
"""

from __future__ import annotations

from blockyard.engine.loggers.base import RunLogger
from blockyard.engine.loggers.run_log import RunLog

__all__ = ["RunLog", "RunLogger"]
