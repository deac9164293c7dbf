"""Learning rate schedules against torch and transformers, and their edge cases."""

from __future__ import annotations

import importlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from blockyard.contracts import Schedule
from blockyard.schedule.constant import Constant
from blockyard.schedule.cosine import Cosine
from blockyard.schedule.cosine_restarts import CosineRestarts
from blockyard.schedule.linear import Linear
from blockyard.schedule.torch_scheduler import TorchScheduler
from blockyard.schedule.wsd import WSD
from tests.support.every import every
from tests.support.paths import CONF

YAMLS = sorted((CONF / "schedule").glob("*.yaml"))


def from_yaml(path: Path, **options: object) -> Schedule:
    node = yaml.safe_load(path.read_text())
    module, _, name = node.pop("_target_").rpartition(".")
    return getattr(importlib.import_module(module), name)(**{**node, **options})


def factors_of(schedule: Schedule, total: int) -> list[float]:
    return [schedule.factor(step, total) for step in range(total + 1)]


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_every_schedule_warms_up_from_above_zero_to_one_and_never_exceeds_it(path: Path) -> None:
    factors = factors_of(from_yaml(path, warmup=10), 100)
    expected = [(step + 1) / 11 for step in range(10)]
    assert factors[:10] == pytest.approx(expected)
    assert factors[10] == pytest.approx(1.0)
    assert min(factors[:-1]) > 0
    assert max(factors) <= 1.0
    # After the warm-up no factor increases, except where a cycle begins.
    rises = [after for before, after in pairwise(factors[10:]) if after > before + 1e-12]
    assert rises == ([1.0] * 3 if path.stem == "cosine_restarts" else [])


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_a_share_of_the_run_equals_the_number_of_steps(path: Path) -> None:
    assert factors_of(from_yaml(path, warmup=0.1), 200) == factors_of(from_yaml(path, warmup=20), 200)


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
@pytest.mark.parametrize("total", [1, 2, 5])
def test_a_run_may_be_shorter_than_its_warm_up(path: Path, total: int) -> None:
    assert every(0 <= factor <= 1 for factor in factors_of(from_yaml(path, warmup=1000), total))


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_a_rate_that_never_reaches_its_peak_is_told(path: Path) -> None:
    (remark,) = from_yaml(path, warmup=100).remarks(10)
    assert "schedule.warmup=100 is not over when the run ends after 10 steps: the learning rate reaches 0.099" in remark
    assert list(from_yaml(path, warmup=10).remarks(10))
    for warmup in (0, 9, 0.5):
        assert not list(from_yaml(path, warmup=warmup).remarks(10))


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_an_ambiguous_warm_up_of_1_0_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match=r"schedule.warmup=1.0 is ambiguous; use 1 for a number of steps"):
        from_yaml(path, warmup=1.0)


def test_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.1)
    expected = []
    for _ in range(51):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        torchs.step()
    assert factors_of(Cosine(warmup=0, final=0.1), 50) == pytest.approx(expected)


@pytest.mark.parametrize("multiplier", [1, 2, 3])
def test_cosine_restarts_is_torchs(multiplier: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    torchs = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=7, T_mult=multiplier, eta_min=0.1)
    expected = []
    for _ in range(71):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        torchs.step()
    ours = CosineRestarts(period=7, multiplier=multiplier, warmup=0, final=0.1)
    assert factors_of(ours, 70) == pytest.approx(expected)
    # A warm-up comes before the first cycle and moves all of them.
    assert factors_of(CosineRestarts(period=7, multiplier=multiplier, warmup=5, final=0.1), 75)[5:] == pytest.approx(
        expected
    )


def test_cosine_restarts_with_a_lower_peak_is_timms() -> None:
    from timm.scheduler import CosineLRScheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    timms = CosineLRScheduler(
        optimizer, t_initial=6, lr_min=0.05, cycle_mul=2.0, cycle_decay=0.5, cycle_limit=9, t_in_epochs=False
    )
    expected = [timms._get_lr(step)[0] for step in range(60)]
    ours = CosineRestarts(period=6, multiplier=2, peak=0.5, warmup=0, final=0.05)
    assert factors_of(ours, 59) == pytest.approx(expected)


