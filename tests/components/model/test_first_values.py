"""First values of parameters that docstrings promise; tests of equations draw all weights anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.weight_init import initialise
from tests.support.helpers import context, factory


def first(name: str, options: dict[str, Any] | None = None, **sizes: Any) -> Any:
    """A token mixer with its first weights."""
    return initialise(factory("token_mixer", name, options or {})(context(**sizes)), 0)


def test_rates_of_mamba_are_those_of_s4d_real() -> None:
    mixer = first("selective_ssm", dim=64)
    assert_close(mixer.rate.exp(), torch.arange(1, 17).float().expand_as(mixer.rate))


def test_rates_and_steps_of_mamba2_are_spread() -> None:
    decay = first("mamba2", {"num_heads": 256, "value_dim": 1}, dim=64).decay
    rates, steps = decay.rate.detach().exp(), F.softplus(decay.step.detach())
    assert 1 <= rates.min() < 1.5
    assert 15 < rates.max() <= 16
    assert 9.9e-4 <= steps.min() < 1.5e-3
    assert 0.07 < steps.max() <= 0.1001


def test_lambdas_of_differential_attention_are_small() -> None:
    lambdas = first("differential_attention", dim=1024, heads=2).lambdas
    assert lambdas.std().item() == pytest.approx(0.1, rel=0.1)


def test_forget_gates_of_mlstm_are_open() -> None:
    assert_close(first("mlstm", causal=True).gate_bias[4:], torch.linspace(3, 6, 4))


def test_keys_of_slots_are_as_large_as_keys_of_tokens() -> None:
    slots = first("memory_attention", {"slots": 64}, dim=64)
    assert slots.keys.std().item() == pytest.approx(0.16, rel=0.1)


def test_inputs_of_fire_are_of_unit_size() -> None:
    fire: Any = initialise(factory("position", "fire", {"hidden": 256})(context(causal=True)), 0)
    assert fire.into.std().item() == pytest.approx(1, rel=0.15)


def test_sinkhorn_starts_by_reading_half_of_one_stream() -> None:
    options = {"mixing": "sinkhorn", "dynamic": False, "streams": 4}
    residual: Any = initialise(factory("residual", "hyper", options)(context(depth=5)), 0)
    streams = torch.eye(4)[None, None]
    for visit in range(5):
        x, _ = residual.read(type(residual.open(streams[:, :, 0]))(streams), visit)
        wanted = torch.full((4,), 0.5 / 3)
        wanted[visit % 4] = 0.5
        assert_close(x[0, 0], wanted)
