"""`blockyard bench noise`: variance components of a crossed design, and the runs that it is made of."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from blockyard.bench.noise import INTERACTIONS, REPEATS, SOURCES, NoiseResult, NoisyRun, mean_squares, noise_result
from blockyard.cli import main
from blockyard.commands import bench
from blockyard.runs.identity import run_name
from blockyard.sweep.execution import runner
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import write
from tests.support.tiny import UNTRAINED

TRUE = {"weights": 4.0, "order": 1.0, "draws": 0.25}  # variances of single sources
TOGETHER = 2.25  # of all three
ERROR = 0.5  # of a run and its repeat


def drawn(generator: np.random.Generator, levels: int, repeats: int = 0) -> list[NoisyRun]:
    """Runs of a model with these variances."""
    effects = [math.sqrt(TRUE[source]) * generator.normal(size=levels) for source in SOURCES]
    runs = []
    for key in itertools.product(range(levels), repeat=3):
        value = sum(effect[level] for effect, level in zip(effects, key, strict=True))
        value += math.sqrt(TOGETHER) * generator.normal()
        for repeat in range(1 + (sum(key) < repeats)):
            runs.append(NoisyRun(*key, repeat, value + math.sqrt(ERROR) * generator.normal()))
    return runs


def shares(result: NoiseResult) -> dict[str, float]:
    return {part.source: part.share for part in result.shares}


def test_mean_squares_are_those_of_an_analysis_of_variance() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 2))
    frame = pd.DataFrame([(*index, value) for index, value in np.ndenumerate(values)], columns=["a", "b", "c", "y"])
    table = anova_lm(ols("y ~ C(a) + C(b) + C(c) + C(a):C(b) + C(a):C(c) + C(b):C(c)", frame).fit())
    rows = {(0,): "C(a)", (1,): "C(b)", (2,): "C(c)", (0, 1): "C(a):C(b)", (0, 2): "C(a):C(c)", (1, 2): "C(b):C(c)"}
    squares = mean_squares(values)
    for effect, row in {**rows, (0, 1, 2): "Residual"}.items():
        square, free = squares[effect]
        assert free == table.loc[row, "df"]
        assert square == pytest.approx(table.loc[row, "mean_sq"])


def test_components_are_those_that_the_runs_were_drawn_with() -> None:
    """With many levels nothing is cut off at zero, and the mean over layouts is the truth."""
    generator = np.random.default_rng(1)
    variances: dict[str, list[float]] = {}
    for _ in range(150):
        for part in noise_result("m", drawn(generator, 8, repeats=6), SOURCES).shares:
            variances.setdefault(part.source, []).append(part.variance)
    expected = TRUE | {INTERACTIONS: TOGETHER, REPEATS: ERROR}
    for source, values in variances.items():
        error = np.std(values) / math.sqrt(len(values))
        assert np.mean(values) == pytest.approx(expected[source], abs=4 * error + 0.05), source


@pytest.mark.parametrize("levels", [3, 5])
def test_intervals_of_shares_cover_the_truth(levels: int) -> None:
    generator = np.random.default_rng(levels)
    parts = TRUE | {INTERACTIONS: TOGETHER, REPEATS: ERROR}
    total = sum(parts.values())
    covered = dict.fromkeys(parts, 0)
    for number in range(300):
        result = noise_result("m", drawn(generator, levels, repeats=levels), SOURCES, seed=number)
        assert sum(shares(result).values()) == pytest.approx(1)
        for part in result.shares:
            low, high = part.interval
            covered[part.source] += low <= parts[part.source] / total <= high
    assert min(covered.values()) >= 0.92 * 300, covered


def test_a_source_that_works_with_others_alone_moves_runs_where_it_alone_varies() -> None:
    """Two seeds of one source are alike in the mean, and unlike with each seed of the other."""
    signs = {(w, o): 1.0 if w == o else -1.0 for w, o in itertools.product(range(2), repeat=2)}
    result = noise_result("m", [NoisyRun(*key, 0, 0, value) for key, value in signs.items()], SOURCES[:2])
    assert shares(result) == {"weights": 0, "order": 0, INTERACTIONS: 1, REPEATS: 0}
    assert [part.varied for part in result.shares] == [1, 1, None, None]


def test_runs_that_all_agree_have_no_shares() -> None:
    runs = [NoisyRun(*key, 0, 1.0) for key in itertools.product(range(2), repeat=3)]
    result = noise_result("m", runs, SOURCES)
    assert (result.shares, result.deviation, result.mean) == ([], 0, 1)


def fake(values: Any, plans: list[SweepPlan]) -> Any:
    """A stand-in of `run_plan` that writes finished runs with values by (weights, order, draws, repeat)."""

    def run_plan(plan: SweepPlan, *_: Any, **__: Any) -> int:
        plans.append(plan)
        for cell in plan.cells:
            config = plan.config(cell)
            key = (config["init"]["seed"], config["trainer"]["order_seed"], cell.seed, config["repeat"] or 0)
            value = values(*key)
            assert cell.run == f"{run_name(config)}/s{cell.seed}"
            write(Path(plan.outputs), config, {}, cell.seed, 0.5, {"metrics": {"test/loss": value, "val/loss": value}})
        return 0

    return run_plan


def measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, values: Any, *more: str
) -> tuple[dict[str, Any], list[SweepPlan]]:
    plans: list[SweepPlan] = []
    monkeypatch.setattr(runner, "run_plan", fake(values, plans))
    monkeypatch.setattr(bench, "_announce", lambda *_: None)
    arguments = [*UNTRAINED, "metric=test/loss", f"out={tmp_path / 'out'}", f"outputs={tmp_path / 'outputs'}", *more]
    assert main(["bench", "noise", *arguments]) == 0
    return json.loads((tmp_path / "out" / "noise.json").read_text()), plans


def test_draws_that_change_nothing_leave_a_design_of_two_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, (pilot, rest) = measured(monkeypatch, tmp_path, lambda w, o, d, r: 1 + w + 0.5 * o)
    assert len(pilot.cells) == 4
    assert len(rest.cells) == 9 + 2
    assert {cell.run for cell in pilot.cells} - {cell.run for cell in rest.cells} == {pilot.cells[1].run}
    parts = {part["source"]: part for part in content["shares"]}
    assert list(parts) == ["weights", "order", INTERACTIONS, REPEATS]
    assert parts["weights"]["variance"] == pytest.approx(1)  # of 0, 1, 2
    assert parts["order"]["share"] == pytest.approx(0.2)
    assert parts["order"]["varied"] == pytest.approx(0.2)
    assert parts[INTERACTIONS]["share"] == pytest.approx(0, abs=1e-12)
    assert content["deviation"] == pytest.approx(math.sqrt(1.25))
    output = capsys.readouterr().out
    assert "dropout and augmentation draw nothing" in output
    assert "first weights          80 %" in output


def test_draws_that_change_a_run_are_a_third_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content, (_, rest) = measured(monkeypatch, tmp_path, lambda w, o, d, r: w + (1 + o) * d, "levels=2")
    assert len(rest.cells) == 8 + 2
    assert [part["source"] for part in content["shares"]] == [*SOURCES, INTERACTIONS, REPEATS]
    assert len(content["runs"]) == 10


def test_a_platform_that_is_not_quiet_has_a_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, (_, rest) = measured(monkeypatch, tmp_path, lambda w, o, d, r: w + 0.1 * r * (1 + d))
    assert len(rest.cells) == 27 + 3
    assert {part["source"]: part["variance"] for part in content["shares"]}[REPEATS] == pytest.approx(
        np.mean([0.1**2, 0.2**2, 0.3**2]) / 2
    )
    assert "quiet" not in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for key in ("seed", "init.seed", "trainer.order_seed", "repeat"):
        assert main(["bench", "noise", *UNTRAINED, f"{key}=1"]) == 2
        assert f"{key}= has no effect on bench noise" in capsys.readouterr().err
    assert main(["bench", "noise", "model.dmi=3"]) == 2
    assert "model.dim" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AssertionError):
        measured(monkeypatch, tmp_path, lambda w, o, d, r: math.nan if w == 2 else 1.0)
    assert "has no finite test/loss" in capsys.readouterr().err
