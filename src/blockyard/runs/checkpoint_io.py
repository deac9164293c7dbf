"""The CheckpointIO plugin for Lightning: atomic writes, verified reads.

Lightning's own writer stages in $TMPDIR; if that is another file system, a kill can leave a torn file. Here the
temporary file is in the folder of the target.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import CheckpointIO

from blockyard.atomic_files import is_regular, move_aside, replacing, sync_folder
from blockyard.runs.checkpoint import BEST, FORMAT, LAST, PREVIOUS, STAMP, Newest, read


class AtomicCheckpointIO(CheckpointIO):
    """Writes stamped checkpoints atomically; the old `last.ckpt` becomes `previous.ckpt`.

    identity, seed: of the run (`folder.identity`, `folder.seed`); loading a checkpoint of another run is refused.
        None accepts any

    Lightning calls it on rank 0 only, also under DDP and for the full state under FSDP. Sharded states are not written
    through it; keep `state_dict_type="full"`.
    """

    def __init__(self, *, identity: str | None = None, seed: int | None = None) -> None:
        self.identity = identity
        self.seed = seed

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write `checkpoint` to `path`. Raises OSError, leaving all old files, if it cannot."""
        if storage_options is not None:
            raise ValueError("storage_options are not supported: checkpoints lie in the run folder")
        path = Path(path)
        if path.is_dir() and not path.is_symlink():
            move_aside(path, "damaged")  # a file cannot replace a folder
        step = int(checkpoint.get("global_step") or 0)
        stamp = {"format": FORMAT, "identity": self.identity, "seed": self.seed, "step": step}
        try:
            with replacing(path) as temporary:
                torch.save({**_compact(checkpoint, {}), STAMP: stamp}, temporary)
                # Only now that the new file is whole, the old one gets its second name.
                if path.name == LAST and is_regular(path):
                    link(path, path.with_name(PREVIOUS))
        except (OSError, RuntimeError) as error:
            raise _with_cause(error, path) from error

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load and verify a checkpoint, always with `weights_only`. Raises BadCheckpointError."""
        device = "cpu" if map_location is None else map_location
        return read(os.fspath(path), identity=self.identity, seed=self.seed, map_location=device)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a file or a folder of shards, if it exists."""
        path = Path(path)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _compact(content: Any, copies: dict[tuple[int, torch.Size], torch.Tensor]) -> Any:
    """Return the content with copies of tensors that are parts of larger ones: torch would save the whole.

    copies: all made so far, so that shared tensors stay shared
    """
    if isinstance(content, torch.Tensor):
        if content.untyped_storage().nbytes() <= content.nbytes:
            return content
        # Such as a weight of stacked runs, which is part of the stack.
        return copies.setdefault((content.data_ptr(), content.shape), content.detach().clone())
    if type(content) in (dict, OrderedDict):
        return type(content)((name, _compact(value, copies)) for name, value in content.items())
    if type(content) in (list, tuple):
        return type(content)(_compact(value, copies) for value in content)
    return content


def link(source: Path, target: Path) -> None:
    """Give a checkpoint a second name, in place of another file. At every moment both names exist."""
    if target.is_dir() and not target.is_symlink():
        move_aside(target, "damaged")
    with contextlib.suppress(FileNotFoundError):
        # Renaming one link to a file over another one does nothing, and the temporary name would stay.
        if os.path.samestat(source.stat(), target.lstat()):
            return
    with replacing(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError:  # a file system without hard links
            shutil.copyfile(source, temporary)


def _with_cause(error: OSError | RuntimeError, path: Path) -> OSError | RuntimeError:
    # torch reports a full disk as "unexpected pos" or "file write failed", without the cause.
    writing = any(text in str(error) for text in ("PytorchStreamWriter", "write", "unexpected pos"))
    if isinstance(error, RuntimeError) and not writing:
        return error
    free = shutil.disk_usage(path.parent).free
    code = getattr(error, "errno", None) or errno.ENOSPC
    return OSError(
        code,
        f"the checkpoint could not be written ({error}; {free / 2**20:.0f} MiB free); older ones are unchanged",
        str(path),
    )


def repair(folder: Path, newest: Newest, best_step: int | None) -> list[str]:
    """Make the checkpoints in `folder` agree before a run is resumed, and return messages about it.

    A save writes best.ckpt, then previous.ckpt, then last.ckpt. After a kill in between, or after damage, they are from
    different steps. Here last.ckpt becomes the checkpoint that the run resumes from, so that the next save keeps it as
    previous.ckpt, and a run without a step left ends with the right one. Each change is atomic, and after it the same
    call would choose the same file, so a kill in between does no harm.

    newest: the checkpoint that the run resumes from; refused files are renamed, as last.ckpt to last.damaged.ckpt
    best_step: the step of the best weights so far, as the checkpoint says; they are restored if any file has them

    Raises OSError if the folder cannot be written.
    """
    assert newest.path is not None
    messages = []
    for bad in newest.refused:
        if os.path.lexists(bad.path):
            messages.append(f"{bad.path.name} is kept as {move_aside(bad.path, 'damaged').name}")
    sync_folder(folder)
    steps = dict(newest.steps)
    if best_step is not None and steps.get(BEST) != best_step:
        source = next((name for name, step in steps.items() if step == best_step), None)
        if source is None:
            messages.append(f"the best weights so far, those of step {best_step}, are lost with {BEST}")
        else:
            link(folder / source, folder / BEST)
    if newest.path.name != LAST:
        # `last` is usable but older: it becomes the one before.
        if LAST in steps and newest.path.name != PREVIOUS:
            link(folder / LAST, folder / PREVIOUS)
        link(newest.path, folder / LAST)
    return messages
