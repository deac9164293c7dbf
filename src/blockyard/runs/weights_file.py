"""Weights by name in safetensors files: read whole or refused, written atomically. They hold no code.

A folder of a run may hold `model.safetensors` in the place of checkpoints: the output of `blockyard import` and
`blockyard export format=safetensors` write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.atomic_files import is_regular, read_json, replacing
from blockyard.errors import UserError, first_line

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SYSTEM_ERROR = re.compile(r"\(os error (\d{1,6})\)")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name. Raises UserError for a file that is missing, damaged or of another format."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not is_regular(path):
        raise UserError(f"{path} is not a regular file; expected a safetensors file")
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged or no safetensors file ({first_line(error)})") from error


def shapes_of(paths: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of all files, by name, from their headers. Raises UserError as `read_weights` does."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in paths:
        if not is_regular(path):
            raise UserError(f"{path} is not a regular file; expected a safetensors file")
        try:
            with safe_open(path, framework="pt") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} is damaged or no safetensors file ({first_line(error)})") from error
    return shapes


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors by name; shared memory is written once. Raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}
    with replacing(path) as temporary:
        try:
            save_file(plain, temporary, metadata={"format": "pt"})
        except SafetensorError as error:  # which hides an error of the system: "I/O error: ... (os error 28)"
            match = _SYSTEM_ERROR.search(str(error))
            if match is None:
                raise
            code = int(match[1])
            raise OSError(code, os.strerror(code), str(path)) from error


def files_of_folder(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder: the ones in its index, or all. Raises UserError for a bad index.

    An index lists the shards of a folder, as Hugging Face writes them.
    Reference: https://huggingface.co/docs/safetensors
    """
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = sorted({str(name) for name in read_json(index)["weight_map"].values()})
        outside = []
        missing = []
        for name in names:
            if Path(name).name != name:
                outside.append(name)
            elif not (folder / name).is_file():
                missing.append(name)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise UserError(f"{index} is damaged ({type(error).__name__}: {first_line(error)})") from error
    if not names:
        raise UserError(f"{index} names no files")
    if outside:
        raise UserError(f"{index} names {outside[0]!r}, which is not a file of its folder")
    if missing:
        raise UserError(f"{index} names {missing[0]}, which is missing")
    return sorted(folder / name for name in names)


def read_files(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the tensors of all files by name. Raises UserError for a damaged file, or a name that two of them have."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for path in paths:
        try:
            tensors_of_file = load_file(path)
        except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
            raise UserError(f"{path} is not a safetensors file, or damaged ({first_line(error)})") from error
        twice = sorted(tensors.keys() & tensors_of_file.keys())
        if twice:
            folder = path.parent
            raise UserError(f"{folder}: {twice[0]} is in two of its files; name one of them, such as {path}")
        tensors |= tensors_of_file
    if not tensors:
        raise UserError(f"{paths[0]} holds no tensors")
    return tensors
