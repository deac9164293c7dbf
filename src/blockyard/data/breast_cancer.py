"""Wisconsin breast cancer: 569 rows of 30 measurements of cell nuclei, malignant or benign, included in scikit-learn.

Source: Street, Wolberg and Mangasarian 1993, Nuclear feature extraction for breast tumor diagnosis
Reference: sklearn.datasets.load_breast_cancer
"""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import BatchSize, DataSpec, Splits, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.order import mix
from blockyard.data.splits.split import DrawnSplits, Fraction, stratified
from blockyard.data.splits.vectors import vector_splits

COLUMNS = 30
CLASSES = ("malignant", "benign")


@dataclass(kw_only=True, eq=False)
class BreastCancer(DrawnSplits, LoadedData):
    """The table that comes with scikit-learn; needs no file and no network.

    Options:
        validation_fraction: share of all rows that is the validation split
        test_fraction: share of all rows that is the test split
        split_seed: seed of the splits; independent of the run's seed, so that all seeds share them
        batch_size: rows in a training step, over all processes
        eval_batch_size: rows in a validation or test step, over all processes
    """

    published_under = "CC-BY-4.0"

    validation_fraction: Fraction = 0.15
    test_fraction: Fraction = 0.2
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256

    @property
    def spec(self) -> DataSpec:
        """Vectors with one of two classes."""
        return DataSpec("vector", (COLUMNS,), target="class", classes=len(CLASSES), class_names=CLASSES)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read the table, draw the splits, and standardize each column by the training rows."""
        values, target = _read_table()
        rest, test = stratified(target, self.test_fraction, mix("test", self.split_seed))
        share = self.validation_fraction / (1 - self.test_fraction)
        kept, held = stratified(target[rest], share, mix("validation", self.split_seed))
        parts = [part[self.kept(n, len(part), target[part])] for n, part in enumerate((rest[kept], rest[held], test))]
        inputs, targets = [values[part] for part in parts], [target[part] for part in parts]
        self._fingerprint = sha256([*inputs, *targets])
        names = [f"column {number + 1}" for number in range(COLUMNS)]
        return Splits(*vector_splits(inputs, targets, names, len(CLASSES)))


def _read_table() -> tuple[Tensor, Tensor]:
    """Return the measurements (569, 30) float64 and the classes (569,) int64.

    Importing scikit-learn takes longer than training on its table, so its file is read directly.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("data=breast_cancer reads a file of scikit-learn: pip install scikit-learn")
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "breast_cancer.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]  # behind the header
    table = torch.tensor([[float(cell) for cell in row] for row in rows], dtype=torch.float64)
    return table[:, :-1], table[:, -1].long()
