"""Reads safetensors files, alone or the shards of a folder.

Reference: https://huggingface.co/docs/safetensors; an index file lists the shards as Hugging Face writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.atomic_files import read_json
from blockyard.errors import UserError, first_line

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"


def files_of_folder(folder: Path) -> list[Path]:
    """The safetensors files of a folder: those that its index names, or all. Raises UserError for a bad index."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = {str(name) for name in read_json(index)["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise UserError(f"{index} is damaged ({type(error).__name__}: {first_line(error)})") from error
    outside = sorted(name for name in names if Path(name).name != name)
    if outside:
        raise UserError(f"{index} names {outside[0]!r}, which is not a file of its folder")
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise UserError(f"{index} names {missing[0]}, which is missing")
    return sorted(folder / name for name in names)


def read_files(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The tensors of all files by name. Raises UserError for a damaged file, or a name that two of them have."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for path in paths:
        try:
            own = load_file(path)
        except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
            raise UserError(f"{path} is not a safetensors file, or damaged ({first_line(error)})") from error
        twice = sorted(tensors.keys() & own.keys())
        if twice:
            folder = path.parent
            raise UserError(f"{folder}: {twice[0]} is in two of its files; name one of them, such as {path}")
        tensors |= own
    if not tensors:
        raise UserError(f"{paths[0]} holds no tensors")
    return tensors
