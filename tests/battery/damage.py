"""What can lie in place of a file: torn, flipped, foreign, hostile and special ones."""

from __future__ import annotations

import io
import os
import pickle
import random
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARKER = "EXECUTED"  # what hostile content would create in the working folder

Damage = Callable[[Path, Path], None]  # of a file, with the same file of another run


class _Hostile:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path(MARKER),))


def _flip(seed: int) -> Damage:
    def flip(path: Path, other: Path) -> None:
        data, chance = bytearray(path.read_bytes()), random.Random(seed)
        for _ in range(100):  # until a bit is hit that is not padding
            at = chance.randrange(len(data))
            if data[at]:
                data[at] ^= 1 << chance.randrange(7)
                break
        _put(path, bytes(data))

    return flip


def _cut(keep: float) -> Damage:
    return lambda path, other: _put(path, path.read_bytes()[: int(path.stat().st_size * keep)])


def _holds(data: bytes) -> Damage:
    return lambda path, other: _put(path, data)


def _put(path: Path, data: bytes) -> None:
    path.unlink()  # a second name of the file keeps its content
    path.write_bytes(data)


def _special(make: Callable[[Path], None]) -> Damage:
    def replace(path: Path, other: Path) -> None:
        path.unlink()
        make(path)

    return replace


def _socket(path: Path) -> None:
    # The address of a socket may have 107 letters only.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("x")


def _zip_bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("archive/data.pkl", "w") as entry:
        for _ in range(200):
            entry.write(bytes(1 << 20))
    return out.getvalue()


