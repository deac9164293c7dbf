"""`trainer.loops` and `eval loops=`: more or fewer times through the loop of blocks than in training."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.config.check import reasons
from blockyard.config.compose import compose
from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate
from blockyard.runs.folder import RunFolder
from tests.support.engine_runs import run
from tests.support.tiny import SHORTEST


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that is evaluated with one, two (as in training) and three loops at its end."""
    overrides = ("model.depth=3", "model.order=[0,1,1,2]", "trainer.loops=[1,2,3]")
    return run(tmp_path_factory.mktemp("looped"), *overrides, base=SHORTEST)


def test_metrics_of_each_number_of_loops(looped: RunFolder) -> None:
    """Those of training's number are the run's own, and others differ; each has a direction."""
    summary = looped.summary()
    values = summary["metrics"]
    for split in ("val", "test"):
        assert values[f"{split}/loss@2loops"] == values[f"{split}/loss"]
        assert len({values[f"{split}/loss@{times}loops"] for times in (1, 2, 3)}) == 3
        assert summary["directions"][f"{split}/accuracy@3loops"] == "max"


def test_evaluated_later(looped: RunFolder) -> None:
    recorded = looped.summary()["metrics"]
    later = evaluate(looped.path, loops=[1, 3])
    assert later == {name: recorded[name] for name in later}
    assert "test/accuracy@3loops" in later
    assert evaluate(looped.path)["test/loss"] == recorded["test/loss"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.order=[0,1,0,2]", "model.depth=3"], "not a loop"),
        (["model.order=[0,0]", "residual=x0"], "for each visit"),
        ([], "not a loop"),
    ],
)
def test_refused_by_check(overrides: list[str], message: str) -> None:
    issues = reasons(compose([*SHORTEST, "trainer.loops=[2]", *overrides]))
    assert len(issues) == 1
    assert "trainer.loops" in issues[0]
    assert message in issues[0]


def test_refused_by_eval(tmp_path: Path) -> None:
    folder = run(tmp_path, base=SHORTEST)
    with pytest.raises(UserError, match="not a loop"):
        evaluate(folder.path, loops=[2])
