"""Time series: windows, splits by time, files of one's own, and forecasts that need no training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from blockyard.contracts import Inputs
from blockyard.data.co2 import Co2
from blockyard.data.digit_series import DigitSeries
from blockyard.data.series_file import SeriesFile
from blockyard.data.splits.series import parsed_times
from blockyard.errors import UserError
from blockyard.evaluate.loop import evaluate
from blockyard.objective.forecast import Forecast, forecasts
from blockyard.tokenizer._series import fill_forward, standardize
from blockyard.tokenizer.series_patch import SeriesPatch
from tests.support import engine_runs
from tests.support.every import every
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, steps


def table(path: Path, steps: int = 60, **columns: object) -> Path:
    """A file of two channels that count, and dates."""
    dates = pandas.date_range("2020-01-01", periods=steps)
    frame = pandas.DataFrame({"date": dates, "a": np.arange(steps) * 1.0, "b": np.arange(steps) ** 2.0} | columns)
    frame.to_csv(path, index=False)
    return path


def series(path: Path, **options: object) -> SeriesFile:
    settings = {"time": "date", "history": 6, "horizon": 3, "split": (0.5, 0.2, 0.3), **options}
    return SeriesFile(path=str(path), **settings)  # type: ignore[arg-type]


def test_every_window_of_every_split_counts_once(tmp_path: Path) -> None:
    data = series(table(tmp_path / "x.csv"), channels="together")
    train, validation, test = data.load(SeriesPatch())
    assert [len(part) for part in (train, validation, test)] == [30 - 9 + 1, 12 - 3 + 1, 18 - 3 + 1]
    mean, std = train.mean, train.std  # type: ignore[attr-defined]
    values = torch.stack([torch.arange(60.0), torch.arange(60.0) ** 2], 1)
    for split, first in ((train, 6), (validation, 30), (test, 42)):
        batch = split.batch(torch.arange(len(split)), None)
        rows = torch.cat([batch.inputs, batch.target], 1).double() * std + mean  # type: ignore[list-item]
        for window, row in enumerate(rows):
            start = first - 6 + window
            torch.testing.assert_close(row, values[start : start + 9].double(), rtol=1e-4, atol=1e-3)


def test_channels_apart_are_samples_of_their_own(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv")
    together = series(path, channels="together").load(SeriesPatch()).test
    apart = series(path).load(SeriesPatch()).test
    assert len(apart) == 2 * len(together)
    whole, parts = together.batch(torch.arange(3), None), apart.batch(torch.arange(6), None)
    torch.testing.assert_close(parts.inputs.unflatten(0, (3, 2))[..., 0].transpose(1, 2), whole.inputs)
    assert isinstance(parts.target, torch.Tensor)
    assert parts.target.shape == (6, 3, 1)


def test_only_training_steps_set_the_scale(tmp_path: Path) -> None:
    train = series(table(tmp_path / "x.csv")).load(SeriesPatch()).train
    torch.testing.assert_close(train.mean, torch.tensor([14.5, (np.arange(30.0) ** 2).mean()]).double())  # type: ignore[attr-defined]


def test_co2_is_the_table_of_statsmodels() -> None:
    from statsmodels.datasets import co2

    frame = co2.load_pandas().data
    np.testing.assert_array_equal(Co2().read()[:, 0].numpy(), frame["co2"].to_numpy())
    assert Co2().times() == frame.index.strftime("%Y-%m-%d").tolist()


@pytest.mark.parametrize("level", [0.1, 36.6, 1e-12, 0.0])
def test_a_constant_channel_is_found_whatever_the_rounding_of_its_mean(
    level: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The deviation of 1,000 equal values from their mean is 1.4e-17 at 0.1, and 0 at 0.5."""
    path = table(tmp_path / "x.csv", 1500, a=[*[level] * 1100, *[level + 1.0] * 400], b=np.arange(1500) * 1e-13)
    train, _, test = series(path, split=(0.7, 0.1, 0.2), channels="together").load(SeriesPatch())
    assert caplog.messages == [
        "1 of 2 channels have one value in the training split, which is subtracted, and are divided by 1: a"
    ]
    first, last = train.batch(torch.tensor([0]), None).inputs, test.batch(torch.tensor([len(test) - 1]), None).target
    torch.testing.assert_close(first[..., 0], torch.zeros_like(first[..., 0]), atol=1e-12, rtol=0)
    assert isinstance(last, torch.Tensor)
    torch.testing.assert_close(last[..., 0], torch.ones_like(last[..., 0]))
    series(path, columns=("b",)).load(SeriesPatch())  # small values vary too


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"columns": ("a", "c")}, "has no column 'c'; it has 'date', 'a', 'b'"),
        ({"b": "x"}, {}, r"line 2, column b: 'x' is not a number \(60 such cells\)"),
        ({"a": 1.0, "b": 2.0}, {}, "all channels have one value in the training split, .*: a, b"),
        ({"a": np.nan}, {}, "channels without a value in the training split: a; leave them out"),
        ({"a": [np.inf, *range(59)]}, {}, "line 2, column a: infinite value"),
        ({"date": ["2020-01-01"] * 60}, {}, "line 3, column date: 2020-01-01 does not come after 2020-01-01"),
        ({"date": ["2020-01-01", "x"] * 30}, {}, "line 3, column date: 'x' is neither date nor number"),
        ({}, {"horizon": 20}, "the validation split has 18 steps .* fewer than one window"),
        ({}, {"split": (0.5, 0.2, 0.2)}, "shares must add up to 1"),
        ({}, {"split": (50, 20, 20)}, "at most 60 steps"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, change: dict, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        series(table(tmp_path / "x.csv", **change), **options).load(SeriesPatch())


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    lines = [f"2020-01-{n + 1:02},{n},{n * n}" for n in range(30)]
    path.write_text("\n".join(["date,a,a", *lines]))
    with pytest.raises(UserError, match="has several columns of the name 'a'; rename all but one"):
        series(path).load(SeriesPatch())
    path.write_text("\n".join(["date,a,b,b", *(f"{line},0" for line in lines)]))
    assert series(path, columns=("a",)).channel_names == ("a",)
    assert series(path, columns=("a",)).read()[:3].tolist() == [[0], [1], [2]]


def test_a_series_in_utf_16_is_read(tmp_path: Path) -> None:
    text = table(tmp_path / "x.csv").read_text()
    expected = series(tmp_path / "x.csv").read()
    (tmp_path / "x.csv").write_text(text, encoding="utf-16")
    assert torch.equal(series(tmp_path / "x.csv").read(), expected)
    (tmp_path / "x.csv").write_text(text.replace(",1.0,", ",x,"), encoding="utf-16")
    with pytest.raises(UserError, match="line 3, column a: 'x' is not a number"):
        series(tmp_path / "x.csv").read()


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be read as a table"):
        series(tmp_path / "x.csv").load(SeriesPatch())
    assert "no file" in str(series(tmp_path / "nothing.csv").missing())


def test_parquet_and_compressed_tables_are_the_same_series(tmp_path: Path) -> None:
    plain = series(table(tmp_path / "x.csv")).read()
    table(tmp_path / "x.csv.gz")
    torch.testing.assert_close(series(tmp_path / "x.csv.gz").read(), plain)


def test_missing_values_are_filled_from_before() -> None:
    nan = float("nan")
    x = torch.tensor([[nan, 1.0, nan, nan, 2.0, nan]])[:, :, None]
    assert fill_forward(x)[0, :, 0].tolist() == [0.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    scaled, scale = standardize(x, "last")
    assert scale is not None
    assert scale[0].item() == 2.0
    assert scaled.isnan().equal(x.isnan())
    offset, size = standardize(x, "instance")[1]  # type: ignore[misc]
    assert (offset.item(), size.item()) == pytest.approx((1.5, (0.25 + 1e-5) ** 0.5))


def test_a_history_without_values_has_a_finite_scale() -> None:
    scaled, scale = standardize(torch.full((1, 4, 1), float("nan")), "instance")
    assert scale is not None
    assert every(part.isfinite().all() for part in scale)
    assert scaled.isnan().all()


def test_baselines_are_their_formulas() -> None:
    history = torch.arange(8.0)[None, :, None]  # rises by one a step: 4 a season
    predictions = dict(forecasts(history, 6, 4))
    assert predictions["repeat"][0, :, 0].tolist() == [7.0] * 6
    assert predictions["seasonal"][0, :, 0].tolist() == [4.0, 5.0, 6.0, 7.0, 4.0, 5.0]
    assert predictions["drift"][0, :, 0].tolist() == [8.0, 9.0, 10.0, 11.0, 12.0, 13.0]
    assert list(dict(forecasts(history, 6, 5))) == ["repeat", "seasonal"]
    assert list(dict(forecasts(history, 6, None))) == ["repeat"]


def test_baselines_of_co2_are_the_known_figures() -> None:
    test = Co2().load(SeriesPatch()).test
    baselines = Forecast(season=52).baselines(test)
    assert {name: round(values["mse"], 4) for name, values in baselines.items()} == {
        "repeat": 0.0961,
        "seasonal": 0.0315,
        "drift": 0.0105,
    }


def test_baselines_of_etth1_are_the_published_figures(shared_data: Path) -> None:
    """Repeat: 1.295 and 0.713 in Zeng et al. 2023, table 2."""
    path = shared_data / "timeseries" / "ETTh1.csv.gz"
    data = SeriesFile(path=str(path), time="date", split=(8640, 2880, 2880))
    baselines = Forecast(season=24).baselines(data.load(SeriesPatch()).test)
    assert (baselines["repeat"]["mse"], baselines["repeat"]["mae"]) == pytest.approx((1.2944, 0.7132), abs=1e-4)
    assert (baselines["seasonal"]["mse"], baselines["seasonal"]["mae"]) == pytest.approx((0.5122, 0.4333), abs=1e-4)


def test_missing_targets_do_not_count() -> None:
    objective, nan = Forecast(), float("nan")
    target = torch.tensor([[[1.0], [nan]], [[3.0], [nan]]])
    prediction = torch.tensor([[0.0, 100.0], [0.0, -100.0]], requires_grad=True)
    loss = objective.loss(prediction, target)
    assert loss.item() == pytest.approx(5.0)
    loss.backward()
    assert prediction.grad is not None
    assert prediction.grad[:, 1].tolist() == [0.0, 0.0]
    metrics = objective.metrics()
    for metric in metrics.values():
        metric.update(prediction.detach(), target)
    assert {name: float(metric.compute()) for name, metric in metrics.items()} == {"mse": 5.0, "mae": 2.0}


def test_a_diverged_prediction_has_no_finite_metric() -> None:
    metric = Forecast().metrics()["mse"]
    metric.update(torch.tensor([[float("nan")]]), torch.tensor([[[1.0]]]))
    assert metric.compute().isnan()


def test_digits_are_read_pixel_by_pixel() -> None:
    train = DigitSeries().load(SeriesPatch()).train
    batch = train.batch(torch.arange(2), None)
    assert batch.inputs.shape == (2, 64, 1)
    assert isinstance(batch.target, torch.Tensor)
    assert batch.target.shape == (2,)


@pytest.mark.parametrize("objective", ["forecast", "next_patch"])
def test_micro_batches_weigh_the_values_that_are_there(tmp_path: Path, objective: str) -> None:
    """Missing values lie unevenly: a mean of the means of micro-batches is not that of the batch."""
    task = {
        "forecast": ("objective=forecast", "head=flatten", "model=encoder"),
        "next_patch": ("objective=next_patch", "head=token", "model=decoder", "tokenizer.normalise=none"),
    }[objective]
    sizes = ("tokenizer.size=4", "tokenizer.stride=4", "tokenizer.pad_end=false", "data.history=16", "data.horizon=8")
    path = table(tmp_path / "x.csv", b=[np.nan if 5 < step < 25 else step for step in range(60)])
    base = ("data=series_file", f"data.path={path}", "data.time=date", "data.split=[0.6,0.2,0.2]", "data.batch_size=8")
    shared = (*ON_CPU, *ONE_LAYER, *steps(4, None), *ONE_BATCH, "trainer.log_every=1", "callbacks=default", *base)
    shared = (*shared, "tokenizer=series_patch", "position=learned", *sizes, *task, "schedule=constant")
    whole = engine_runs.rows(engine_runs.run(tmp_path / "whole", base=shared))
    cut = engine_runs.rows(engine_runs.run(tmp_path / "cut", "trainer.accumulate=4", base=shared))
    losses = [[row["train/loss"] for row in rows if "train/loss" in row] for rows in (whole, cut)]
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_channels_apart_are_slices(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv")
    assert series(path, channels="together").spec.slices == ()
    assert series(path, columns=("a",)).spec.slices == ()
    data = series(path)
    assert data.spec.slices == ("a", "b")
    test = data.load(SeriesPatch()).test
    values = evaluate(Last(3), test, Forecast(), batch_size=4, slices=data.spec.slices)
    for number, name in enumerate(data.spec.slices):
        own = test.batch(torch.arange(number, len(test), 2), None)
        assert isinstance(own.target, torch.Tensor)
        expected = (own.target - own.inputs[:, -1:]).square().mean()
        assert values[f"mse@{name}"] == pytest.approx(float(expected))


class Last(torch.nn.Module):
    """Repeats the last value of a history of one channel."""

    def __init__(self, horizon: int) -> None:
        super().__init__()
        self.horizon = horizon

    def forward(self, batch: Inputs) -> torch.Tensor:
        return batch.inputs[:, -1].expand(-1, self.horizon)


def test_separators_at_the_ends_of_rows_shift_no_column(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv")
    header, *lines = path.read_text().splitlines()
    expected = series(path).load(SeriesPatch()).train.mean  # type: ignore[attr-defined]
    path.write_text("\n".join([header, *(f"{line}," for line in lines)]) + "\n")
    torch.testing.assert_close(series(path).load(SeriesPatch()).train.mean, expected)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("dates", "second"),
    [
        ([f"{month:02}/01/2000" for month in range(1, 13)] + ["01/31/2001"], "2000-02-01"),
        ([f"{month}/15/2000" for month in range(1, 13)], "2000-02-15"),
        ([f"{day:02}.01.2000" for day in range(1, 29)], "2000-01-02"),
    ],
)
def test_the_order_of_day_and_month_is_the_one_that_goes_on(dates: list[str], second: str) -> None:
    assert str(parsed_times(pandas.Series(dates)).iloc[1].date()) == second


def test_dates_of_either_order_are_refused() -> None:
    """The first of each month was read as days of January, without a word."""
    with pytest.raises(UserError, match="01/02/2000 may be day/month/year or month/day/year; write"):
        parsed_times(pandas.Series(["01/02/2000", "02/03/2000"]))
    with pytest.raises(UserError, match="01/01/2000 may be"):
        parsed_times(pandas.Series([f"01/{month:02}/2000" for month in range(1, 13)]))
    with pytest.raises(UserError, match=r"01.02.24 may be day.month.year or month.day.year or year.month.day; write"):
        parsed_times(pandas.Series(["01.02.24", "02.02.24"]))


@pytest.mark.parametrize(
    "form",
    ["%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d.%m.%y %H:%M:%S", "%y-%m-%d %H:%M", "%d/%m/%Y %I:%M %p", "%d.%m.%YT%H:%M"],
)
@pytest.mark.parametrize("hours", [10 * 24, 20 * 24])
def test_the_order_of_day_and_month_is_settled_for_dates_with_a_time(form: str, hours: int) -> None:
    """Of ten days in February the days were read as months, and twenty were refused."""
    dates = pandas.date_range("2024-02-01", periods=hours, freq="h")
    times = parsed_times(pandas.Series(dates.strftime(form)))
    assert times.tolist() == dates.tolist()


@pytest.mark.parametrize("form", ["%d.%m.%y", "%y-%m-%d", "%d/%m/%Y"])
def test_years_of_two_digits_are_read_in_the_order_of_the_column(form: str) -> None:
    dates = pandas.date_range("2024-02-01", periods=20)
    assert parsed_times(pandas.Series(dates.strftime(form))).tolist() == dates.tolist()


@pytest.mark.parametrize(
    ("zone", "first", "hour"),
    [
        ("Europe/Berlin", "2024-10-26", "2024-10-27 02:00"),
        ("America/New_York", "2024-11-02", "2024-11-03 01:00"),
        ("Australia/Sydney", "2024-04-06", "2024-04-07 02:00"),
    ],
)
@pytest.mark.parametrize("step", ["h", "15min"])
def test_the_hour_that_clocks_repeat_is_not_called_a_mistake(
    zone: str, first: str, hour: str, step: str, tmp_path: Path
) -> None:
    """Whoever removed the repeated rows lost an hour of data a year."""
    times = pandas.date_range(first, periods=200, freq=step, tz=zone)
    path = table(tmp_path / "x.csv", 200, date=times.tz_localize(None))
    with pytest.raises(UserError, match=f"{hour}.*have this hour twice, because the clock was set back") as error:
        series(path).read()
    assert "remove" not in str(error.value)
    assert "data.time=null data.columns=[a,b]" in str(error.value)
    assert len(series(path, time=None, columns=("a", "b")).read()) == 200
    assert len(series(table(path, 200, date=times)).read()) == 200  # with offsets


def test_a_time_that_is_repeated_on_another_day_is_refused_as_such(tmp_path: Path) -> None:
    times = pandas.date_range("2024-01-01", periods=60, freq="h").to_list()
    times[30] = times[29]
    with pytest.raises(UserError, match="sort the rows by time and remove repeated ones"):
        series(table(tmp_path / "x.csv", date=times)).read()


@pytest.mark.parametrize(("name", "suffix"), [("date", "parquet"), ("date", "feather"), (None, "parquet")])
def test_times_may_be_the_index_of_pandas(name: str | None, suffix: str, tmp_path: Path) -> None:
    frame = pandas.read_csv(table(tmp_path / "x.csv"), parse_dates=["date"]).set_index("date").rename_axis(name)
    path = tmp_path / f"x.{suffix}"
    (frame.to_parquet if suffix == "parquet" else frame.to_feather)(path)
    data = series(path, time=name or "index")
    assert list(data.channel_names) == ["a", "b"]
    torch.testing.assert_close(data.read(), series(tmp_path / "x.csv").read())
    assert data.times() == series(tmp_path / "x.csv").times()
    torch.testing.assert_close(series(path, time=None).read(), data.read())  # an index is no channel
    with pytest.raises(UserError, match=f"has no column 'time'; it has '{name or 'index'}', 'a', 'b'"):
        series(path, time="time").read()


def test_an_index_of_several_levels_is_refused(tmp_path: Path) -> None:
    dates = pandas.date_range("2024-01-01", periods=30)
    index = pandas.MultiIndex.from_product([["A", "B"], dates], names=["sensor", "date"])
    pandas.DataFrame({"a": np.arange(60.0)}, index=index).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"an index of several levels \(sensor, date\)"):
        series(tmp_path / "x.parquet").read()


def test_a_cell_of_blanks_is_a_missing_value(tmp_path: Path) -> None:
    values = [*map(str, range(58)), " ", "  "]
    rows = series(table(tmp_path / "x.csv", a=values)).read()
    assert rows[:, 0].isnan().nonzero().flatten().tolist() == [58, 59]


def test_dates_may_change_their_offset_and_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    dates = [f"2024-03-31T{hour:02d}:00:00+0{1 if hour < 2 else 2}:00" for hour in (0, 1, *range(3, 24))]
    lines = ["date,a,b", *(f"{date},{n},{n * n}" for n, date in enumerate(dates))]
    path = tmp_path / "x.csv"
    path.write_text("\n".join(lines) + "\n")
    assert len(series(path, history=3, horizon=1).load(SeriesPatch()).train) > 0
    (tmp_path / "x.csv.zip").write_bytes(b"PK no archive")
    with pytest.raises(UserError, match="cannot be read as a table"):
        series(tmp_path / "x.csv.zip").load(SeriesPatch())
