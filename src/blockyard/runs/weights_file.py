"""Weights by name in a safetensors file: read whole or refused, written atomically. It holds no code.

A folder of a run may hold `model.safetensors` in the place of checkpoints: what `blockyard import` and
`blockyard export format=safetensors` write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.atomic_files import is_regular, replacing
from blockyard.errors import UserError, first_line

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"


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


def write_weights(path: Path, weights: Mapping[str, Tensor], facts: Mapping[str, str] | None = None) -> None:
    """Write tensors by name; those that share memory are written once each. Raises OSError.

    facts: texts in the header of the file
    """
    from safetensors.torch import save_file

    plain = {name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}
    with replacing(path) as temporary:
        save_file(plain, temporary, metadata={"format": "pt", **(facts or {})})
