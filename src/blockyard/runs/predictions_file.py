"""Predictions for the single samples of a split, in a file of the run's folder: predictions-test.npz.

`numpy.load("predictions-test.npz")` reads it without this project. The bytes are a function of the content alone.
"""

from __future__ import annotations

import json
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from blockyard.atomic_files import read_bytes, replacing

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES = 8 * 2**20  # of the arrays together, before compression; of more samples, as many as fit are kept
TEST = "predictions-test.npz"
Kind: TypeAlias = Literal["classes", "values", "tokens"]
SLICE = "slice"  # an array that only data with slices has
_META = "meta"
_FIELDS: dict[str, tuple[str, ...]] = {
    "classes": ("sample", "target", "loss", "top", "probability"),
    "values": ("sample", "target", "loss", "prediction"),
    "tokens": ("sample", "document", "count", "loss"),
}
_MATRICES = {"top", "probability", "prediction"}
# What numpy and zipfile raise for a damaged, encrypted or deeply nested file, besides OSError and ValueError.
_UNREADABLE = (
    *(KeyError, TypeError, AttributeError, EOFError, OverflowError, MemoryError, SyntaxError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)


@dataclass(frozen=True)
class SamplePredictions:
    """The predictions of one run for n samples of a split.

    kind: "classes", "values" or "tokens"
    arrays: by name, the first axis is the sample in every one:
        sample (n,) int32, its index in the split, increasing
        loss (n,) float32: for classes cross entropy in nats, for values the objective's own, NaN without a target
        of classes: target (n,) int32, -100 without one; top (n, K) int32, the K most probable classes, the most
            probable first; probability (n, K) float32
        of values: target and prediction (n, V) float32 in the units of the data, NaN without a target
        of tokens: loss is the sum over the targets of a sequence; count (n,) int32, how many these are; document (n,)
            int32, the text of the split that the sequence is from, or its own index where texts are not known
        slice (n,) int32, the number of the part of a mixture, or of the slice, that each sample is of; absent where the
            data has none
    meta: part, weights, step, of (samples of the pass; n of them are kept), classes (how many), slices (their names),
        fingerprint
    """

    kind: Kind
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]

    def __len__(self) -> int:
        return len(self.arrays["sample"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


def write_predictions(path: Path, predictions: SamplePredictions) -> None:
    """Write the file atomically. Raises OSError."""
    import numpy as np

    meta = json.dumps({"kind": predictions.kind, **predictions.meta}, sort_keys=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        arrays: dict[str, Any] = {**predictions.arrays, _META: np.array(meta)}
        np.savez_compressed(file, **arrays)


def read_predictions(path: Path) -> SamplePredictions:
    """Read the file. Raises FileNotFoundError, OSError, and ValueError for one that is damaged."""
    import io

    import numpy as np

    try:
        with np.load(io.BytesIO(read_bytes(path, 2 * MAX_BYTES)), allow_pickle=False) as archive:
            # No file was ever written that would unpack to more.
            if sum(member.file_size for member in archive.zip.infolist()) > 2 * MAX_BYTES:
                raise ValueError(f"it holds more than {2 * MAX_BYTES} bytes")
            meta = json.loads(str(archive[_META]))
            kind = meta.pop("kind")
            names = [*_FIELDS[kind]]
            if SLICE in archive:
                names.append(SLICE)
            arrays = {name: archive[name] for name in names}
        _check(kind, arrays)
    except _UNREADABLE as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return SamplePredictions(kind, arrays, meta)


def _check(kind: str, arrays: dict[str, np.ndarray]) -> None:
    """Raise ValueError if the arrays differ in kind from the ones that `write_predictions` writes."""
    import numpy as np

    count = len(arrays["sample"])
    for name, array in arrays.items():
        is_target = name == "target"
        is_matrix = name in _MATRICES or (kind == "values" and is_target)
        is_whole = name in ("sample", "top", "document", "count", SLICE) or (kind == "classes" and is_target)
        dimensions = 2 if is_matrix else 1
        dtype_kind = "i" if is_whole else "f"
        if array.ndim != dimensions or len(array) != count or array.dtype.kind != dtype_kind:
            raise ValueError(f"{name} is {array.dtype} {array.shape}")
    if kind == "classes" and (arrays["top"].shape != arrays["probability"].shape or not arrays["top"].shape[1]):
        raise ValueError(f"top is {arrays['top'].shape}, probability {arrays['probability'].shape}")
    if kind == "values" and arrays["prediction"].shape != arrays["target"].shape:
        raise ValueError(f"target is {arrays['target'].shape}, prediction {arrays['prediction'].shape}")
    if count and (int(arrays["sample"][0]) < 0 or bool((np.diff(arrays["sample"]) <= 0).any())):
        raise ValueError("the samples are not in increasing order")
