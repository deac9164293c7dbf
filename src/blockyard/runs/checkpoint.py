"""Checkpoint files: verified before they are loaded, written atomically.

A run keeps `last.ckpt`, `previous.ckpt` (the last one before) and `best.ckpt`. Each carries a stamp: the format, the
identity and seed of its run, and its step. Before a checkpoint is loaded, the CRC-32 of every record in the zip file is
checked (16 ms per 50 MB), because torch loads a flipped bit without an error. Loading never runs code: `weights_only`
is always on.

`check_weights`, `check_training_state` and `check_optimizer` compare the content of a checkpoint with the needs of a
run, before anything is loaded into the run. torch and Lightning find some of this while they load, when there is no way
back to another checkpoint, and some of it never: a run that misses the state of its callbacks goes on, to another
result. torch is imported late.

`checkpoint_io.AtomicCheckpointIO` writes them for Lightning. Its import takes seconds, and reading does without it.
"""

from __future__ import annotations

import os
import pickle
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blockyard.errors import UserError, first_line, quoted

if TYPE_CHECKING:
    from torch import nn

STAMP = "blockyard"
FORMAT = 1
LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
PREFIX = "model."  # of the names of the weights in a checkpoint
LOOP = "LoopCallback"  # whose state in a checkpoint holds the states of the run's callbacks

_PARTS: dict[str, type] = {"state_dict": dict, "optimizer_states": list, "loops": dict, "callbacks": dict}
_MORE: dict[str, type] = {"lr_schedulers": list, "epoch": int, "pytorch-lightning_version": str}
_PROGRESS = "epoch_loop.automatic_optimization.optim_progress"
_LOOPS = ("state_dict", "epoch_loop.state_dict", "epoch_loop.batch_progress", _PROGRESS, "epoch_progress")
_COUNTED = ("total", "current")
# Entries of torch's optimizers that are as large as the parameter.
_LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")


