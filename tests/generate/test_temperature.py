"""Temperatures by which single precision cannot divide are refused; those at both ends of the range sample."""

from __future__ import annotations

import pytest
import torch

from blockyard.errors import UserError
from blockyard.generate.request import COLDEST, HOTTEST, check_options
from blockyard.generate.sampling import probabilities


@pytest.mark.parametrize("temperature", [1e-300, 1e-7, -1e-300, 1e300, float("inf"), float("nan"), -1.0])
def test_a_temperature_out_of_range_is_refused(temperature: float) -> None:
    with pytest.raises(UserError, match="temperature="):
        check_options(1, None, None, {"temperature": temperature})


@pytest.mark.parametrize("temperature", [COLDEST, 1.0, HOTTEST])
@pytest.mark.parametrize("top_k", [None, 2])
def test_a_temperature_of_the_range_is_a_distribution(temperature: float, top_k: int | None) -> None:
    check_options(1, None, None, {"temperature": temperature})
    for scores in (torch.tensor([0.0, 3.0, -8.0]), torch.tensor([1e30, -1e30, 0.0]), torch.zeros(3)):
        weights = probabilities(scores, temperature, top_k, None)
        torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
