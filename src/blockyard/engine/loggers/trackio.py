"""Trackio: a local dashboard that needs no account (`trackio show`)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockyard.config.tree import Node
from blockyard.contracts import Text
from blockyard.contracts.inherited_options import with_options_of
from blockyard.engine.loggers._grouped import GroupedLogger
from blockyard.engine.loggers.base import flatten, presented
from blockyard.runs.folder import RunFolder


class Trackio(GroupedLogger):
    """Mirrors metrics to Trackio's local database; the config is flattened, it shows no nesting.

    Options:

        directory: of the database; null is Trackio's own, or TRACKIO_DIR

        name: of the run in its group; null is the run's folder
    """

    package = "trackio"
    extra = "trackio"

    @with_options_of(GroupedLogger)
    def __init__(self, *, directory: Text | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.directory = directory
        self._run: Any = None

    def start(self, folder: RunFolder, config: Node) -> None:
        """Open the record under the run's name; a resumed run continues it."""
        self._run = self._open(folder, config, resume="allow" if folder.resumes else "never")

    def _open(self, folder: RunFolder, config: Mapping[str, Any], *, resume: str) -> Any:
        if self.directory is not None:
            # Trackio reads it once, when it is imported.
            os.environ["TRACKIO_DIR"] = os.path.abspath(os.path.expanduser(self.directory))
        import trackio

        return trackio.init(
            project=self.project,
            name=self._record_name(folder),
            group=self.group or folder.path.parent.name,
            config=json.loads(json.dumps(flatten(config), default=str)),
            resume=resume,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def _record_name(self, folder: RunFolder) -> str:
        # Trackio finds a run to resume by its name alone, so the name must be unique.
        if not self.name:
            return folder.name
        return "/".join(filter(None, (self.group, self.name)))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log one row at this step."""
        self._run.log(dict(values), step=step)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Close the record."""
        self._run.finish()

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Log images in the run's own record, at its last step, or in a new record where it has none."""
        run = self._open(folder, presented(folder), resume="allow")
        import trackio

        run.log({name: trackio.Image(path) for name, path in pictures.items()}, step=folder.status.step or 0)
        run.finish()
        return f"Trackio: {len(pictures)} pictures in run {run.name} of project {self.project}"
