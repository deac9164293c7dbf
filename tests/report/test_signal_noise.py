"""The signal-to-noise ratio of metrics, from runs that exist."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from blockyard.commands._reader import run
from blockyard.report.stats.signal_noise import signal_rows
from blockyard.sweep.plan.planner import make_plan
from tests.report.report_runs import write
from tests.support.tiny import UNTRAINED

DRAW = np.random.default_rng(0)
VALUES = DRAW.normal(size=(4, 6)) + np.arange(4)[:, None] + DRAW.normal(size=6)  # arms, seeds


def by_arm(values: np.ndarray) -> dict[str, dict[int, float]]:
    return {f"arm{arm}": {seed: float(value) for seed, value in enumerate(row)} for arm, row in enumerate(values)}


def test_signal_and_noise_are_root_mean_squares_over_all_pairs() -> None:
    (row,) = signal_rows({"val/loss": by_arm(VALUES)})
    pairs = [first - second for first, second in itertools.combinations(VALUES, 2)]
    assert row.signal == pytest.approx(math.sqrt(np.mean([pair.mean() ** 2 for pair in pairs])))
    assert row.noise == pytest.approx(math.sqrt(np.mean([pair.var(ddof=1) for pair in pairs])))
    assert row.ratio == pytest.approx(row.signal / row.noise)
    assert (row.arms, row.seeds) == (4, 6)


def test_the_ratio_of_two_arms_is_their_effect_size() -> None:
    (row,) = signal_rows({"val/loss": by_arm(VALUES[:2])})
    gap = VALUES[0] - VALUES[1]
    assert row.ratio == pytest.approx(abs(gap.mean()) / gap.std(ddof=1))


def test_arms_that_do_not_differ_have_a_ratio_of_one_over_the_root_of_the_seeds() -> None:
    draw = np.random.default_rng(1)
    squares = []
    for _ in range(2000):
        (row,) = signal_rows({"a": by_arm(draw.normal(size=(3, 5)))})
        squares.append((row.signal / row.noise) ** 2)
    # F of 2 and 8 degrees of freedom over the seeds, whose mean is 8 / 6.
    assert np.mean(squares) == pytest.approx(8 / 6 / 5, rel=0.1)


def test_metrics_come_by_their_ratio_and_those_that_say_nothing_not_at_all() -> None:
    clear, noisy = VALUES.copy(), VALUES + DRAW.normal(size=VALUES.shape) * 9
    clear[1:] += 5
    exact = np.tile(np.arange(4.0)[:, None], 6)
    rows = signal_rows(
        {
            "noisy": by_arm(noisy),
            "exact": by_arm(exact),
            "same": by_arm(np.ones((4, 6))),
            "clear": by_arm(clear),
            "one": by_arm(clear[:1]),
            "few": by_arm(clear[:, :2]),
        }
    )
    assert [row.metric for row in rows] == ["clear", "noisy", "exact"]
    assert rows[-1].ratio is None


def test_arms_with_fewer_seeds_are_left_out_and_others_share_theirs() -> None:
    values = by_arm(VALUES)
    values["arm0"] = {0: 1.0, 1: 2.0}
    del values["arm1"][5]
    values["arm2"][4] = math.nan
    (row,) = signal_rows({"val/loss": values})
    assert (row.arms, row.seeds) == (3, 4)


def test_a_dry_run_ranks_the_metrics_of_finished_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(
        f"claim: x\nbase: [{', '.join(UNTRAINED)}]\nmetric: test/loss\nseeds: 3\n"
        "arms: {a: [block=pre_norm], b: [block=post_norm], again: [block=pre_norm, repeat=1]}\n"
    )
    outputs = tmp_path / "outputs"
    command = [str(file), "--dry-run", f"outputs={outputs}"]
    assert run("sweep", command) == 0
    assert "signal" not in capsys.readouterr().out
    plan = make_plan(file, outputs=str(outputs), command=["test"])
    for cell in plan.cells:
        arm, seed = cell.variant, cell.seed
        gap = 0.02 if arm == "b" else 0.0
        accuracy = 0.9 + gap + 0.01 * (seed - 1) * (arm == "b")
        losses = {"val/loss": 0.5 + gap + 0.002 * seed * (arm == "b"), "test/loss": 0.5 + 0.01 * seed + gap * seed}
        write(outputs, plan.config(cell), {}, seed, accuracy, {"metrics": {**losses, "test/accuracy": accuracy}})
    assert run("sweep", command) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.split()[:2] == ["metric", "signal"])
    table = [line.split() for line in lines[start + 1 : start + 4]]
    assert [row[0] for row in table] == ["val/loss", "test/accuracy", "test/loss"]
    assert table[2][1] == "(metric)"
    assert table[0][-1] == f"{0.022 / 0.002:.2f}"
    assert "on 3 seeds, where arms that do not differ have a ratio of about 0.58" in " ".join(lines)
