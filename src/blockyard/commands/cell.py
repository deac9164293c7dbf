"""blockyard _cell RUN_DIR

Train from the frozen config in a run folder. This is how the processes of a distributed run are started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from blockyard.errors import UserError


def run(arguments: Sequence[str]) -> int:
    """Join the run in a folder. Raises UserError where no run has started this process."""
    from blockyard.engine.lightning.processes import ALLOW
    from blockyard.engine.run import train
    from blockyard.engine.system.process import end_with_parent
    from blockyard.runs.folder import RunFolder
    from blockyard.runs.load import check_allowed

    if len(arguments) != 1:
        raise UserError("_cell takes one run folder")
    allow = os.environ.get(ALLOW)
    if allow is None:
        raise UserError("_cell is started by `blockyard train` for a distributed run, not by hand")
    end_with_parent()
    folder = RunFolder.open(arguments[0])
    check_allowed(folder, json.loads(allow))  # the folder's own list of allowed packages is not trusted
    folder.foreign = False
    return train(folder, resume=folder.resumes)
