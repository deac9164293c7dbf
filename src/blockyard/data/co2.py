"""Carbon dioxide in the air of Mauna Loa: 2,284 weekly values from 1958 to 2001, of which 59 are missing.

Source: Keeling and Whorf 2004, Atmospheric CO2 concentrations derived from flask air samples at sites in the SIO
    network, Carbon Dioxide Information Analysis Center, Oak Ridge National Laboratory
Reference: statsmodels.datasets.co2, the same file

One series with a trend and a season of 52 weeks, in co2.csv beside this module; needs no network.
"""

from __future__ import annotations

import csv
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
        """Read the file; a missing value is NaN."""
        return torch.tensor([float(row["co2"] or "nan") for row in _read_records()], dtype=torch.float64)[:, None]

    def times(self) -> list[str] | None:
        """Return the Saturday of each week."""
        return ["-".join((row["date"][:4], row["date"][4:6], row["date"][6:8])) for row in _read_records()]


def _read_records() -> list[dict[str, str]]:
    with Path(__file__).with_name("co2.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
