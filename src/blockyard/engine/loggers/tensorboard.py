"""TensorBoard event files in the run folder, under `tensorboard/`.

`tensorboard --logdir outputs` shows all runs by their folders. A run with a group is linked from
outputs/tensorboard/GROUP/NAME too: `tensorboard --logdir outputs/tensorboard` shows a sweep's runs by
arm and seed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockyard.contracts import Count
from blockyard.engine.loggers.base import RunLogger, flatten
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import slug


class TensorBoard(RunLogger):
    """Mirrors metrics to event files; `tensorboard --logdir outputs` shows all runs.

    Options:
        flush_seconds: how often rows are written out
        group: what runs are gathered under; None is for runs of no sweep
        name: how the run is called in its group; None is the config's name and the seed
    """

    package = "tensorboard"
    extra = "tensorboard"

    def __init__(self, *, flush_seconds: Count = 10, group: str | None = None, name: str | None = None) -> None:
        self.flush_seconds = flush_seconds
        self.group = group
        self.name = name
        self._purge: int | None = None  # the first step whose rows are said anew
        self._writer: Any = None

    def prepare(self, folder: RunFolder) -> None:
        """Ask where a resumed run stands, here in the run's own thread, which writes the table."""
        last = folder.metrics.last_step if folder.resumes else None
        self._purge = None if last is None else last + 1

    def start(self, folder: RunFolder, config: dict[str, Any]) -> None:
        """Open the event file, with the config as a text table; rows of a resumed run replace old ones."""
        from torch.utils.tensorboard import SummaryWriter

        here = folder.path / "tensorboard"
        if self.group is not None:
            name = self.name or f"{config.get('name') or folder.path.parent.name}/{folder.path.name}"
            _link(folder.path.parents[1] / "tensorboard", self.group, name, here)
        self._writer = SummaryWriter(
            log_dir=str(here),
            purge_step=self._purge,
            flush_secs=self.flush_seconds,
        )
        table = "\n".join(f"| {key} | {value} |" for key, value in flatten(config).items())
        self._writer.add_text("config", f"| option | value |\n|---|---|\n{table}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar per metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Write the state and close."""
        self._writer.add_text("state", state)
        self._writer.close()

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Images beside the run's scalars, in an event file of their own."""
        import numpy as np
        from PIL import Image
        from torch.utils.tensorboard import SummaryWriter

        step = folder.status.step or 0
        with SummaryWriter(log_dir=str(folder.path / "tensorboard")) as writer:
            for name, path in pictures.items():
                with Image.open(path) as image:
                    writer.add_image(name, np.asarray(image.convert("RGB")), global_step=step, dataformats="HWC")
        return f"TensorBoard: {len(pictures)} pictures in {folder.path / 'tensorboard'}"


def _link(root: Path, group: str, name: str, target: Path) -> None:
    """Make root/GROUP/NAME a link to a run's event files, in place of an older one; never out of `root`."""
    link = root.joinpath(slug(group), *(slug(part) for part in name.split("/")))
    link.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    os.replace(fresh, link)