class BadCheckpointError(UserError):
    """A checkpoint that must not be loaded, and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}")
        self.path, self.reason = path, reason


class Stamp(NamedTuple):
    """The run that a checkpoint belongs to, and its optimizer step."""

    identity: str | None
    seed: int | None
    step: int


def verify(path: str | Path, *, identity: str | None = None, seed: int | None = None) -> Stamp:
    """Check that a file is complete, undamaged, written by blockyard and, if they are given, of this run.

    Raises BadCheckpointError with the reason, FileNotFoundError without a file.
    """
    path = Path(path)
    _check_whole(path)
    return _check_ours(path, load_content(path, mmap=True), identity, seed)


def read(
    path: str | os.PathLike[str],
    *,
    identity: str | None = None,
    seed: int | None = None,
    map_location: Any = "cpu",
) -> dict[str, Any]:
    """Load and verify a checkpoint. Raises BadCheckpointError with the reason, or FileNotFoundError."""
    path = Path(path)
    _check_whole(path)
    content = load_content(path, mmap=False, map_location=map_location)
    _check_ours(path, content, identity, seed)
    return content


def _check_whole(path: Path) -> None:
    try:
        status = path.stat()  # first, because opening a named pipe waits for a writer
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise BadCheckpointError(path, f"it cannot be read ({error.strerror or error})") from error
    if stat.S_ISDIR(status.st_mode):
        raise BadCheckpointError(path, "it is a folder of shards; save the full state (trainer state_dict_type=full)")
    if not stat.S_ISREG(status.st_mode):
        raise BadCheckpointError(path, "it is not a regular file but a pipe, a socket or a device")
    try:
        with zipfile.ZipFile(path) as archive:
            # torch stores records as they are; a small file that unpacks to a large one was not written by it.
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise BadCheckpointError(path, "it is a zip file but not a checkpoint: it is compressed")
            broken = archive.testzip()
            names = archive.namelist()
    except FileNotFoundError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, BadCheckpointError):
            raise
        reason = f"it is truncated or not a checkpoint ({status.st_size} bytes; {error})"
        raise BadCheckpointError(path, reason) from error
    except OSError as error:
        raise BadCheckpointError(path, f"it cannot be read ({error.strerror or error})") from error
    if broken is not None:
        raise BadCheckpointError(path, f"it is damaged: the checksum of {broken} is wrong")
    if not any(name.endswith("data.pkl") for name in names):
        raise BadCheckpointError(path, "it is a zip file but not a checkpoint")


def load_content(path: Path, *, mmap: bool, map_location: Any = "cpu") -> dict[str, Any]:
    """Load a file that was verified. Raises BadCheckpointError."""
    import torch

    try:
        content = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise BadCheckpointError(path, f"it holds more than tensors and plain values ({first_line(error)})") from error
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OSError) as error:
        raise BadCheckpointError(path, f"it cannot be read ({first_line(error)})") from error
    if not isinstance(content, dict):
        raise BadCheckpointError(path, "it is not a checkpoint of a training run")
    return content


def _check_ours(path: Path, content: dict[str, Any], identity: str | None, seed: int | None) -> Stamp:
    stamp = content.get(STAMP)
    if not isinstance(stamp, dict) or "state_dict" not in content:
        raise BadCheckpointError(path, "it was not written by blockyard")
    if stamp.get("format") != FORMAT:
        raise BadCheckpointError(path, f"its format is {stamp.get('format')!r}; this version reads {FORMAT}")
    step, counted = stamp.get("step"), content.get("global_step")
    # By `type`, because True is an int too.
    if type(step) is not int or type(counted) is not int or step != counted or step < 0:
        raise BadCheckpointError(path, f"its stamp says step {step!r:.40}, its content step {counted!r:.40}")
    checked = Stamp(stamp.get("identity"), stamp.get("seed"), step)
    if identity is not None and checked.identity != identity:
        raise BadCheckpointError(
            path, f"it belongs to another run (identity {quoted(checked.identity)}, expected {quoted(identity)})"
        )
    if seed is not None and checked.seed != seed:
        raise BadCheckpointError(path, f"it belongs to seed {checked.seed}, expected seed {seed}")
    return checked


@dataclass(frozen=True)
class Newest:
    """The newest usable checkpoint, or None, and the refused ones.

    steps: of every checkpoint that passed `verify`, by file name
    """

    path: Path | None
    step: int | None = None
    refused: list[BadCheckpointError] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        notes = [str(bad) for bad in self.refused]
        if self.path is not None and notes:
            notes.append(f"using {self.path.name} (step {self.step})")
        return "; ".join(notes)


def newest_good(
    folder: str | Path,
    *,
    identity: str | None = None,
    seed: int | None = None,
    check: Callable[[Path, dict[str, Any]], None] | None = None,
) -> Newest:
    """Return the checkpoint with the most steps among last, previous and best that passes `verify` and `check`.

    check: called with a path and its content, newest first; raises BadCheckpointError if the run cannot load it
    """
    refused: list[BadCheckpointError] = []
    steps: dict[str, int] = {}
    for name in (LAST, PREVIOUS, BEST):
        path = Path(folder) / name
        if not os.path.lexists(path):
            continue
        try:
            steps[name] = verify(path, identity=identity, seed=seed).step
        except FileNotFoundError:
            refused.append(BadCheckpointError(path, "it is a link to nothing"))
        except BadCheckpointError as bad:
            refused.append(bad)
    for name in sorted(steps, key=lambda name: -steps[name]):  # of equal steps, `last` first
        path = Path(folder) / name
        try:
            if check is not None:
                check(path, load_content(path, mmap=True))
        except BadCheckpointError as bad:
            refused.append(bad)
            continue
        for refusal in refused:
            steps.pop(refusal.path.name, None)
        return Newest(path, steps[name], refused, steps)
    return Newest(None, None, refused)


def average_in(content: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Return the weights that callbacks.NAME averaged, by a checkpoint's names. Raises UserError if there are none."""
    loop_state = (content.get("callbacks") or {}).get(LOOP)
    callbacks = loop_state.get("watchers") if isinstance(loop_state, dict) else None
    averages = {}
    if isinstance(callbacks, dict):
        for key, state in callbacks.items():
            if isinstance(state, dict) and isinstance(state.get("average"), dict):
                averages[str(key)] = state["average"]
    if name in averages:
        return {f"{PREFIX}{key}": tensor for key, tensor in averages[name].items()}
    hint = f"it has {', '.join(averages)}" if averages else "it has none; callbacks=ema keeps one in a new run"
    raise UserError(f"{path} has no average {name!r} of the weights: {hint}")


def load_weights(model: nn.Module, content: Mapping[str, Any], path: Path) -> None:
    """Load the weights in a checkpoint's content. Raises BadCheckpointError where they do not fit or are not finite."""
    saved = content["state_dict"]
    if not isinstance(saved, dict):
        raise BadCheckpointError(path, "its weights are not tensors by name")
    weights = {}
    for key, tensor in saved.items():
        if str(key).startswith(PREFIX):
            weights[str(key).removeprefix(PREFIX)] = tensor
    parameters = [name for name, _ in model.named_parameters()]
    check_weights(path, weights, model.state_dict(), parameters)
    model.load_state_dict(weights)


def check_weights(
    path: Path, weights: Any, expected: Mapping[str, Any], parameters: Sequence[str], *, more: bool = False
) -> None:
    """Raise BadCheckpointError unless `weights` are the tensors that `expected` has, and finite.

    expected: name to tensor; parameters: the names that must be finite, while a buffer may hold infinities
    more: whether there may be others
    """
    import torch

    if not isinstance(weights, dict) or not all(map(_plain, weights.values())):
        raise BadCheckpointError(path, "its weights are not tensors by name")
    both = expected.keys() & weights.keys()
    differences = {
        "lacks": sorted(expected.keys() - weights.keys()),
        "has unknown": [] if more else sorted(map(str, weights.keys() - expected.keys())),
        "has another shape of": sorted(name for name in both if expected[name].shape != weights[name].shape),
        "has another type of": sorted(name for name in both if _other_type(expected[name], weights[name])),
    }
    problems = []
    for difference, names in differences.items():
        if len(names) == 1:
            problems.append(f"{difference} {names[0]}")
        elif names:
            problems.append(f"{difference} {names[0]} and {len(names) - 1} more")
    if problems:
        raise BadCheckpointError(path, f"it belongs to another architecture: it {', '.join(problems)}")
    bad = [name for name in expected if _spoilt(weights[name], infinite=name in parameters)]
    if bad:
        first = weights[bad[0]]
        count = int((~torch.isfinite(first)).sum())
        reason = f"its weights are not finite: {count} of {first.numel()} values of {bad[0]}"
        if len(bad) > 1:
            reason += f" and {len(bad) - 1} more"
        raise BadCheckpointError(path, reason)


