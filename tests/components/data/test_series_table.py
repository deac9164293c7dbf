"""Series with a class each, from the archives' files and from arrays: what is read, split, and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.cli import main
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import DataSpec, Splits
from blockyard.data.series_table import SeriesTable, nearest
from blockyard.errors import UserError
from blockyard.runs.identity import identity
from blockyard.tokenizer.series_patch import SeriesPatch
from tests.support.helpers import context
from tests.support.tolerances import FLOAT32_STEPS

HEAD = "#made here\n@problemName waves\n@timeStamps false\n@univariate false\n@classLabel true up down\n@data\n"


def wave(number: int, steps: int) -> np.ndarray:
    """Two channels (steps, 2), rising for even numbers and falling for odd ones, at a level of their own."""
    slope = 1.0 if number % 2 == 0 else -1.0
    line = slope * np.linspace(-1, 1, steps) + 0.1 * np.random.default_rng(number).normal(size=steps)
    return np.stack([line + 5, 100 * line], axis=1).round(4)


def write_ts(path: Path, count: int, *, longest: int = 12, equal: bool = False) -> Path:
    lines = []
    for number in range(count):
        values = wave(number, longest if equal else longest - number % 4)
        channels = [",".join(map(str, channel)) for channel in values.T]
        lines.append(":".join([*channels, ("up", "down")[number % 2]]))
    lines[0] = lines[0].replace(lines[0].split(",")[1], "?", 1)
    path.write_text(HEAD + "\n".join(lines) + "\n")
    return path


def load(data: SeriesTable) -> Splits:
    assert data.missing() is None
    return data.load(SeriesPatch(size=4, stride=4))


def test_a_ts_file_is_read_split_and_standardized(tmp_path: Path) -> None:
    data = SeriesTable(path=str(write_ts(tmp_path / "w_TRAIN.ts", 60)))
    assert (data.spec.shape, data.spec.variable, data.spec.class_names) == ((12, 2), True, ("down", "up"))
    splits = load(data)
    assert [len(split) for split in splits] == [39, 9, 12]
    train = splits.train.batch(torch.arange(39), None)
    values = train.inputs[torch.arange(train.inputs.shape[1]) < train.lengths[:, None]].double()
    torch.testing.assert_close(values.nanmean(0), torch.zeros(2).double(), **FLOAT32_STEPS)
    torch.testing.assert_close(values.square().nanmean(0), torch.ones(2).double(), **FLOAT32_STEPS)
    assert set(train.lengths.tolist()) == {9, 10, 11, 12}
    # The class is that of the slope, and the first series lacks its second value.
    rises = train.inputs[:, 8].mean(1) > train.inputs[:, 0].nan_to_num().mean(1)
    assert rises.tolist() == (train.target == 1).tolist()
    assert sum(int(split.batch(torch.arange(len(split)), None).inputs[:, :9].isnan().sum()) for split in splits) == 1
    again = load(SeriesTable(path=data.path)).test.batch(torch.arange(12), None)
    torch.testing.assert_close(again.inputs, splits.test.batch(torch.arange(12), None).inputs, equal_nan=True)


def test_the_archives_test_file_and_arrays_give_the_same_splits(tmp_path: Path) -> None:
    train, test = write_ts(tmp_path / "w_TRAIN.ts", 40), write_ts(tmp_path / "w_TEST.ts", 16)
    arrays = {}
    for part, count in (("train", 40), ("test", 16)):
        x = np.full((count, 2, 12), np.nan)
        for number in range(count):
            values = wave(number, 12 - number % 4)
            x[number, :, : len(values)] = values.T
        x[0, 0, 1] = np.nan
        arrays |= {f"X_{part}": x, f"y_{part}": np.array([("up", "down")[number % 2] for number in range(count)])}
    np.savez(tmp_path / "w.npz", **arrays)
    ts = load(SeriesTable(path=str(train), test_path=str(test)))
    npz = load(SeriesTable(path=str(tmp_path / "w.npz")))
    assert [len(split) for split in ts] == [32, 8, 16]
    for one, other in zip(ts, npz, strict=True):
        a, b = (split.batch(torch.arange(len(split)), None) for split in (one, other))
        torch.testing.assert_close(a.inputs, b.inputs, equal_nan=True)
        assert a.target.tolist() == b.target.tolist()


def test_labels_that_look_alike_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_ts(tmp_path / "w.ts", 60)
    text = (tmp_path / "w.ts").read_text()
    (tmp_path / "w.ts").write_text(text.replace(":down", ":Up"))
    assert SeriesTable(path=str(tmp_path / "w.ts")).class_names == ("Up", "up")
    assert "has classes that look alike: 'up' (30) and 'Up' (30)" in caplog.text


def test_labels_of_one_number_have_one_order(tmp_path: Path) -> None:
    """Whatever order a set of texts has in a process."""
    write_ts(tmp_path / "w.ts", 60)
    text = (tmp_path / "w.ts").read_text()
    (tmp_path / "w.ts").write_text(text.replace(":up", ":1.0").replace(":down", ":01"))
    assert SeriesTable(path=str(tmp_path / "w.ts")).class_names == ("01", "1.0")


def test_series_of_one_length_have_no_lengths(tmp_path: Path) -> None:
    data = SeriesTable(path=str(write_ts(tmp_path / "w.ts", 40, equal=True)))
    assert not data.spec.variable
    assert load(data).test.batch(torch.arange(3), None).lengths is None


def test_nearest_is_the_nearest_neighbour_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    train, _, test = load(SeriesTable(path=str(write_ts(tmp_path / "w.ts", 40, equal=True))))
    x = train.series.values.nan_to_num().flatten(1).numpy()
    model = KNeighborsClassifier(1).fit(x, train.series.target.numpy())
    expected = model.predict(test.series.values.nan_to_num().flatten(1).numpy())
    assert nearest(train.series, test.series, 2).argmax(1).tolist() == expected.tolist()
    assert [model.name for model in test.baselines()] == ["majority", "nearest"]


def series_config(*overrides: str) -> dict[str, Any]:
    """The config of a small model of series."""
    composed = compose(["tokenizer=series_patch", "position=learned", *overrides])
    assert check(composed) == []
    return composed.config


def test_series_with_a_class_each_keep_their_level_by_default(tmp_path: Path) -> None:
    """The config has the value; a typed one has the identity that it always had, and a forecast takes both out."""
    own = ["data=series_table", f"data.path={write_ts(tmp_path / 'w.ts', 60)}", "tokenizer.size=4"]
    config = series_config(*own)
    assert config["tokenizer"]["normalise"] == "none"
    assert identity(config) == identity(series_config(*own, "tokenizer.normalise=none"))
    assert identity(config) != identity(series_config(*own, "tokenizer.normalise=instance"))
    forecast = ["data=co2", "objective=forecast", "head=flatten"]
    for tokenizer in ("series_patch", "series_channel"):
        positions = ["position=none"] if tokenizer == "series_channel" else []
        config = series_config(*forecast, f"tokenizer={tokenizer}", *positions)
        assert config["tokenizer"]["normalise"] == "instance"


@pytest.mark.parametrize(
    ("steps", "size", "stride"), [(1, 1, 1), (5, 2, 1), (15, 4, 2), (29, 8, 4), (64, 8, 4), (480, 20, 10)]
)
def test_patches_fit_the_length_of_a_series(steps: int, size: int, stride: int) -> None:
    fitting = SeriesPatch().fitting(DataSpec("series", (steps, 3), True, target="class", classes=2))
    assert {value.key: value.value for value in fitting} == {"size": size, "stride": stride}


def test_a_tokenizer_that_no_config_resolved_follows_its_data() -> None:
    labelled, forecast = DataSpec("series", (8, 1), target="class"), DataSpec("series", (8, 1), target="values")
    tokenizer = SeriesPatch(size=4)
    assert (tokenizer.spec(labelled).causal, tokenizer.spec(forecast).causal) == (True, False)
    assert list(tokenizer.remarks(labelled)) == []
    for data, scaled in ((labelled, False), (forecast, True)):
        embedder = tokenizer.embedder(replace(context(), data=data, tokens=tokenizer.spec(data)))
        assert (embedder(torch.full((1, 8, 1), 3.0))[1].scale is not None) == scaled


@pytest.mark.parametrize(("normalise", "warned"), [("instance", True), ("last", True), ("none", False)])
def test_the_normalisation_of_series_with_classes_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, normalise: str, warned: bool
) -> None:
    """By check and by a run: what is taken out of each series may be what tells its class."""
    overrides = [f"data.path={write_ts(tmp_path / 'w.ts', 60)}", "tokenizer.size=4", f"tokenizer.normalise={normalise}"]
    series = ["data=series_table", "tokenizer=series_patch", "position=sinusoidal", *overrides]
    assert main(["check", *series]) == 0
    assert (f"tokenizer.normalise={normalise} takes" in capsys.readouterr().out) == warned
    short = ["trainer=cpu", "trainer.max_steps=1", "logger=none", "model.dim=16", f"outputs={tmp_path}"]
    assert main(["train", *series, *short]) == 0
    assert (f"tokenizer.normalise={normalise} takes" in caplog.text + capsys.readouterr().err) == warned


def test_series_of_several_lengths_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [f"data.path={write_ts(tmp_path / 'w.ts', 60)}", "tokenizer.size=4", "tokenizer.stride=4"]
    short = ["trainer=cpu", "trainer.max_epochs=12", "optimizer.lr=1e-2", "logger=none", f"outputs={tmp_path}"]
    sizes = ["model.dim=16", "model.depth=1", "model.heads=2", "data.batch_size=13"]
    series = ["data=series_table", "tokenizer=series_patch", "position=sinusoidal", "tokenizer.normalise=none"]
    assert main(["train", *series, *overrides, *sizes, *short]) == 0
    printed = capsys.readouterr().out
    assert "test/accuracy 1 " in printed
    assert "baseline nearest: " in printed


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1,2:up", "1,x:down", "1,2:3,4:up", "1,2"], r"line 8: 'x' is not a number; line 9: 2 channels, and 1 in"),
        (["1,2:3:up"], "channels of 2 and 1 steps"),
        (["?,?:up"], "line 7: no value"),
        (["1,inf:up"], "infinite"),
        (["1,2:up", "2,3:up"], "every training series is of class up"),
        ([], "has no series"),
    ],
)
def test_wrong_lines_are_named_together(lines: list[str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "w.ts"
    path.write_text(HEAD + "\n".join(lines) + "\n")
    with pytest.raises(UserError, match=message):
        load(SeriesTable(path=str(path)))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": np.ones((3, 2))}, "has X; expected X_train"),
        ({"X_train": np.ones((3, 2)), "y_train": np.arange(2)}, "expected numbers"),
        ({"X_train": np.array([[1.0, np.inf], [1, 2]]), "y_train": np.arange(2)}, r"X_train\[0\]: an infinite value"),
        (
            {"X_train": np.ones((9, 4)), "y_train": np.arange(9) % 2},
            "all channels have one value in the training split",
        ),
        ({"X_train": np.ones((2, 4)), "y_train": np.arange(2)}, "leave none for the"),
    ],
)
def test_wrong_arrays_are_refused(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(UserError, match=message):
        load(SeriesTable(path=str(tmp_path / "w.npz")))


def test_a_constant_channel_is_centred(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    waves = np.stack([wave(number, 12) for number in range(30)]).transpose(0, 2, 1)
    waves[:, 1] = 7.0
    np.savez(tmp_path / "w.npz", X_train=waves, y_train=np.arange(30) % 2)
    train = load(SeriesTable(path=str(tmp_path / "w.npz"))).train
    inputs = train.batch(torch.arange(len(train)), None).inputs
    assert inputs[..., 1].abs().max() == 0
    torch.testing.assert_close(inputs[..., 0].square().mean(), torch.ones(()))
    assert "1 of 2 channels have one value in the training split" in caplog.text


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, text, message in (
        ("w.ts", "1,2:up\n", "has no line @data"),
        ("t.ts", "@timeStamps true\n@data\n", "time stamps"),
        ("c.ts", "@classLabel false\n@data\n", "have no classes"),
        ("w.csv", "1", "expected .ts or .npz"),
        ("w.npz", "1", "cannot be read as .npz"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=message):
            load(SeriesTable(path=str(tmp_path / name)))
    with pytest.raises(ValueError, match="use null"):
        SeriesTable(path="a.npz", test_path="b.ts")
    assert "set data.path=" in str(SeriesTable(path=str(tmp_path / "none.ts")).missing())
