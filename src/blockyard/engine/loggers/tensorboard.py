"""TensorBoard event files in the run folder, under `tensorboard/`.

`tensorboard --logdir outputs` shows all runs by their folders. A run with a group is also linked from
outputs/tensorboard/GROUP/NAME: `tensorboard --logdir outputs/tensorboard` shows a sweep's runs by arm and seed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockyard.config.tree import Node
from blockyard.contracts import Count
from blockyard.contracts.inherited_options import with_options_of
from blockyard.engine.loggers._grouped import GroupedLogger
from blockyard.engine.loggers.base import flatten, shown_name
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import slug


class TensorBoard(GroupedLogger):
    """Mirrors metrics to event files; `tensorboard --logdir outputs` shows all runs.

    Options:
        flush_seconds: seconds between two writes to disk
        group: groups runs, as those of a sweep; null for a run on its own
        name: of the run in its group; null is the config's name and the seed
    """

    package = "tensorboard"
    extra = "tensorboard"

    @with_options_of(GroupedLogger, without=("project",))
    def __init__(self, *, flush_seconds: Count = 10, **options: Any) -> None:
        super().__init__(**options)
        self.flush_seconds = flush_seconds
        self._purge: int | None = None  # the first step that a resumed run logs again
        self._writer: Any = None

    def prepare(self, folder: RunFolder) -> None:
        """Look up the last logged step of a resumed run, in the thread that writes metrics.csv."""
        last = folder.metrics.last_step if folder.resumes else None
        if last is not None:
            self._purge = last + 1

    def start(self, folder: RunFolder, config: Node) -> None:
        """Open the event file, with the config as a text table; values of a resumed run replace old ones."""
        from torch.utils.tensorboard import SummaryWriter

        directory = folder.path / "tensorboard"
        if self.group is not None:
            name = self.name or shown_name(folder)
            _link(folder.path.parents[1] / "tensorboard", self.group, name, directory)
        self._writer = SummaryWriter(str(directory), purge_step=self._purge, flush_secs=self.flush_seconds)
        table = "\n".join(f"| {key} | {value} |" for key, value in flatten(config).items())
        self._writer.add_text("config", f"| option | value |\n|---|---|\n{table}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Write the state and close."""
        self._writer.add_text("state", state)
        self._writer.close()

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Write images to an event file of their own, next to the run's scalars."""
        import numpy as np
        from PIL import Image
        from torch.utils.tensorboard import SummaryWriter

        step = folder.status.step or 0
        with SummaryWriter(log_dir=str(folder.path / "tensorboard")) as writer:
            for name, path in pictures.items():
                with Image.open(path, formats=("PNG",)) as image:
                    writer.add_image(name, np.asarray(image.convert("RGB")), global_step=step, dataformats="HWC")
        return f"TensorBoard: {len(pictures)} pictures in {folder.path / 'tensorboard'}"


def _link(root: Path, group: str, name: str, target: Path) -> None:
    """Make root/GROUP/NAME a link to a run's event files, in place of an older one; never out of `root`."""
    # A name with slashes makes folders, and `slug` leaves no dots that would lead out of `root`.
    link = root.joinpath(slug(group), *(slug(part) for part in name.split("/")))
    link.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    os.replace(fresh, link)