def test_a_cycle_of_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"schedule.period=0 has no step"):
        CosineRestarts(period=0)


def test_linear_and_wsd_match_transformers_after_the_warm_up() -> None:
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    linear = transformers.get_linear_schedule_with_warmup(optimizer, 10, 60).lr_lambdas[0]
    assert factors_of(Linear(warmup=10), 60)[10:] == pytest.approx([linear(step) for step in range(10, 61)])
    wsd = transformers.get_wsd_schedule(
        optimizer, 10, 20, num_training_steps=100, min_lr_ratio=0.1, decay_type="linear"
    ).lr_lambdas[0]
    ours = factors_of(WSD(warmup=10, decay=20, shape="linear", final=0.1), 100)
    assert ours[10:100] == pytest.approx([wsd(step) for step in range(10, 100)])


def test_final_is_reached_at_the_end() -> None:
    for schedule in (Cosine(final=0.1), Linear(final=0.1), WSD(final=0.1)):
        assert schedule.factor(100, 100) == pytest.approx(0.1)
        assert schedule.factor(1000, 100) == pytest.approx(0.1)
    assert Constant().factor(100, 100) == 1.0


def test_shares_that_sum_to_more_than_the_run_are_refused() -> None:
    with pytest.raises(ValueError, match="sum to more than 1"):
        WSD(warmup=0.6, decay=0.6)


def test_the_default_decay_of_wsd_is_one_minus_the_root() -> None:
    wanted = [1.0] * 80 + [1 - 0.9 * ((step - 80) / 20) ** 0.5 for step in range(80, 101)]
    assert factors_of(WSD(warmup=0, decay=20, final=0.1), 100) == pytest.approx(wanted)
    with pytest.raises(ValueError, match=r"schedule\.decay=1\.0 is ambiguous"):
        WSD(decay=1.0)


def test_linear_ends_at_its_final_factor() -> None:
    wanted = [1 - 0.8 * step / 50 for step in range(51)]
    assert factors_of(Linear(warmup=10, final=0.2), 60)[10:] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("StepLR", {"step_size": 7, "gamma": 0.5}),
        ("MultiStepLR", {"milestones": [3, 30]}),
        ("ExponentialLR", {"gamma": 0.97}),
        ("CosineAnnealingLR", {"T_max": 40, "eta_min": 0.1}),
        ("CosineAnnealingWarmRestarts", {"T_0": 9, "T_mult": 2}),
        ("PolynomialLR", {"total_iters": 25, "power": 2.0}),
        ("LinearLR", {}),
    ],
)
def test_a_scheduler_of_torch_gives_the_rates_that_it_gives_a_training_loop(name: str, options: dict[str, Any]) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.3)
    scaled = {**options, "eta_min": 0.03} if "eta_min" in options else options
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **scaled)
    rates = []
    for _ in range(50):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    schedule = TorchScheduler(name=name, options=options, warmup=4)
    later = schedule.factor(40, 54)  # a resumed run begins in the middle
    factors = [schedule.factor(step, 54) for step in range(4, 54)]
    assert [0.3 * factor for factor in factors] == pytest.approx(rates, rel=1e-12, abs=1e-12)
    assert later == factors[36]


@pytest.mark.parametrize("name", ["CosineAnnealingLR", "PolynomialLR"])
def test_a_scheduler_of_torch_without_a_length_ends_with_the_run(name: str) -> None:
    schedule = TorchScheduler(name=name, warmup=0)
    assert schedule.factor(99, 100) == pytest.approx(0, abs=0.02)
    assert schedule.factor(199, 200) == pytest.approx(0, abs=0.02)
    assert schedule.factor(100, 200) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ReduceLROnPlateau", {}, "follows a metric"),
        ("StepLr", {}, "did you mean StepLR?"),
        ("StepLR", {"step": 3}, "schedule.options.step: StepLR has no such argument; did you mean step_size?"),
        ("StepLR", {}, "refuses its options: .*step_size"),
    ],
)
def test_a_scheduler_of_torch_that_cannot_be_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TorchScheduler(name=name, options=options)
