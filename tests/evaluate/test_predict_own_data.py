"""Data of one's own, from a file to the predictions for new rows: images by their paths, arrays, numbers and pairs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.cli import main
from blockyard.contracts import Inputs
from blockyard.runs.load import load
from tests.support.engine_runs import run
from tests.support.tables import write_pictures, write_rows
from tests.support.tiny import ON_CPU, ONE_LAYER, steps
from tests.support.untrained import untrained

SHORT = (*ON_CPU, *ONE_LAYER, "optimizer.lr=0.02", "data.batch_size=16", *steps(40, 40))
NUMBERS = ("tokenizer=columns", "position=none")


def predicted(capsys: pytest.CaptureFixture[str], folder: Path, *inputs: str) -> list[dict[str, str]]:
    capsys.readouterr()
    assert main(["predict", f"run={folder}", *inputs]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_images_by_their_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_pictures(tmp_path, 60)
    overrides = ("data=table", f"data.path={table}", "data.image=file", "data.size=8", "tokenizer=patch")
    run_folder = run(tmp_path, *SHORT, *overrides, base=())
    rows = predicted(capsys, run_folder.path, str(tmp_path / "0.png"), str(tmp_path / "1.png"))
    assert [row["prediction"] for row in rows] == ["dark", "bright"]
    assert list(rows[0])[2:] == ["p(bright)", "p(dark)"]


def test_rows_of_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draws = np.random.default_rng(0)
    names = np.array(["low", "high"])[np.arange(80) % 2]
    values = draws.normal(size=(80, 4)) + 3 * (names == "high")[:, None]
    np.savez(tmp_path / "x.npz", x=values, y=names)
    run_folder = run(tmp_path, *SHORT, "data=arrays", f"data.path={tmp_path / 'x.npz'}", *NUMBERS, base=())
    np.save(tmp_path / "new.npy", np.array([[-1.0] * 4, [4.0] * 4]))
    predictions = predicted(capsys, run_folder.path, str(tmp_path / "new.npy"))
    assert [(row["input"], row["prediction"]) for row in predictions] == [
        (f"{tmp_path / 'new.npy'}, row 0", "low"),
        (f"{tmp_path / 'new.npy'}, row 1", "high"),
    ]
    np.save(tmp_path / "wide.npy", np.zeros((2, 5)))
    assert main(["predict", f"run={run_folder.path}", str(tmp_path / "wide.npy")]) == 2
    assert "rows of shape (5,)" in capsys.readouterr().err


INPUTS = {
    "symbols": (np.random.default_rng(0).integers(0, 7, (60, 6)), "tokenizer=symbols"),
    "image": ((np.arange(60 * 64).reshape(60, 8, 8) % 251).astype(np.uint8), "tokenizer=patch"),
    "vector": (np.linspace(-1, 1, 300, dtype=np.float32).reshape(60, 5), "tokenizer=columns"),
}
BAD: list[tuple[str, Any, str]] = [
    ("symbols", np.full((2, 6), 50), "a token id below 0 or from data.vocabulary=7 on"),
    ("symbols", np.full((2, 6), -1), "a token id below 0 or from data.vocabulary=7 on"),
    ("symbols", np.full((2, 6), 1.7), "cannot be read as symbols"),
    ("symbols", np.full((2, 6), np.nan), "cannot be read as symbols"),
    ("image", np.full((2, 8, 8), 0.5), "cannot be read as image"),
    ("vector", np.full((2, 5), np.inf), "rows 0, 1 (from 0): an infinite value"),
    ("vector", np.full((2, 5), "a"), "inputs are numbers, 2 to 4 axes"),
]


@pytest.mark.parametrize("kind", INPUTS)
def test_rows_that_are_not_what_a_run_reads_are_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, tokenizer = INPUTS[kind]
    np.savez(tmp_path / "x.npz", x=values, y=np.arange(60) % 2)
    overrides = ["data=arrays", f"data.path={tmp_path / 'x.npz'}", tokenizer, "model=encoder", "objective=classify"]
    sizes = ["head=mean_pool", "position=none", "model.dim=16", "model.depth=1", "model.heads=2"]
    path = untrained(tmp_path / "run", *overrides, *sizes)
    np.savez(tmp_path / "new.npz", x=values[:3])
    assert main(["predict", f"run={path}", str(tmp_path / "new.npz")]) == 0
    for own, new, message in BAD:
        if own == kind:
            np.savez(tmp_path / "new.npz", x=new)
            assert main(["predict", f"run={path}", str(tmp_path / "new.npz")]) == 2
            assert message in capsys.readouterr().err


def test_columns_of_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draws = np.random.default_rng(0)
    rows = [{"a": float(draws.normal() + 4 * (n % 2)), "b": n % 7, "label": ("no", "yes")[n % 2]} for n in range(80)]
    overrides = ("data=table", f"data.path={write_rows(tmp_path / 'x.csv', rows)}", "data.columns=[a,b]", *NUMBERS)
    run_folder = run(tmp_path, *SHORT, *overrides, base=())
    new = write_rows(tmp_path / "new.csv", [{"b": 3, "a": -0.5}, {"b": "", "a": 4.5}])
    assert [row["prediction"] for row in predicted(capsys, run_folder.path, str(new))] == ["no", "yes"]
    assert main(["predict", f"run={run_folder.path}", str(write_rows(tmp_path / "y.csv", [{"a": "x", "b": 1}]))]) == 2
    assert "line 2: a is not a number, such as 'x'" in capsys.readouterr().err


def test_values_in_the_units_of_the_data_also_after_the_data_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    draws = np.random.default_rng(0)
    values = draws.normal(size=(80, 2))
    rows = [{"a": float(a), "b": float(b), "price": 500 + 100 * a, "age": -3 + 0.1 * b} for a, b in values]
    table = write_rows(tmp_path / "x.csv", rows)
    overrides = (
        "data=table",
        f"data.path={table}",
        "data.columns=[a,b]",
        "data.target=[price,age]",
        "objective=regress",
    )
    run_folder = run(tmp_path, *SHORT, *overrides, *NUMBERS, base=())
    new = write_rows(tmp_path / "new.csv", [{"a": -1.0, "b": 0.0}, {"a": 1.0, "b": 2.0}])
    result = predicted(capsys, run_folder.path, str(new))
    assert list(result[0]) == ["input", "price", "age"]
    # A line is learned roughly: half of the way from the mean, in units of the data.
    assert float(result[0]["price"]) < 450 < 550 < float(result[1]["price"])
    assert float(result[0]["age"]) < -2.9 < float(result[1]["age"])
    assert main(["eval", f"run={run_folder.path}"]) == 0
    before = capsys.readouterr().out

    (tmp_path / "moved").mkdir()
    moved = table.rename(tmp_path / "moved" / "y.csv")
    assert main(["eval", f"run={run_folder.path}"]) == 2
    assert predicted(capsys, run_folder.path, f"data.path={moved}", str(new)) == result
    assert main(["eval", f"run={run_folder.path}", f"data.path={moved}"]) == 0
    assert capsys.readouterr().out == before
    assert "differs" not in caplog.text
    write_rows(moved, rows[::-1])
    assert main(["eval", f"run={run_folder.path}", f"data.path={moved}"]) == 0
    assert "the data differs from what the run was trained on" in caplog.text
    capsys.readouterr()
    assert main(["eval", f"run={run_folder.path}", f"data.splits={moved}"]) == 2
    assert "data.splits: the data of" in capsys.readouterr().err


def test_pairs_of_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": f"{n} men", "pair": ("sit", "run")[n % 2] + f" {n}", "label": n % 2} for n in range(80)]
    table = write_rows(tmp_path / "x.tsv", rows)
    overrides = ("data=table", f"data.path={table}", "data.pair=pair", "tokenizer=byte", "data.context=24")
    run_folder = run(tmp_path, *SHORT, *overrides, base=())
    new = write_rows(tmp_path / "new.tsv", [{"text": "5 men", "pair": "run 9"}, {"text": "5 men", "pair": "sit 9"}])
    result = predicted(capsys, run_folder.path, str(new))
    assert [(row["input"], row["prediction"]) for row in result] == [("5 men | run 9", "1"), ("5 men | sit 9", "0")]
    assert main(["predict", f"run={run_folder.path}", "5 men"]) == 2
    assert "reads two texts an input; give a table with the columns text and pair" in capsys.readouterr().err


def _same(rows: list[dict[str, str]], prediction: torch.Tensor, *, softmax: bool = True) -> None:
    """What was printed is what the model gives for the run's own split, to the six digits that are printed."""
    expected = prediction.double().softmax(-1) if softmax else prediction.double()
    columns = [name for name in rows[0] if name not in ("input", "prediction")]
    printed = torch.tensor([[float(row[name]) for name in columns] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(printed, expected, rtol=1e-4, atol=1e-5)


def test_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The test molecules, from a file without targets, are predicted as those of the split."""
    lines = []
    for number in range(30):
        size = 3 + number % 4
        atoms = [[6 + (number + i) % 3, i % 2] for i in range(size)]
        bonds = [[i, i + 1, 1 + (i + number) % 2] for i in range(size - 1)]
        split = ("train", "val", "test")[max(0, number - 27)] if number > 26 else "train"
        lines.append({"atoms": atoms, "bonds": bonds, "y": [100.0 + number], "split": split})
    path = tmp_path / "x.graphs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    overrides = ("data=molecules", f"data.path={path}", "tokenizer=nodes", "position=graph", "objective=regress")
    shape = ("head=mean_pool", *ON_CPU, *ONE_LAYER, "optimizer.lr=0.02", *steps(20, 20))
    run_folder = run(tmp_path, *shape, *overrides, base=())
    new = tmp_path / "new.graphs.jsonl"
    new.write_text("".join(json.dumps({key: line[key] for key in ("atoms", "bonds")}) + "\n" for line in lines[-2:]))
    predictions = predicted(capsys, run_folder.path, str(new))
    loaded = load(run_folder)
    splits = loaded.components.load()
    with torch.no_grad():
        expected = torch.cat([loaded.model(split.batch(torch.arange(1), None)) for split in splits[1:]])
    _same(predictions, expected.double() * splits.test.std + splits.test.mean, softmax=False)
    assert [row["input"] for row in predictions] == [f"{new}, line {n}" for n in (1, 2)]
    new.write_text('{"atoms": [[6]], "bonds": []}\n')
    assert main(["predict", f"run={run_folder.path}", str(new)]) == 2
    assert "line 1: atoms of 1 numbers; the run reads atoms of 2" in capsys.readouterr().err


def test_series_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of different lengths, standardized as the training series were."""
    draws = np.random.default_rng(0)
    lines = [
        ",".join(f"{value:.4f}" for value in 50 + (9 if n % 2 else 1) * draws.normal(size=12 + n % 3)) + f":{n % 2}"
        for n in range(40)
    ]
    path = tmp_path / "x.ts"
    path.write_text("\n".join(["@classLabel true 0 1", "@data", *lines]) + "\n")
    overrides = ("data=series_table", f"data.path={path}", "tokenizer=series_patch", "tokenizer.size=4")
    shape = ("head=mean_pool", "tokenizer.normalise=none", *ON_CPU, *ONE_LAYER, *steps(20, 20), "optimizer.lr=0.02")
    run_folder = run(tmp_path, *shape, *overrides, base=())
    loaded = load(run_folder)
    test = loaded.components.load().test
    batch = test.batch(torch.arange(len(test)), None)
    with torch.no_grad():
        expected = loaded.model(batch)
    mean, std = test.scale
    new = tmp_path / "new.ts"
    series = [(test.series.values[i, :n] * std + mean)[:, 0].tolist() for i, n in enumerate(test.lengths.tolist())]
    new.write_text("@data\n" + "".join(",".join(map(repr, values)) + ":?\n" for values in series))
    rows = predicted(capsys, run_folder.path, str(new))
    _same(rows, expected)
    new.write_text("@data\n" + ",".join(["1", "2"] * 20) + ":0\n")
    assert main(["predict", f"run={run_folder.path}", str(new)]) == 2
    assert "series 1: 40 steps of 1 channels" in capsys.readouterr().err


def test_pictures_with_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of both; its images are read as those of the run."""
    table = write_pictures(tmp_path, 40)
    overrides = ("data=table", f"data.path={table}", "data.image=file", "data.text=title", "data.size=8")
    parts = ("tokenizer=char", "source_tokenizer=patch", "model=joint_encoder", "head=mean_pool")
    run_folder = run(tmp_path, *SHORT, *overrides, *parts, base=())
    new = write_rows(tmp_path / "new.csv", [{"file": f"{n}.png", "title": f"picture {n}"} for n in (3, 8)])
    rows = predicted(capsys, run_folder.path, str(new))
    loaded = load(run_folder)
    texts = [loaded.tokenizer.encode(f"picture {n}") for n in (3, 8)]
    pixels = torch.cat([loaded.data.read_source(str(tmp_path / f"{n}.png")) for n in (3, 8)])
    with torch.no_grad():
        expected = loaded.model(Inputs(torch.tensor(texts), lengths=torch.tensor([9, 9]), source=pixels))
    _same(rows, expected)
    assert main(["predict", f"run={run_folder.path}", "a picture"]) == 2
    assert (
        "reads a picture and a text together; give a table with the columns file and title" in capsys.readouterr().err
    )


@pytest.mark.full
def test_e_mails_of_a_table_reach_a_linear_model_of_their_words(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From scratch; tf-idf with logistic regression is fitted on the same split, in the same run."""
    table = shared_data / "spamassassin" / "spamassassin.tsv.gz"
    overrides = ("experiment=spam_table", f"data.path={table}", *ON_CPU, f"outputs={tmp_path}")
    assert main(["train", *overrides]) == 0
    (summary,) = [json.loads(path.read_text()) for path in tmp_path.glob("spam_table-*/s0/summary.json")]
    assert summary["metrics"]["test/accuracy"] >= 0.97
    assert summary["metrics"]["test/accuracy"] >= summary["baselines"]["tf_idf"]["accuracy"] - 0.01
    (folder,) = tmp_path.glob("spam_table-*/s0")
    rows = predicted(capsys, folder, "Free money || You have won $$$ click here now")
    assert rows[0]["prediction"] == "1"
