"""What a run would refuse of its data is refused by `check`, and a command leaves no folder of such a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import blockyard
from blockyard.cli import main
from blockyard.data.digits import Digits
from blockyard.engine.data_reader import DataReader
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from tests.support.tiny import ON_CPU, ONE_LAYER, SHORTEST, TINY, TRANSLATE, configured, steps

FEW = ("data.test_size=1000", "the test split has 359 samples")


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Overrides for a table of pairs without a header line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("".join(f"hello {n}\thallo {n}\n" for n in range(60)))
    return (*ON_CPU, *ONE_LAYER, *TRANSLATE, *steps(2, None), "data.path=pairs.tsv", "outputs=out")


def test_check_reads_what_the_options_ask_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    """A split that is too small is found by `check`; before, the run found it."""
    assert main(["check", *TINY, FEW[0]]) == 2
    assert FEW[1] in capsys.readouterr().err


def test_a_table_without_a_header_is_refused_and_the_advice_works(
    pairs: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` and `train` end with code 2 and leave no folder; the options that the message names train."""
    for command in ("check", "train"):
        assert main([command, *pairs]) == 2
        assert "data.source=1 data.target=2" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*"))
    assert main(["train", *pairs, "data.source=1", "data.target=2"]) == 0


def test_bad_data_leaves_the_run_that_force_would_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old run of the same config is where it was, with its results."""
    outputs = str(tmp_path)
    done = blockyard.train(*SHORTEST, outputs=outputs)
    monkeypatch.setattr(Digits, "load", refuse)
    with pytest.raises(UserError, match="no such digits"):
        blockyard.train(*SHORTEST, "force=true", outputs=outputs)
    assert RunFolder.open(done.path).finished
    assert [path.name for path in done.path.parent.iterdir() if path.is_dir()] == ["s0"]


def refuse(data: Digits, tokenizer: object) -> None:
    raise ValueError("no such digits")


def test_data_is_read_once_for_configs_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other batch sizes and optimizers do not read the files again."""
    loads, load = [], Digits.load
    monkeypatch.setattr(Digits, "load", lambda data, tokenizer: loads.append(1) or load(data, tokenizer))
    reader = DataReader()
    for override in ("optimizer.lr=0.1", "data.batch_size=32", "block=post_norm"):
        assert reader.read(configured(*TINY, override)[0]).train_samples == 1295
    assert len(loads) == 1
    assert reader.read(configured(*TINY, "data.test_size=1000")[0]).problem
    assert len(loads) == 2


def test_a_warm_up_that_outlasts_the_run_is_noted(pairs: tuple[str, ...]) -> None:
    """Also where the end is a number of epochs, and where the data is not read."""
    reader = DataReader()
    for end in ("trainer.max_steps=10", "trainer.max_epochs=2"):
        (note,) = reader.read(configured(*TINY, end, "schedule.warmup=10000")[0]).notes
        assert "schedule.warmup=10000 is not over when the run ends" in note
    assert not reader.read(configured(*TINY, "trainer.max_steps=10", "schedule.warmup=5")[0]).notes
    config, _ = configured(*pairs, "trainer.max_steps=10", "schedule.warmup=100")
    warmup, unread = DataReader(most_bytes=100).read(config).notes
    assert "is read by the run" in unread
    assert "after 10 steps" in warmup


def test_early_stopping_that_cannot_stop_is_noted() -> None:
    reader = DataReader()
    assert not reader.read(configured(*TINY, "trainer.eval_every=30")[0]).notes
    stopping = (*TINY, "callbacks=early_stopping")
    (note,) = reader.read(configured(*stopping, "trainer.eval_every=30")[0]).notes
    assert "trainer.eval_every=30, and the run has 30 steps" in note
    for every in ("29", "null"):
        assert not reader.read(configured(*stopping, f"trainer.eval_every={every}")[0]).notes


def test_large_files_are_left_to_the_run(pairs: tuple[str, ...]) -> None:
    """A reader with a limit says that it has not read them."""
    config, _ = configured(*pairs)
    facts = DataReader(most_bytes=100).read(config)
    assert facts.problem is None
    assert facts.train_samples is None
    assert "is read by the run" in str(facts.notes)
    assert DataReader(most_bytes=None).read(config).problem


def test_data_that_was_read_before_is_loaded_and_keeps_its_own_batch_size() -> None:
    """Its fingerprint names the file of its baselines."""
    reader = DataReader()
    first, _ = reader.splits(configured(*TINY)[0])
    second, _ = reader.splits(configured(*TINY, "data.batch_size=32")[0])
    assert second.data.fingerprint() == first.data.fingerprint()
    assert (first.data.batch_size, second.data.batch_size) == (64, 32)
