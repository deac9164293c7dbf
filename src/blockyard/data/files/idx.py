"""Reading idx files, the format of MNIST."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import torch
from torch import Tensor


def read_idx(path: Path) -> Tensor:
    """Read the uint8 array of an idx file, plain or gzipped.

    torchvision's reader takes no gzipped file and asserts where this one raises ValueError: for a file
    that is damaged, truncated or of another type.

    Source: LeCun, the MNIST database: two zero bytes, type 8 (uint8), number of axes, each axis'
    length as a big-endian 32-bit integer, then the values.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from error
    axes = data[3] if data[:3] == b"\x00\x00\x08" and len(data) > 3 else 0
    start = 4 + 4 * axes
    shape = [int.from_bytes(data[offset : offset + 4], "big") for offset in range(4, start, 4)]
    values = torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8) if len(data) > start else None
    if not axes or values is None or values.numel() != torch.Size(shape).numel():
        raise ValueError(f"{path} is not an idx file of uint8 values, or it is truncated; fetch it again")
    return values.reshape(shape)
