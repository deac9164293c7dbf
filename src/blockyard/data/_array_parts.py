"""Which rows of an array each split has: those that the file names, or drawn ones, equal rows together."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np
from torch import Tensor

from blockyard.data._array_file import names_of, read_array, refuse_rows
from blockyard.data._pair_file import NAMES
from blockyard.data._table_splits import log, split_rows, together

SPLIT = "split"


def split_array(
    path: Path, values: np.ndarray, target: Tensor, name: str, fractions: tuple[float, float], seed: int
) -> list[Tensor]:
    """Returns the indices of the rows of each split. Raises UserError for a class without a training row.

    target: (n,) int64 classes, or zeros; name: of the targets
    """
    assigned = None
    if path.suffix == ".npz" and SPLIT in names_of(path):
        splits = read_array(path, SPLIT, "split").astype(str)
        refuse_rows(path, SPLIT, f"none of {', '.join(NAMES)}", ~np.isin(splits, list(NAMES)))
        assigned = [NAMES[split] for split in splits]
    keys = [blake2b(row.tobytes(), digest_size=16).digest() for row in values]
    units, repeated = together(keys)
    if repeated:
        log.warning("%s: %d of %d rows repeat an earlier one", path, repeated, len(keys))
    parts = split_rows(path, target, assigned, fractions, seed, units)
    untrained = ~np.isin(target.numpy(), target[parts[0]].numpy())
    refuse_rows(path, name, "no training row has this class", untrained)
    return parts
