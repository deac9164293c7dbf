"""`blockyard forecast`: values in the units of the data, bands from the validation split, tables of one's own."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import Tensor

from blockyard.cli import main
from blockyard.data.co2 import Co2
from blockyard.data.splits.series import as_text, following
from blockyard.errors import UserError
from blockyard.evaluate.forecast import forecast
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded
from tests.support import engine_runs
from tests.support.every import every
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, SHORTEST, steps

HISTORY, HORIZON = 24, 6
SIZES = (f"data.history={HISTORY}", f"data.horizon={HORIZON}", *ON_CPU, *ONE_LAYER, *steps(3, None), *ONE_BATCH)
SERIES = (*SIZES, "tokenizer=series_patch", "tokenizer.size=4", "tokenizer.stride=4", "position=learned")
ALL_AT_ONCE = ("objective=forecast", "head=flatten", "model=encoder")
PATCH_BY_PATCH = ("objective=next_patch", "head=token", "model=decoder", "tokenizer.pad_end=false")
CAUSAL = (*PATCH_BY_PATCH, "tokenizer.normalise=first")


def table(path: Path, rows: int = 160) -> Path:
    """Two channels of different sizes, with a gap, and a column of dates."""
    random = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["day", "a", "b"])
        for row in range(rows):
            a, b = np.sin(row / 3) + random.normal(0, 0.1), 1000 + row + random.normal(0, 5)
            writer.writerow([row, "" if row == 70 else a, b])
    return path


@pytest.fixture(scope="module", params=["apart", "together", "patches"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp(request.param)
    path = table(folder / "own.csv")
    task = CAUSAL if request.param == "patches" else ALL_AT_ONCE
    channels = "together" if request.param == "together" else "apart"
    data = ("data=series_file", f"data.path={path}", "data.time=day", f"data.channels={channels}")
    return engine_runs.run(folder, base=(*SERIES, *task, *data))


@torch.no_grad()
def by_hand(loaded: Loaded, history: Tensor) -> Tensor:
    """The steps after a history (L, C) in the units of the data, as the model alone gives them, channel by channel."""
    split = loaded.data.load(loaded.tokenizer).test
    scaled = ((history - split.mean) / split.std).float()  # type: ignore[attr-defined]
    groups = [scaled] if loaded.config["data"]["channels"] == "together" else [c[:, None] for c in scaled.T]
    predictions = []
    for group in groups:
        if loaded.config["objective"]["_target_"].endswith("Forecast"):
            predictions.append(loaded.model(group[None])[0].reshape(HORIZON, -1))
            continue
        context = group
        for _ in range(2):  # patches of 4 steps
            context = torch.cat([context, loaded.model(context[None, -HISTORY:])[0, -1].reshape(4, -1)])
        predictions.append(context[HISTORY : HISTORY + HORIZON])
    return torch.cat(predictions, 1).double() * split.std + split.mean  # type: ignore[attr-defined]


def values(loaded: Loaded) -> Tensor:
    return loaded.data.read()  # type: ignore[attr-defined]


def test_the_last_window_has_its_forecast_and_its_truth(run: RunFolder) -> None:
    result, loaded = forecast(run.path)
    series = values(loaded)
    torch.testing.assert_close(result.history, series[-HISTORY - HORIZON : -HORIZON], rtol=1e-5, atol=1e-4)
    assert result.true is not None
    torch.testing.assert_close(result.true, series[-HORIZON:], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(result.forecast, by_hand(loaded, result.history), rtol=1e-4, atol=1e-3)
    assert result.channels == ("a", "b")


def test_the_band_holds_its_share_of_the_validation_errors(run: RunFolder) -> None:
    result, loaded = forecast(run.path, level=0.8)
    series, validation = values(loaded), range(112, 128 - HORIZON + 1)  # the first step that each window predicts
    errors = torch.stack(
        [series[start : start + HORIZON] - by_hand(loaded, series[start - HISTORY : start]) for start in validation]
    ).numpy()
    assert result.windows == len(errors)
    expected = np.nanquantile(errors, [0.1, 0.9], axis=0)
    np.testing.assert_allclose((result.low - result.forecast).numpy(), expected[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose((result.high - result.forecast).numpy(), expected[1], rtol=1e-3, atol=1e-3)
    wider, _ = forecast(run.path, level=0.99)
    assert bool((wider.low <= result.low).all())
    assert bool((wider.high >= result.high).all())
    assert wider.coverage >= result.coverage


def test_a_table_of_ones_own_is_continued(run: RunFolder, tmp_path: Path) -> None:
    path = table(tmp_path / "new rows.csv", rows=100)
    result, loaded = forecast(run.path, path)
    assert result.true is None
    rows = np.genfromtxt(path, delimiter=",", skip_header=1)[-HISTORY:, 1:]
    np.testing.assert_allclose(result.history.numpy(), rows)
    torch.testing.assert_close(result.forecast, by_hand(loaded, torch.tensor(rows)), rtol=1e-4, atol=1e-3)

    assert result.times == tuple(str(day) for day in range(100, 106))


@pytest.mark.parametrize(
    ("times", "after"),
    [
        ([0.0, 0.5, 1.0], ["1.5", "2"]),
        (["2024-01-31", "2024-02-29", "2024-03-31"], ["2024-04-30", "2024-05-31"]),
        (["2024-02-28 22:00", "2024-02-28 23:00", "2024-02-29 00:00"], ["2024-02-29 01:00:00", "2024-02-29 02:00:00"]),
        (["2024-03-01", "2024-03-02", "2024-03-05"], None),
        (  # over the change to summer time
            ["2024-03-31T00:00+01:00", "2024-03-31T01:00+01:00", "2024-03-31T03:00+02:00"],
            ["2024-03-31 02:00:00+00:00", "2024-03-31 03:00:00+00:00"],
        ),
        ([1, 2, 4], None),
        ([1, 2], None),
    ],
)
def test_times_continue_where_their_calendar_is_regular(times: list[Any], after: list[str] | None) -> None:
    assert following(pandas.Series(times), 2) == after
    assert len(as_text(pandas.Series(times))) == len(times)


def test_the_weeks_of_co2_are_saturdays() -> None:
    data = Co2()
    times = data.times()
    assert times is not None
    assert len(times) == len(data.read())
    assert (times[0], times[-1]) == ("1958-03-29", "2001-12-29")
    assert {datetime.date.fromisoformat(time).weekday() for time in times} == {5}


@pytest.mark.sampled(100)
def test_the_command_writes_a_table_and_a_picture(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", f"run={run.path}"]) == 0
    result, _ = forecast(run.path)
    with (run.path / "forecast.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["channel"]) for row in rows][:3] == [("1", "a"), ("1", "b"), ("2", "a")]
    assert [row["time"] for row in rows][::2] == [str(day) for day in range(154, 160)]
    for row, expected in zip(rows, result.forecast.flatten().tolist(), strict=True):
        assert float(row["forecast"]) == pytest.approx(expected, rel=1e-6)
        assert float(row["low"]) <= float(row["high"])
        assert row["true"]
    with Image.open(run.path / "forecast.png") as picture:
        picture.load()
    assert "band: 90% of the errors of 11 validation windows" in capsys.readouterr().out
    assert main(["forecast", f"run={run.path}", f"file={table(tmp_path / 'x.csv')}", f"out={tmp_path / 'to'}"]) == 0
    assert {path.name for path in (tmp_path / "to").iterdir()} == {"forecast-x.csv", "forecast-x.png"}
    assert every(not row["true"] for row in csv.DictReader((tmp_path / "to" / "forecast-x.csv").open(newline="")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("day,a\n1,2\n", "has no column 'b'; it has 'day', 'a'"),
        ("day,a,b\n1,2,3\n", f"it has 1 rows, and the run reads a history of {HISTORY}"),
        (
            "day,a,b\n" + "".join(f"{n},1,x\n" for n in range(30)),
            "line 2, column b: 'x' is not a number (30 such cells)",
        ),
        ("day,a,b\n" + "".join(f"{n},1,\n" for n in range(30)), f"column b has no value in the last {HISTORY} rows"),
        ("day,a,b\n" + "".join(f"{-n},1,2\n" for n in range(30)), "line 3, column day: -1 does not come after 0"),
        ("", "cannot be read as a table"),
        (None, "no such file"),
    ],
)
def test_bad_tables_are_refused(
    run: RunFolder, content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    if content is not None:
        path.write_text(content)
    assert main(["forecast", f"run={run.path}", f"file={path}", f"out={tmp_path / 'to'}"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_a_level_that_is_no_share_is_refused(level: float) -> None:
    with pytest.raises(UserError, match=f"level={level:g}: expected a number between 0 and 1"):
        forecast("no-such-run", level=level)


def test_other_runs_and_options_are_refused(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = engine_runs.run(tmp_path, base=SHORTEST)
    assert main(["forecast", f"run={other.path}"]) == 2
    assert "does not forecast series; use a run of objective=forecast" in capsys.readouterr().err
    for option, message in {
        "level=1": "between 0 and 1",
        "level=0": "a number > 0 and <= 1",
        "file=": "at least one character",
        f"out={run.path / 'run.json'}": "expected a folder",
        "horizon=3": "unknown option of forecast",
    }.items():
        assert main(["forecast", f"run={run.path}", option]) == 2
        assert message in capsys.readouterr().err
