"""Metric classes of the user's own in `objective.metrics`: allowed by package, measured, resumed, and refused."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.sweep.plan.target_metric import validation_metric
from tests.support.engine_runs import config, rows, run

METRICS = """
    import pathlib
    import torch
    from torchmetrics import Metric

    pathlib.Path("IMPORTED").touch()

    class Share(Metric):
        higher_is_better = True

        def __init__(self, index: int = 0):
            super().__init__()
            self.index = index
            self.add_state("hits", torch.tensor(0), dist_reduce_fx="sum")
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, probabilities, target):
            torch.testing.assert_close(probabilities.sum(-1), torch.ones(len(target), dtype=torch.float64))
            self.hits += (probabilities.argmax(-1) == target).sum()
            self.count += len(target)

        def compute(self):
            return float(self.hits / self.count)

    class Undirected(Share):
        higher_is_better = None

    class Broken(Metric):
        def update(self, probabilities, target):
            raise KeyError("nothing here")

        def compute(self):
            return 0.0

    class Two(Share):
        def compute(self):
            return torch.zeros(2)

    class Plain:
        pass
"""
OWN = "objective.metrics={share: {_target_: metricpack.metrics.Share, index: 3}, top2: {metric: Accuracy, top_k: 2}}"
ALLOW = "allow=[metricpack]"
SHORT = ("trainer.max_steps=4", "trainer.eval_every=2")


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder has a package `metricpack`."""
    (tmp_path / "metricpack").mkdir()
    (tmp_path / "metricpack" / "__init__.py").touch()
    (tmp_path / "metricpack" / "metrics.py").write_text(textwrap.dedent(METRICS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("metricpack")]:
        del sys.modules[name]


def check(value: str, *more: str) -> int:
    """The exit code of `check` with a metric."""
    return main(["check", "experiment=vit_digits", f"objective.metrics={value}", *more])


def test_a_metric_of_another_package_needs_allow(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `allow` the class is refused by name in one message, and its package is not imported."""
    for command in ("check", "train"):
        assert main([command, "experiment=vit_digits", OWN]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "objective.metrics.share._target_" in line
        assert "allow=[metricpack]" in line
    assert not (package / "IMPORTED").exists()
    assert not (package / "outputs").exists()
    assert main(["check", "experiment=vit_digits", OWN, ALLOW]) == 0


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("metricpack.metrics.Broken", "objective.metrics.mine fails"),
        ("metricpack.metrics.Two", "objective.metrics.mine gives 2 numbers"),
        ("metricpack.metrics.Plain", "is not a torchmetrics.Metric"),
        ("metricpack.metrics.Absent", "cannot be imported"),
        ("metricpack.metrics.Share, idx: 1", "objective.metrics.mine.idx"),
        ("metricpack.metrics.Share, index: two", "objective.metrics.mine.index"),
        ("torchmetrics.text.BERTScore", "cannot be a torchmetrics.Metric here"),
    ],
)
def test_classes_that_are_no_metric_are_refused(name: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A class that fails, gives two numbers, is no metric or may read files is refused before anything is trained."""
    assert check(f"{{mine: {{_target_: {name}}}}}", ALLOW) == 2
    assert key in capsys.readouterr().err


@pytest.mark.parametrize("value", ["{_target_: metricpack.metrics.Share}", "[{_target_: metricpack.metrics.Share}]"])
def test_a_metric_needs_a_name(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A class beside no name of a column is an invalid value."""
    assert check(value, ALLOW) == 2
    assert "objective.metrics: invalid value" in capsys.readouterr().err


def test_it_is_measured_and_survives_a_resume(tmp_path: Path) -> None:
    """Its values are those of the accuracy that it computes, also after a resume, which needs `allow` again."""
    run_folder = run(tmp_path / "outputs", OWN, ALLOW, *SHORT)
    for row in rows(run_folder):
        if "val/loss" in row:
            assert row["val/share"] == pytest.approx(row["val/accuracy"])
    metrics = run_folder.summary()["metrics"]
    assert metrics["test/share"] == pytest.approx(metrics["test/accuracy"])
    assert run_folder.summary()["directions"]["test/share"] == "max"
    again = ["train", f"resume={run_folder.path}", "trainer.max_steps=6"]
    assert main(again) == 2
    assert main([*again, ALLOW]) == 0
    (longer,) = (RunFolder.open(path) for path in (tmp_path / "outputs").glob("*/s0") if path != run_folder.path)
    assert [row["step"] for row in rows(longer) if "val/share" in row] == [2, 4, 6]


def test_a_folder_that_names_a_class_without_allowing_it_is_refused(package: Path, tmp_path: Path) -> None:
    """A run folder cannot smuggle in a class: what it names and does not allow is refused, and not imported."""
    run_folder = run(tmp_path / "outputs", *SHORT)
    path = run_folder.path / "config.yaml"
    content = yaml.safe_load(path.read_text())
    content["objective"]["metrics"] = {"share": {"_target_": "metricpack.metrics.Share"}}
    path.write_text(yaml.safe_dump(content))
    assert main(shlex.split(f"eval run={run_folder.path}")) == 2
    assert main(["train", f"resume={run_folder.path}", "trainer.max_steps=6"]) == 2
    assert not (package / "IMPORTED").exists()


def test_a_finished_run_is_evaluated_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`eval metrics=` takes a class of an allowed package as `objective.metrics` does."""
    run_folder = run(tmp_path / "outputs", *SHORT)
    metric = "metrics={share: {_target_: metricpack.metrics.Share}}"
    assert main(["eval", f"run={run_folder.path}", metric]) == 2
    capsys.readouterr()
    assert main(["eval", f"run={run_folder.path}", metric, ALLOW]) == 0
    values = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(values["test/share"]) == pytest.approx(float(values["test/accuracy"]))


@pytest.mark.full
def test_options_of_a_metric_are_part_of_the_identity(tmp_path: Path) -> None:
    """Two configs with other options of a metric are two runs; a default that is written out is the same run."""
    names = ["{}", "{index: 0}", "{index: 3}"]
    folders: list[RunFolder] = []
    for index, options in enumerate(names):
        node = json.dumps({"_target_": "metricpack.metrics.Share"} | yaml.safe_load(options)).replace('"', "")
        folders.append(run(tmp_path / str(index), f"objective.metrics={{share: {node}}}", ALLOW, *SHORT))
    assert folders[0].identity == folders[1].identity != folders[2].identity


def test_a_sweep_needs_a_direction(tmp_path: Path) -> None:
    """A sweep takes the metric where its class declares which way is better, and says so where it does not."""
    plain, _ = config(tmp_path, OWN, ALLOW)
    assert validation_metric("test/share", plain, ["metricpack"]) == ("val/share", "max")
    plain["objective"]["metrics"]["share"]["_target_"] = "metricpack.metrics.Undirected"
    with pytest.raises(UserError, match="higher_is_better"):
        validation_metric("test/share", plain, ["metricpack"])
