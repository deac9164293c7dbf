"""`blockyard predict`: classes of new texts and images are those that the model gives on the run's own data."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from blockyard.cli import main
from blockyard.contracts import Inputs
from blockyard.evaluate.predict import predict
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load
from tests.support.engine_runs import run
from tests.support.every import every
from tests.support.tiny import ON_CPU, ONE_LAYER, steps
from tests.support.tolerances import float32

pytestmark = pytest.mark.xdist_group("predict")  # its runs are made once

TEXTS = [f"{text} {number}" for number in range(20) for text in ("buy gold now", "see you at lunch")]


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("table")
    lines = [f"{text}\t{'ham' if 'see' in text else 'spam'}" for text in TEXTS]
    (folder / "mails.tsv").write_text("\n".join(["body\tlabel", *lines]) + "\n")
    table = ("data=table", f"data.path={folder / 'mails.tsv'}", "data.text=body", "data.context=32", "tokenizer=char")
    shape = ("model=encoder", "head=mean_pool", "objective=classify", *ONE_LAYER, "data.batch_size=16")
    return run(folder, *ON_CPU, *table, *shape, "optimizer.lr=0.01", *steps(40, 40), base=())


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("images"))


def test_texts_have_the_classes_of_the_table(table_run: RunFolder) -> None:
    predictions, loaded = predict(table_run.path, ["buy gold now 77", "see you at lunch 5"])
    assert predictions.names == ["ham", "spam"]
    assert predictions.answers == ["spam", "ham"]
    ids = torch.tensor([loaded.tokenizer.encode("see you at lunch 5")])
    expected = loaded.model(Inputs(ids, lengths=torch.tensor([ids.shape[1]]))).double().softmax(-1)
    assert_close(
        predictions.probabilities[1:], expected, **float32(terms=64, layers=8)
    )  # alone, and padded beside a longer one


def test_lines_tables_and_texts_mean_the_same(table_run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("buy gold\nsee you\n")
    (tmp_path / "new.csv").write_text('body,other\nbuy gold,1\n"see you",2\n')
    (tmp_path / "other.jsonl").write_text('{"words": "buy gold"}\n{"words": "see you"}\n')
    expected, _ = predict(table_run.path, ["buy gold", "see you"])
    for name, column in (("new.txt", None), ("new.csv", None), ("other.jsonl", "words")):
        result, _ = predict(table_run.path, [str(tmp_path / name)], column=column)
        assert result.inputs == expected.inputs
        assert_close(result.probabilities, expected.probabilities)


def test_image_files_are_read_as_the_data_was(image_run: RunFolder, tmp_path: Path) -> None:
    """Pictures of the test split give what the split gives: 17 gray levels, normalized by the training split."""
    loaded = load(image_run)
    split = loaded.data.load(loaded.tokenizer).test
    for index in range(3):
        levels = split.images[index, 0].double() * 255 / 16
        Image.fromarray(levels.round().byte().numpy()).save(tmp_path / f"{index}.png")
    predictions, _ = predict(image_run.path, [str(tmp_path)])
    with torch.no_grad():
        expected = loaded.model(split.batch(torch.arange(3), None).inputs).double().softmax(-1)
    assert_close(predictions.probabilities, expected, **float32(terms=64, layers=8))
    assert predictions.inputs == [str(tmp_path / f"{index}.png") for index in range(3)]
    assert predictions.names == [str(index) for index in range(10)]


def test_the_command_writes_every_probability(
    table_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["predict", f"run={table_run.path}", "buy=gold now", "see you"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["input", "prediction", "p(ham)", "p(spam)"]
    assert [row[0] for row in rows[1:]] == ["buy=gold now", "see you"]
    assert every(abs(float(row[2]) + float(row[3]) - 1) < 1e-4 for row in rows[1:])
    monkeypatch.setattr("sys.stdin", io.StringIO("buy gold\n\nsee you\n"))
    assert main(["predict", f"run={table_run.path}", "-", f"out={tmp_path / 'p.csv'}"]) == 0
    assert f"2 predictions in {tmp_path / 'p.csv'}" in capsys.readouterr().out
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 3


def test_formulas_are_not_computed(table_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """An input that a spreadsheet would compute has an apostrophe in front; the run that was used is named."""
    assert (
        main(["predict", "run=last", f"outputs={table_run.path.parents[1]}", "=1+1", " @SUM(1)", "-1.5", "plain"]) == 0
    )
    done = capsys.readouterr()
    assert [row[0] for row in csv.reader(io.StringIO(done.out))][1:] == ["'=1+1", "' @SUM(1)", "'-1.5", "plain"]
    assert done.err.startswith(f"run=last: {table_run.name}\n")


def test_what_cannot_be_read_is_refused(
    table_run: RunFolder, image_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.csv").write_text("body\nfine\n  \n")
    (tmp_path / "bad.png").write_text("no picture")
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"gr\xfcn\n")
    cases = {
        (table_run, str(tmp_path / "bad.csv")): "bad.csv, line 3: no body",
        (table_run, str(tmp_path / "latin.txt")): "cannot be read as UTF-8 text",
        (table_run, "none.csv"): "no file none.csv",
        (table_run, ""): "input 1: no token is left of the text",
        (image_run, str(tmp_path / "bad.png")): "bad.png cannot be read as an image",
        (image_run, str(tmp_path / "empty")): "no image in this folder",
        (image_run, "none.png"): "no file or folder none.png",
        (image_run, "x" * 5_000): "no file or folder xxx",
        (image_run, "column=body"): "reads images, not tables",
    }
    for (each, argument), message in cases.items():
        inputs = [argument, "x.png"] if argument.startswith("column") else [argument]
        assert main(["predict", f"run={each.path}", *inputs]) == 2
        assert message in capsys.readouterr().err


def test_long_texts_are_cut_with_a_word(table_run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    long, _ = predict(table_run.path, ["buy gold now " * 9])
    assert "1 of 1 texts have more than 32 tokens" in caplog.text
    short, _ = predict(table_run.path, [("buy gold now " * 9)[:32]])
    assert_close(long.probabilities, short.probabilities)
