"""Share of the peak, memory and utilization of a device: a GPU that is not there, and a CPU with a stated peak."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_fabric.utilities.throughput import _CUDA_FLOPS

from blockyard.config.build import Components
from blockyard.engine import cost_card, setup_model
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.callbacks.device_stats import MFU, DeviceStats
from blockyard.engine.faults.interrupts import Interrupts
from blockyard.engine.setup import ignore_metrics, prepare
from blockyard.engine.setup_data import RunSetup
from blockyard.engine.setup_model import flops_on_device
from blockyard.engine.system.device_peak import PEAKS, known_peak, peak_record
from blockyard.runs.metrics import read_metrics
from tests.support.engine_runs import folder, rows, run
from tests.support.tiny import TINY, configured

GPU = torch.device("cuda", 0)
H200 = "NVIDIA H200"
STATS = ("callbacks=default", "callbacks.progress.bar=false", "callbacks.device_stats.seconds=0")
GIB = 2**30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 that is not there, with 6 GiB allocated at most, 8 GiB held, and 75 % of the last second in kernels."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: H200)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 6 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 8 * GIB)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 75)


def live(device: torch.device = GPU, **fields: Any) -> RunState:
    """Return a run of 10 samples a step on 4 devices of 100 TFLOP/s each, 1 TFLOP a sample."""
    learner: Any = SimpleNamespace(device=device)
    facts: dict[str, Any] = {"flops_per_sample": 10**12, "peak_flops": 4e14} | fields
    return RunState(learner, "x", Path("x"), 100, 10, 10, 16, "text", ("loss", "min"), **facts)


def read(callback: DeviceStats, state: RunState, step: int, seconds: float) -> dict[str, float]:
    state.step, state.seconds = step, seconds
    return callback.metrics(state)


def test_the_share_is_that_of_the_steps_since_the_last_reading(gpu: None) -> None:
    callback, state = DeviceStats(seconds=1.0), live()
    callback.on_run_start(state)
    assert read(callback, state, 1, 30.0) == {}  # with compilation
    assert read(callback, state, 5, 30.5) == {}  # too early
    # 20 steps of 10 samples of 1 TFLOP in 2 s are 100 of 400 TFLOP/s.
    measured = {"device/peak_memory_gib": 6.0, "device/reserved_gib": 8.0, "device/utilization": 0.75}
    assert read(callback, state, 21, 32.0) == pytest.approx(measured | {MFU: 0.25})
    assert read(callback, state, 61, 33.0)[MFU] == pytest.approx(1.0)
    callback.on_run_start(state)  # a process that resumes
    assert read(callback, state, 62, 90.0) == {}


@pytest.mark.parametrize("missing", ["flops_per_sample", "peak_flops"])
def test_without_a_peak_memory_is_logged_all_the_same(gpu: None, missing: str) -> None:
    callback, state = DeviceStats(seconds=0.0), live(**{missing: None})
    read(callback, state, 1, 1.0)
    assert set(read(callback, state, 2, 2.0)) == {"device/peak_memory_gib", "device/reserved_gib", "device/utilization"}


def test_a_driver_that_tells_no_utilization_is_asked_once(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def utilization(device: torch.device) -> int:
        calls.append(device)
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    callback, state = DeviceStats(seconds=0.0), live()
    for step in range(4):
        columns = read(callback, state, step, float(step))
    assert calls == [GPU]
    assert set(columns) == {MFU, "device/peak_memory_gib", "device/reserved_gib"}


def test_a_cpu_adds_nothing_but_the_share_of_a_stated_peak() -> None:
    state = live(torch.device("cpu"), peak_flops=None)
    callback = DeviceStats(seconds=0.0)
    read(callback, state, 1, 1.0)
    assert read(callback, state, 2, 2.0) == {}
    state.peak_flops = 1e14
    assert read(callback, state, 12, 3.0) == {MFU: pytest.approx(1.0)}


# -- the peak ---------------------------------------------------------------------------------------

NAMES = {  # as `torch.cuda.get_device_name` has them -> bf16, or fp16 where there is none, in TFLOP/s
    "NVIDIA H200": 989.4,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100-PCIE-40GB": 312.0,
    "NVIDIA A100 80GB PCIe": 312.0,
    "A100-SXM4-80GB": 312.0,
    "NVIDIA A10": 125.0,
    "NVIDIA A40": 149.7,
    "NVIDIA A30": 165.0,
    "NVIDIA L40S": 362.05,
    "NVIDIA L40": 181.05,
    "NVIDIA L4": 121.0,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 4080": 97.5,
    "NVIDIA GeForce RTX 3090": 71.0,
    "NVIDIA GeForce RTX 3080": 59.5,
    "Tesla V100-SXM2-32GB": 125.0,
    "Tesla V100-PCIE-16GB": 112.0,
    "Tesla T4": 65.0,
}
UNLIKE = (
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA A10G",
    "NVIDIA H20",
    "A1000",
)


def test_every_device_is_found_by_its_name_and_no_other_is() -> None:
    found = {}
    for name in NAMES:
        found[name] = (known_peak(name, "bf16") or known_peak(name, "fp16") or 0.0) / 1e12
    assert found == pytest.approx(NAMES)
    halves = {peaks.get("bf16", peaks["fp16"]) for peaks in PEAKS.values()}
    assert halves == set(NAMES.values())
    for name in UNLIKE:
        assert known_peak(name, "bf16") is None, name
    assert known_peak("Tesla V100-SXM2-32GB", "bf16") is None


SAME = {  # in the table of Lightning, where it has dense peaks of the same device
    "NVIDIA H100 80GB HBM3": "h100 sxm",
    "NVIDIA H100 PCIe": "h100 pcie",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA L4": "l4",
    "NVIDIA L40": "l40",
    "Tesla V100-SXM2-16GB": "v100 sxm",
    "Tesla V100-PCIE-16GB": "v100 pcie",
    "Tesla T4": "t4",
}


@pytest.mark.parametrize("name", SAME)
def test_peaks_agree_with_those_of_lightning(name: str) -> None:
    keys = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": "tfloat32", "fp32": torch.float32}
    theirs = _CUDA_FLOPS[SAME[name]]
    for arithmetic, key in keys.items():
        if key in theirs:
            assert known_peak(name, arithmetic) == pytest.approx(theirs[key], rel=1e-3), arithmetic
        else:
            assert known_peak(name, arithmetic) is None


def test_the_peak_is_that_of_the_precision(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    record = peak_record(GPU, "bf16-mixed", None)
    assert record is not None
    assert (record["device"], record["arithmetic"], record["flops"]) == (H200, "bf16", pytest.approx(989.4e12))
    by_precision = {}
    for precision in ("16-mixed", "32"):
        record = peak_record(GPU, precision, None)
        assert record is not None
        by_precision[precision] = record["arithmetic"]
    assert by_precision == {"16-mixed": "fp16", "32": "fp32"}
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    record = peak_record(GPU, "32", None)
    assert record is not None
    assert (record["arithmetic"], record["flops"]) == ("tf32", pytest.approx(494.7e12))


def test_an_unknown_device_says_what_to_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H300")
    record = peak_record(GPU, "bf16-mixed", None)
    assert record is not None
    assert record["flops"] is None
    assert record["why"] == "no peak of NVIDIA H300 in bf16 is known here; state it as trainer.peak_flops, in FLOP/s"
    stated = peak_record(GPU, "bf16-mixed", 2e15)
    assert stated == {"device": "NVIDIA H300", "arithmetic": "bf16", "flops": 2e15, "why": "trainer.peak_flops"}
    assert peak_record(torch.device("cpu"), "32", None) is None


# -- in a run ---------------------------------------------------------------------------------------


def test_a_stated_peak_changes_no_bit_of_a_run(tmp_path: Path) -> None:
    stated = run(tmp_path / "stated", *STATS, "trainer.peak_flops=1e12")
    plain = run(tmp_path / "plain", *STATS)
    assert stated.identity == plain.identity
    watched = rows(stated)
    logged = [row.pop(MFU) for row in watched[1:] if MFU in row]
    assert watched == rows(plain)
    assert len(logged) == len(watched) - 1
    summary = stated.summary()
    expected = summary["flops_per_sample"]["training"] * 64 / summary["step_seconds"] / 1e12
    assert summary["mfu"] == pytest.approx(expected)
    assert min(logged) > 0
    assert stated.facts()["peak"]["why"] == "trainer.peak_flops"
    assert plain.summary()["mfu"] is None
    assert "peak" not in plain.facts()


def test_the_peak_is_that_of_all_devices(tmp_path: Path) -> None:
    options = (*STATS, "trainer.peak_flops=1e12", "trainer.devices=2", "data.eval_batch_size=64")
    with Interrupts() as interrupts, folder(tmp_path, *options) as run_folder:
        job = prepare(run_folder, ignore_metrics, interrupts, resume=False)
    assert job.state.peak_flops == 2e12


def test_rows_have_the_share_by_their_own_seconds(tmp_path: Path) -> None:
    watched = run(tmp_path, *STATS, "trainer.peak_flops=1e12")
    table = read_metrics(watched.path / "metrics.csv")
    flops = watched.summary()["flops_per_sample"]["training"]
    for before, row in pairwise(table):
        seconds = row["seconds"] - before["seconds"]  # rounded to milliseconds
        expected = (row["samples"] - before["samples"]) * flops / 1e12
        assert row[MFU] * (seconds - 0.0011) <= expected <= row[MFU] * (seconds + 0.0011)


def test_too_little_memory_leaves_the_share_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    components = Components(configured(*TINY)[0])
    model = components.model(0)

    def count(network: torch.nn.Module, *arguments: Any, **options: Any) -> dict[str, int]:
        next(network.parameters()).grad = torch.ones_like(next(network.parameters()))
        raise torch.OutOfMemoryError

    monkeypatch.setattr(cost_card, "flops_per_sample", count)
    run_setup = RunSetup(None, components, components.node("trainer"))  # type: ignore[arg-type]
    splits = components.data.load(components.tokenizer)
    data: Any = SimpleNamespace(splits=splits, device=torch.device("cpu"))
    built = setup_model.BuiltModel(model, {"asked": 32, "precision": "32"}, {"asked": 1, "threads": 1})
    assert flops_on_device(run_setup, data, built) is None
    assert "device/mfu is left out" in caplog.text
    # The first step begins without gradients.
    assert [name for name, parameter in model.named_parameters() if parameter.grad is not None] == []
