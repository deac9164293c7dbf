"""What a checkpoint holds against what the run needs of it, before anything is loaded into the run.

torch and Lightning find some of this while they load, when there is no way back to another checkpoint, and some of
it never: a run that misses the state of its callbacks goes on, to another result. torch is imported late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blockyard.runs.checkpoint import BadCheckpointError

_PARTS: dict[str, type] = {"state_dict": dict, "optimizer_states": list, "loops": dict, "callbacks": dict}
_MORE: dict[str, type] = {"lr_schedulers": list, "epoch": int, "pytorch-lightning_version": str}
_PROGRESS = "epoch_loop.automatic_optimization.optim_progress"
_LOOPS = ("state_dict", "epoch_loop.state_dict", "epoch_loop.batch_progress", _PROGRESS, "epoch_progress")
_COUNTED = ("total", "current")
# Entries of torch's optimizers that are as large as the parameter.
_LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")


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
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(map(str, weights.keys() - expected.keys()))
    both = expected.keys() & weights.keys()
    other = sorted(name for name in both if expected[name].shape != weights[name].shape)
    kind = sorted(name for name in both if _other_type(expected[name], weights[name]))
    problems = [
        f"{what} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for what, names in (
            ("lacks", missing),
            ("has unknown", [] if more else extra),
            ("has another shape of", other),
            ("has another type of", kind),
        )
        if names
    ]
    if problems:
        raise BadCheckpointError(path, f"it belongs to another architecture: it {', '.join(problems)}")
    bad = [name for name in expected if _spoilt(weights[name], infinite=name in parameters)]
    if bad:
        first, more_of_them = weights[bad[0]], f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        count = int((~torch.isfinite(first)).sum())
        raise BadCheckpointError(
            path, f"its weights are not finite: {count} of {first.numel()} values of {bad[0]}{more_of_them}"
        )


def check_training_state(path: Path, content: Mapping[str, Any], *, callback: str) -> None:
    """Raise BadCheckpointError where a part that Lightning saves is missing, or counts other steps than the stamp.

    callback: the key of the callback without whose state the run cannot go on
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
        counts = [part[key] for part in (loop["epoch_loop.batch_progress"], loop["epoch_progress"]) for key in _COUNTED]
    except (KeyError, TypeError, IndexError):
        raise BadCheckpointError(path, "the progress of training in it is damaged (loops.fit_loop)") from None
    if steps != content["global_step"] or not all(isinstance(count, dict) for count in counts):
        raise BadCheckpointError(path, f"the progress of training in it is of step {steps!r:.40}")


def check_optimizer(path: Path, states: Sequence[Any], optimizer: Any, step: int) -> None:
    """Raise BadCheckpointError unless the one state in `states` is of `optimizer` over the same parameters.

    optimizer: a new one over the model of the run, which is left as it is; step: of the checkpoint
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
    """Whether a value is a tensor with numbers in it, as those of a model are."""
    import torch

    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type != "meta"


def _other_type(expected: Any, tensor: Any) -> bool:
    """Whether a tensor is not of the kind that a model has; no model of a run has floats of 8 bits or fewer."""
    if expected.is_floating_point() != tensor.is_floating_point() or expected.is_complex() != tensor.is_complex():
        return True
    return bool(expected.is_floating_point() and tensor.dtype.itemsize == 1)


def _spoilt(tensor: Any, *, infinite: bool) -> bool:
    """Whether a tensor holds NaN or, if `infinite` counts too, an infinite value."""
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    return bool((~torch.isfinite(tensor)).any() if infinite else torch.isnan(tensor).any())
