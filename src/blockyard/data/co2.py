"""Carbon dioxide in the air of Mauna Loa: 2,284 weekly values from 1958 to 2001, of which 59 are missing.

Source: Keeling et al. 1976, Atmospheric carbon dioxide variations at Mauna Loa Observatory
Reference: statsmodels.datasets.co2

One series with a trend and a season of 52 weeks, included in statsmodels; needs no network.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import Length
from blockyard.data.splits.series import SeriesData


@dataclass(kw_only=True, eq=False)
class Co2(SeriesData):
    """Weekly means of carbon dioxide in parts per million."""

    published_under = "public domain"

    history: Length = 104
    horizon: Length = 52

    @property
    def channel_names(self) -> Sequence[str]:
        """One channel."""
        return ("co2",)

    def read(self) -> Tensor:
        """Read the file of statsmodels directly: importing the package would take longer than training."""
        return torch.tensor([float(row["co2"] or "nan") for row in _read_records()], dtype=torch.float64)[:, None]

    def times(self) -> list[str] | None:
        """Return the Saturday of each week."""
        return ["-".join((row["date"][:4], row["date"][4:6], row["date"][6:8])) for row in _read_records()]


def _read_records() -> list[dict[str, str]]:
    package = importlib.util.find_spec("statsmodels")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("data=co2 reads a file of statsmodels: pip install statsmodels")
    path = Path(package.submodule_search_locations[0]) / "datasets" / "co2" / "co2.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