def _zeroed(path: Path, other: Path) -> None:
    data = path.read_bytes()
    _put(path, data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def _foreign(path: Path, other: Path) -> None:
    path.unlink()
    shutil.copy(other, path)


HTML = b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body>no such file</body></html>\n"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12345\n"
HUGE = b'{"a": ' + b"9" * 5000 + b"}"

TORN: dict[str, Damage] = {
    "empty": _holds(b""),
    "one byte": _cut(0.0001),
    "a tenth": _cut(0.1),
    "half": _cut(0.5),
    "without its end": lambda path, other: _put(path, path.read_bytes()[:-3]),
    "zeroed tail": _zeroed,
    "zeros": lambda path, other: _put(path, bytes(path.stat().st_size)),
    **{f"flip {seed}": _flip(seed) for seed in range(4)},
}
OTHER: dict[str, Damage] = {
    "garbage": _holds(random.Random(0).randbytes(3000)),
    "html": _holds(HTML),
    "lfs pointer": _holds(LFS),
    "pickle": _holds(pickle.dumps(_Hostile())),
    "zip bomb": lambda path, other: _put(path, _zip_bomb()),
    "utf-16": _holds('{"a": 1}'.encode("utf-16")),
    "list": _holds(b"[]\n"),
    "null": _holds(b"null\n"),
    "deep": _holds(b"[" * 20_000),
    "huge number": _holds(HUGE),
    "tag": _holds(b"a: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [EXECUTED]]\n"),
    "foreign": _foreign,
}
SPECIAL: dict[str, Damage] = {
    "missing": _special(lambda path: None),
    "pipe": _special(os.mkfifo),
    "device": _special(lambda path: path.symlink_to("/dev/zero")),
    "folder": _special(_folder),
    "socket": _special(_socket),
    "dangling link": _special(lambda path: path.symlink_to("nowhere")),
    "link to itself": _special(lambda path: path.symlink_to(path.name)),
}
DAMAGES: dict[str, Damage] = TORN | OTHER | SPECIAL


def _rewritten(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """A checkpoint whose content is changed; the file is whole and carries the stamp."""

    def rewrite(path: Path, other: Path) -> None:
        import torch

        content = torch.load(path, weights_only=True)
        change(content)
        path.unlink()
        torch.save(content, path)

    return rewrite


def _first_weight(content: dict[str, Any]) -> str:
    return next(name for name, value in content["state_dict"].items() if value.is_floating_point())


def _weight(change: Callable[[Any], Any]) -> Damage:
    def changed(content: dict[str, Any]) -> None:
        name = _first_weight(content)
        content["state_dict"][name] = change(content["state_dict"][name].clone())

    return _rewritten(changed)


def _filled(value: float) -> Callable[[Any], Any]:
    def filled(tensor: Any) -> Any:
        tensor.view(-1)[0] = value
        return tensor

    return filled


def _stamp(**entries: Any) -> Damage:
    return _rewritten(lambda content: content["blockyard"].update(entries))


def _state(change: Callable[[dict[str, Any]], Any]) -> Damage:
    return _rewritten(lambda content: change(content["callbacks"]["LoopCallback"]))


def _optimizer(change: Callable[[dict[str, Any]], Any]) -> Damage:
    return _rewritten(lambda content: change(content["optimizer_states"][0]))


# Weights that `eval` would load, and what only a resumed run needs.
WEIGHTS: dict[str, Damage] = {
    "other shape": _weight(lambda tensor: tensor[..., :-1]),
    "transposed": _weight(lambda tensor: tensor[None]),
    "nan": _weight(_filled(float("nan"))),
    "infinite": _weight(_filled(float("inf"))),
    "integers": _weight(lambda tensor: tensor.long()),
    "without storage": _weight(lambda tensor: tensor.to("meta")),
    "a list": _weight(lambda tensor: tensor.tolist()),
    "a weight less": _rewritten(lambda content: content["state_dict"].pop(_first_weight(content))),
    "a weight more": _rewritten(
        lambda content: content["state_dict"].update({"model.more": content["state_dict"][_first_weight(content)]})
    ),
    "no weights": _rewritten(lambda content: content["state_dict"].clear()),
    "weights as a list": _rewritten(lambda content: content.update(state_dict=[1])),
    "no stamp": _rewritten(lambda content: content.pop("blockyard")),
    "step in words": _stamp(step="many"),
    "step in a list": _stamp(step=[1]),
    "negative step": _stamp(step=-1),
    "true as step": _stamp(step=True),
    "huge step": _stamp(step=10**30),
    "another step": _stamp(step=1),
    "no step": _stamp(step=None),
    "another format": _stamp(format=99),
    "another run": _stamp(identity="0123456789"),
    "another seed": _stamp(seed=7),
}
TRAINING: dict[str, Damage] = {
    **{
        f"no {key}": _rewritten(lambda content, key=key: content.pop(key))
        for key in ("optimizer_states", "loops", "callbacks", "lr_schedulers", "epoch", "pytorch-lightning_version")
    },
    "no optimizer": _rewritten(lambda content: content.update(optimizer_states=[])),
    "empty optimizer": _optimizer(lambda state: state["state"].clear()),
    "optimizer of others": _optimizer(lambda state: state["param_groups"].pop()),
    "optimizer without groups": _optimizer(lambda state: state.pop("param_groups")),
    "optimizer of other shapes": _optimizer(
        lambda state: state["state"][0].update(exp_avg=state["state"][0]["exp_avg"].flatten()[:-1])
    ),
    "optimizer nan": _optimizer(lambda state: _filled(float("nan"))(state["state"][0]["exp_avg"])),
    "no loop": _rewritten(lambda content: content["loops"].clear()),
    "no progress": _rewritten(lambda content: content["loops"]["fit_loop"].pop("epoch_loop.batch_progress")),
    "progress of another step": _rewritten(
        lambda content: content["loops"]["fit_loop"]["epoch_loop.automatic_optimization.optim_progress"]["optimizer"][
            "step"
        ]["total"].update(completed=1)
    ),
    "no callbacks": _rewritten(lambda content: content["callbacks"].clear()),
    "no tally": _state(lambda state: state.pop("tally")),
    "no watchers": _state(lambda state: state["watchers"].clear()),
    "step of another": _state(lambda state: state.update(step=1)),
    "seconds in words": _state(lambda state: state.update(seconds="many")),
    "best in words": _state(lambda state: state["watchers"]["checkpoint"].update(value="many")),
}
