"""An encoder-decoder trained in moments, and what the verb writes from it: every way, one source and several."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import blockyard
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.generate.api import generate, generate_all
from blockyard.generate.request import check_device
from blockyard.runs.folder import RunFolder
from tests.support import engine_runs
from tests.support.every import every

pytestmark = pytest.mark.xdist_group("translating")  # its runs are made once

SOURCES = ["Nov 21, 2026", "January 3, 1999", "Saturday, May 5, 2018"]
DATES = (
    *("data=translation", "data.context=32", "data.source_context=32", "data.batch_size=16", "data.samples=200"),
    *("data.validation_size=40", "data.test_size=40"),  # of which the baselines compute scores
    *("model=encoder_decoder", "objective=translate", "optimizer.lr=2e-3"),
    *("trainer.max_steps=12", "trainer.eval_every=12"),
)
WAYS = {"greedy": ["temperature=0"], "drawn": ["temperature=4", "top_k=0", "seed=0"], "beam": ["beam=3"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return engine_runs.text_run(tmp_path_factory.mktemp("dates"), *DATES, "tokenizer=char", "position=sinusoidal")


def printed(capsys: pytest.CaptureFixture[str], run: RunFolder, *arguments: str) -> tuple[str, str]:
    """What the verb writes: text, and the line of figures."""
    assert main(["generate", f"run={run.path}", *arguments]) == 0
    spoken = capsys.readouterr()
    return spoken.out, spoken.err.strip().splitlines()[-1]


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
@pytest.mark.sampled(3)
def test_several_sources_are_what_each_is_alone(
    run: RunFolder, how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    together, line = printed(capsys, run, *how, *(f"source={source}" for source in SOURCES))
    assert "tokens/s, key-value cache, " in line
    written = re.split(r"^--- \d of 3: (.*)\n", together, flags=re.MULTILINE)[1:]
    assert written[::2] == SOURCES
    alone = []
    for number, source in enumerate(SOURCES):
        seeded = [f"seed={number}" if argument == "seed=0" else argument for argument in how]
        out, line = printed(capsys, run, *seeded, f"source={source}")
        alone.append(out)
        assert int(line.split()[0]) == len(out) - 1 <= 32
        assert printed(capsys, run, *seeded, f"source={source}", "cache=false")[0] == out
    assert written[1::2] == alone


@pytest.mark.parametrize(
    "tokenizer", ["char", "bpe", *(pytest.param(name, marks=pytest.mark.full) for name in ("word", "byte"))]
)
def test_a_start_that_is_likely_is_no_text(tmp_path: Path, tokenizer: str) -> None:
    """Trained for no step: what the head says of the start is put above all else."""
    run_folder = engine_runs.text_run(
        tmp_path, *DATES, f"tokenizer={tokenizer}", "trainer.max_steps=1", "trainer.eval_every=1"
    )
    loaded = blockyard.load(run_folder)
    tokens = loaded.model.ctx.tokens
    loaded.model.register_forward_hook(lambda _, __, scores: scores.index_fill(-1, torch.tensor([tokens.start]), 1e4))
    for how in ({"temperature": 0}, {"temperature": 4.0, "top_k": 0}, {"temperature": 1.0}, {"beam": 1}, {"beam": 3}):
        result = generate_all(loaded, sources=SOURCES, max_tokens=8, **how)
        assert every(list(result))
        assert any(row.token_ids for row in result.texts)
        assert every(symbol < tokens.start for row in result.texts for symbol in row.token_ids)
        assert every(loaded.tokenizer.decode(row.token_ids) == row.text for row in result.texts)


def test_a_prompt_longer_than_a_row_is_refused(run: RunFolder) -> None:
    with pytest.raises(UserError, match=r"the prompt has 33 tokens with its start token; .* takes at most 32"):
        generate(run, "1" * 32, source=SOURCES[0])
    generated = generate(run, "1" * 31, source=SOURCES[0], temperature=0)
    assert len("".join(generated)) <= 1


def test_a_device_that_is_not_there_is_refused(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", f"run={run.path}", f"source={SOURCES[0]}", "temperature=0"]
    assert main([*arguments, "device=cpu"]) == 0
    on_the_cpu = capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out == on_the_cpu
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for device, says in (
        ("cuda", "device=cuda: this machine has no CUDA device; use device=cpu"),
        ("tpu", "device=tpu: expected cpu, cuda, or one of several such as cuda:1"),
        ("cuda:x", "device=cuda:x: expected cpu, cuda"),
        ("", "device=: expected a text of at least one character"),
    ):
        assert main([*arguments, f"device={device}"]) == 2
        spoken = capsys.readouterr()
        assert says in spoken.err
        assert len(spoken.err.strip().splitlines()) == 1
        assert not spoken.out
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device("cuda:1")
    with pytest.raises(UserError, match="device=cuda:2: this machine has 2 cuda devices"):
        check_device("cuda:2")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("how", [WAYS["greedy"], WAYS["beam"]], ids=["greedy", "beam"])
def test_a_gpu_writes_the_same(run: RunFolder, how: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*how, *(f"source={source}" for source in SOURCES)]
    assert printed(capsys, run, *arguments, "device=cuda")[0] == printed(capsys, run, *arguments, "device=cpu")[0]


def test_a_run_that_answers_is_refused_with_the_reason(tmp_path: Path) -> None:
    arguments = ["data=associative_recall", "data.length=16", "data.pairs=2", "data.symbols=16", "data.samples=64"]
    small = ["data.eval_samples=16", "trainer.max_steps=1", "trainer.eval_every=1", "token_mixer.dropout=0"]
    parts = ["tokenizer=symbols", "model=decoder", "head=token", "objective=answer"]
    run_folder = engine_runs.run(tmp_path, *arguments, *small, *parts)
    with pytest.raises(UserError, match="predicts the answers in a sequence of symbols and does not generate one"):
        generate(run_folder, "1 2 3")