def check_training_state(path: Path, content: Mapping[str, Any], *, callback: str) -> None:
    """Raise BadCheckpointError where a part that Lightning saves is missing, or counts other steps than the stamp.

    callback: the key of the callback whose state the run needs to go on
    """
    for name, kind in {**_PARTS, **_MORE}.items():
        if name not in content:
            raise BadCheckpointError(path, f"it lacks {name}")
        if not isinstance(content[name], kind):
            raise BadCheckpointError(
                path, f"its {name} is a {type(content[name]).__name__}, expected a {kind.__name__}"
            )
    if not isinstance(content["callbacks"].get(callback), dict):
        raise BadCheckpointError(path, f"it lacks the state of the callbacks ({callback})")
    loop = content["loops"].get("fit_loop")
    missing = [name for name in _LOOPS if not isinstance(loop, dict) or not isinstance(loop.get(name), dict)]
    if missing:
        raise BadCheckpointError(path, f"it lacks the progress of training ({missing[0]} of loops.fit_loop)")
    try:
        steps = loop[_PROGRESS]["optimizer"]["step"]["total"]["completed"]
        batches, epochs = loop["epoch_loop.batch_progress"], loop["epoch_progress"]
        counts = [progress[key] for progress in (batches, epochs) for key in _COUNTED]
    except (KeyError, TypeError, IndexError):
        raise BadCheckpointError(path, "the progress of training in it is damaged (loops.fit_loop)") from None
    if steps != content["global_step"] or not all(isinstance(count, dict) for count in counts):
        raise BadCheckpointError(path, f"the progress of training in it is of step {steps!r:.40}")


def check_optimizer(path: Path, states: Sequence[Any], optimizer: Any, step: int) -> None:
    """Raise BadCheckpointError unless the one state in `states` is of `optimizer` over the same parameters.

    optimizer: a new one over the model of the run; it is left as it is. step: of the checkpoint
    """
    import torch

    groups = optimizer.param_groups
    try:
        (state,) = states
        saved, entries = state["param_groups"], state["state"]
        same = [len(group["params"]) for group in saved] == [len(group["params"]) for group in groups]
        lacks = [key for group in saved for key in ("params", "lr") if key not in group]
    except (ValueError, KeyError, TypeError):
        raise BadCheckpointError(
            path, f"it holds {len(states)} states of optimizers, or a damaged one; expected 1"
        ) from None
    if not same or lacks or not isinstance(entries, dict):
        raise BadCheckpointError(path, "the state of the optimizer in it is of other parameters")
    stateful = any("betas" in group or group.get("momentum") for group in groups)
    if step and stateful and not entries:
        raise BadCheckpointError(path, "it lacks the state of the optimizer")
    parameters = [parameter for group in groups for parameter in group["params"]]
    for index, entry in entries.items():
        if type(index) is not int or not 0 <= index < len(parameters) or not isinstance(entry, dict):
            raise BadCheckpointError(path, "the state of the optimizer in it is of other parameters")
        for name, value in entry.items():
            if not isinstance(value, torch.Tensor):
                continue
            if not _plain(value):
                raise BadCheckpointError(path, f"the state of the optimizer in it is damaged ({name} of {index})")
            if name in _LIKE_PARAMETER and value.shape != parameters[index].shape:
                raise BadCheckpointError(
                    path, f"the state of the optimizer in it has another shape ({name} of {index})"
                )
            if _spoilt(value, infinite=False):
                raise BadCheckpointError(path, f"the state of the optimizer in it is not a number ({name} of {index})")


def _plain(value: Any) -> bool:
    """Return whether a value is a tensor with numbers in it, as a model has."""
    import torch

    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type != "meta"


def _other_type(expected: Any, tensor: Any) -> bool:
    """Return whether a tensor's kind of numbers is not the model's; no run has floats of 8 bits or fewer."""
    if expected.is_floating_point() != tensor.is_floating_point():
        return True
    if expected.is_complex() != tensor.is_complex():
        return True
    return bool(expected.is_floating_point() and tensor.dtype.itemsize == 1)


def _spoilt(tensor: Any, *, infinite: bool) -> bool:
    """Return whether a tensor holds NaN or, if `infinite` counts too, an infinite value."""
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if infinite:
        return bool((~torch.isfinite(tensor)).any())
    return bool(torch.isnan(tensor).any())  # a buffer, such as a mask, may hold infinities
