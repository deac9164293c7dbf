"""The options of loggers that list runs by group and name."""

from __future__ import annotations

from blockyard.contracts import Text
from blockyard.engine.loggers.base import RunLogger


class GroupedLogger(RunLogger):
    """A logger that lists a run under a project, with the runs of its group.

    Options:
        project: that lists the run
        group: groups runs; null is the arm, the same for all its seeds
        name: of the run; null is the config's name and the seed
    """

    def __init__(self, *, project: Text = "blockyard", group: Text | None = None, name: Text | None = None) -> None:
        self.project = project
        self.group = group
        self.name = name
