"""blockyard _cell RUN_DIR

Train from the frozen config in a run folder; how the processes of one run are started.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockyard.errors import UserError


def run(arguments: Sequence[str]) -> int:
    """Join the run whose folder is named."""
    from blockyard.engine.fit import train
    from blockyard.runs.folder import RunFolder

    if len(arguments) != 1:
        raise UserError("_cell takes one run folder")
    folder = RunFolder.open(arguments[0])
    return train(folder, resume=folder.resumes)
