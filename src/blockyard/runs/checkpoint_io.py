"""How Lightning writes and reads checkpoints here: atomically, in their own folder, verified.

Lightning's own writer stages in $TMPDIR; where that is another file system, a kill can leave a
torn file. Here the temporary file lies beside the target.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import CheckpointIO

from blockyard.atomic_files import replacing
from blockyard.runs.checkpoint import FORMAT, LAST, PREVIOUS, STAMP, read


class AtomicCheckpointIO(CheckpointIO):
    """Writes stamped checkpoints, all or nothing; what was `last.ckpt` becomes `previous.ckpt`.

    identity and seed are the run's (`folder.identity`, `folder.seed`); a checkpoint of another run
    is refused when it is loaded. None writes and accepts any.

    Lightning calls it on rank zero only, also under DDP and for the full state under FSDP. Sharded
    states are not written through it; keep `state_dict_type="full"`.
    """

    def __init__(self, *, identity: str | None = None, seed: int | None = None) -> None:
        self.identity = identity
        self.seed = seed

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write `checkpoint` to `path`. Raises OSError, and leaves every old file, where it cannot."""
        if storage_options is not None:
            raise ValueError("storage_options are for other file systems; checkpoints lie in the run folder")
        path = Path(path)
        step = int(checkpoint.get("global_step") or 0)
        stamp = {"format": FORMAT, "identity": self.identity, "seed": self.seed, "step": step}
        try:
            with replacing(path) as temporary:
                torch.save({**checkpoint, STAMP: stamp}, temporary)
                if path.name == LAST and path.exists():
                    _keep(path)
        except (OSError, RuntimeError) as error:
            raise _explained(error, path) from error

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The verified content; `weights_only` is always on. Raises BadCheckpoint."""
        where = "cpu" if map_location is None else map_location
        return read(path, identity=self.identity, seed=self.seed, map_location=where)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a file, or a folder of shards, if it is there."""
        path = Path(path)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _keep(last: Path) -> None:
    # A second name for the same file, so that at no moment there is no `last`.
    with replacing(last.with_name(PREVIOUS)) as temporary:
        try:
            os.link(last, temporary)
        except OSError:  # a file system without hard links
            shutil.copyfile(last, temporary)


def _explained(error: OSError | RuntimeError, path: Path) -> OSError | RuntimeError:
    # torch reports a full disk as "unexpected pos" or "file write failed", without the cause.
    writing = any(word in str(error) for word in ("PytorchStreamWriter", "write", "unexpected pos"))
    if isinstance(error, RuntimeError) and not writing:
        return error
    free = shutil.disk_usage(path.parent).free
    code = getattr(error, "errno", None) or errno.ENOSPC
    return OSError(
        code,
        f"the checkpoint could not be written ({error}; {free / 2**20:.0f} MiB free); older ones are as they were",
        str(path),
    )
