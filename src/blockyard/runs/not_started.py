"""Why a run is not started: it is done, or it failed earlier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder


class AlreadyDoneError(UserError):
    """The requested run is already done and nothing was started; the command exits with code 0."""

    def __init__(self, folder: RunFolder, changed: Sequence[str] = ()) -> None:
        """changed: packages of the user's own with other code by now"""
        note = f"; the code of {', '.join(changed)} has changed since" if changed else ""
        super().__init__(f"{folder.path} is already done{note}; force=true runs it again (the old run is kept)")
        self.folder = folder


class FailedBeforeError(UserError):
    """The requested run failed earlier and nothing was started. reason: of that failure, where recorded."""

    def __init__(self, path: Path, reason: str | None) -> None:
        super().__init__(
            f"{path} failed earlier ({reason or 'no reason recorded'}); "
            f"resume={path} continues from its last checkpoint, force=true starts again"
        )
        self.reason = reason
