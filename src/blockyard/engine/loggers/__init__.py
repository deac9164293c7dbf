"""Loggers mirror the metrics of a run; the engine reaches them through `RunLog`.

The run folder's metrics.csv is always written; a logger of `conf/logger/`, or any Lightning `Logger`, mirrors it
elsewhere. In the main process, outside Lightning's per-step path:

    log = RunLog(folder, run_logger(config))    # raises UserError where a package or login is missing
    log.start()                                 # ids are in run.json before the first step
    log.log(step, {"train/loss": 0.7})          # floats only; microseconds, whatever the network does
    log.finish("done", summary)                 # state of the run; at most 12 s

Nothing that a logger does reaches the run: it lives in a thread of its own behind a queue, its first error is one
warning, and it is left out from then on. A new logger is one file here with a `RunLogger` and one YAML in
`conf/logger/`.
"""

from __future__ import annotations

from blockyard.engine.loggers.base import RunLogger
from blockyard.engine.loggers.configured import run_loggers
from blockyard.engine.loggers.run_log import RunLog

__all__ = ["RunLog", "RunLogger", "run_loggers"]
