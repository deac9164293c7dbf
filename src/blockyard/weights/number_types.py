"""The number types in which weights may be stored: floating-point types, of which float32 or float64 holds each value.

Integers and booleans are quantised weights without their scales, or no weights at all. Complex numbers would lose
their imaginary part. Numbers of 8 bits are converted exactly; where scales lie beside them they are quantised too.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SCALES = ("scale", "scale_inv", "absmax", "zero_point", "zeros", "scales")


@cache
def _eight_bits() -> frozenset[torch.dtype]:
    import torch

    return frozenset((torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz))


@cache
def _floating() -> frozenset[torch.dtype]:
    import torch

    return frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16)) | _eight_bits()


def is_low_precision(dtype: torch.dtype) -> bool:
    """Return whether float32 holds more values than this floating-point type."""
    return dtype in _floating() and dtype.itemsize < 4


def number_type_problem(name: str, dtype: torch.dtype, wanted: torch.dtype, names: Collection[str]) -> str | None:
    """Return the reason why a stored tensor cannot be copied into a model's tensor; None if it can.

    wanted: the type of the model's tensor; names: of all stored tensors, to see whether scales are among them
    """
    kind = str(dtype).removeprefix("torch.")
    if wanted not in _floating():
        if dtype == wanted:
            return None
        return f"{name} is {kind}, expected {str(wanted).removeprefix('torch.')}"
    if dtype not in _floating():
        return (
            f"{name} is {kind}, not floating point; quantised weights must be converted to float32, float16 or "
            "bfloat16 by the library that wrote them"
        )
    if dtype in _eight_bits():
        for scale in _scale_names(name):
            if scale in names:
                return (
                    f"{name} is {kind} with scales ({scale}), which are not read; convert it to float32, float16 or "
                    "bfloat16"
                )
    return None


def _scale_names(name: str) -> list[str]:
    """Return the names under which quantising libraries store the scales of a weight."""
    module, _, last = name.rpartition(".")
    stems = (f"{name}_", f"{name}.", f"{module}." if module and last == "weight" else "")
    return [f"{stem}{scale}" for stem in stems if stem for scale in (*_SCALES, "weight_scale", "weight_scale_inv")]
