"""`blockyard bench cost`: what grows how with the number of tokens, and what the command prints and refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

from blockyard.bench.cost import Cost, Subject, costs, crossing, crossings, exponent, peak, series
from blockyard.cli import main
from blockyard.errors import UserError
from tests.support.every import every

LENGTHS = (256, 512, 1024)
SMALL = ("model.dim=16", "model.heads=2", "model.depth=1")


@pytest.fixture(scope="module")
def measured() -> list[Cost]:
    mixers = ("attention", "conv", "linear_attention")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blockyard.bench.cost.milliseconds", lambda *_: 1.0)
        return list(costs(mixers, LENGTHS, kernels=("online", "eager"), overrides=SMALL))


def test_memory_of_attention_grows_with_the_square_and_online_with_the_tokens(measured: list[Cost]) -> None:
    memory = series(measured, "bytes")
    assert exponent(memory["attention (eager)"]) == pytest.approx(2, abs=0.1)
    assert exponent(memory["attention (online)"]) == pytest.approx(1, abs=0.1)
    assert memory["attention (online)"][1024] < memory["attention (eager)"][1024] / 4  # / 8 from 2,048 on


def test_convolution_and_linear_attention_are_linear(measured: list[Cost]) -> None:
    assert {cost.name for cost in measured} == {
        *("attention (eager)", "attention (online)"),
        *("conv", "linear_attention"),
    }
    for quantity in ("flops", "bytes"):
        for name in ("conv", "linear_attention"):
            assert exponent(series(measured, quantity)[name]) == pytest.approx(1, abs=0.1)
    flops = series(measured, "flops")
    assert exponent(flops["attention (eager)"]) > 1.8
    assert crossing(flops["attention (eager)"], flops["linear_attention"]) is not None
    assert any(sentence.startswith("conv is smaller than attention (online)") for sentence in crossings(measured))


def test_the_peak_is_what_is_allocated_at_once() -> None:
    def run() -> None:
        first = torch.zeros(1000)
        second = torch.zeros(3000)
        del first
        torch.zeros(500)
        del second

    assert peak(Subject(nn.Identity(), run), "cpu") == pytest.approx(4 * 4000, abs=256)


def test_exponents_and_crossings_of_known_costs() -> None:
    square, line = {n: 3.0 * n**2 for n in (8, 16, 32, 64)}, {n: 60.0 * n for n in (8, 16, 32, 64)}
    assert exponent(square) == pytest.approx(2)
    assert exponent({8: 1.0, 16: 2.0}) is None
    assert crossing(square, line) == pytest.approx(20)
    assert crossing(line, square) is None
    assert crossing(dict.fromkeys(square, 2.0), dict.fromkeys(square, 1.0)) == 0


@pytest.mark.full
def test_a_step_and_decoding_from_a_cache() -> None:
    for of in ("step", "decode"):
        rows = list(costs(("attention", "linear_recurrence"), (16, 32, 64), of=of, overrides=SMALL))
        assert [cost.tokens for cost in rows] == 2 * [16, 32, 64]
        assert every(cost.flops > 0 and cost.milliseconds > 0 for cost in rows)
    memory = series(rows, "bytes")
    assert memory["linear_recurrence"][16] == memory["linear_recurrence"][64]
    assert memory["attention (auto)"][64] > 2 * memory["attention (auto)"][16]


def test_the_command_prints_tables_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["token_mixer=attention,conv", "tokens=[16,32,64]", "kernels=auto,eager", f"out={tmp_path}"]
    assert main(["bench", "cost", *arguments, *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.count("attention (eager)") >= 3
    assert "exponent" in out
    assert (tmp_path / "cost.png").stat().st_size > 1000
    rows = list(csv.DictReader((tmp_path / "cost.csv").open()))
    assert {(row["token_mixer"], row["kernel"], row["tokens"]) for row in rows} == {
        *(("attention", kernel, n) for kernel in ("auto", "eager") for n in ("16", "32", "64")),
        *(("conv", "", n) for n in ("16", "32", "64")),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "bench needs what to do: cost"),
        (["cost"], "bench cost needs token_mixer=A,B"),
        (["cost", "token_mixer=attention", "tokens=[0,3]"], "expected whole numbers from 4 to 65536"),
        (["cost", "token_mixer=attention", "kernels=quick"], "of auto, sdpa, flex, online, eager"),
        (["cost", "token_mixer=attend"], "attend"),
        (["cost", "token_mixer=fourier", "tokens=[16]"], "token_mixer=fourier: "),
        (["cost", "token_mixer=attention", "data.context=9"], "data.context= has no effect on bench cost: use tokens="),
        (
            ["cost", "token_mixer=attention", "trainer.precision=bf16-mixed"],
            "trainer.precision= has no effect on bench",
        ),
        (["cost", "token_mixer=attention", "optimizer=lion"], "optimizer= has no effect on bench cost"),
        (["cost", "token_mixer=attention", "schedule.warmup=3"], "schedule.warmup= has no effect on bench cost"),
        (["cost", "token_mixer=attention", "tokens=[16]", "kernels=flex"], "FlexAttention is used on CUDA only"),
        (["cost", "token_mixer=none", "tokens=[16]"], "the model has no token mixer to measure"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments, *([f"out={tmp_path}"] if arguments else [])]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_refused_kernel_names_the_reason() -> None:
    with pytest.raises(UserError, match="has no dropout on the weights"):
        list(costs(("attention",), (16,), kernels=("online",), overrides=(*SMALL, "token_mixer.dropout=0.1")))
