"""Runs of every release load, evaluate, generate, resume and compare; see tools/compat.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import blockyard as package
from blockyard.evaluate.api import evaluate
from blockyard.runs.folder import RunFolder
from tests.support.fork import blockyard
from tests.support.metrics_files import assert_equal_metrics
from tests.support.paths import ROOT

RELEASES = sorted(path for path in (ROOT / "tests" / "compat").iterdir() if (path / "outputs").is_dir())

pytestmark = pytest.mark.xdist_group("compat")


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def release(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a release's folder, which is the working folder: its text is named by a relative path."""
    folder = Path(shutil.copytree(request.param, tmp_path / "release", symlinks=True))
    monkeypatch.chdir(folder)
    return folder


def run_of(release: Path, name: str) -> Path:
    """The folder of a run by its name."""
    (path,) = release.glob(f"outputs/{name}-*/s0")
    return path


def test_there_is_a_release() -> None:
    assert [path.name for path in RELEASES][:1] == ["0.1.0"]
    sizes = [sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in RELEASES]
    assert max(sizes) <= 200_000


@pytest.mark.parametrize("name", ["vit", "gpt"])
def test_its_runs_load(release: Path, name: str) -> None:
    loaded = package.load(str(run_of(release, name)))
    assert loaded.config["model"]["dim"] == 8
    assert not loaded.model.training


@pytest.mark.parametrize("name", ["vit", "gpt"])
def test_its_runs_evaluate_to_what_they_did(release: Path, name: str) -> None:
    run = run_of(release, name)
    expected = RunFolder.open(run).summary()["metrics"]
    # Other versions of torch may sum in another order.
    assert evaluate(run) == pytest.approx({k: v for k, v in expected.items() if k.startswith("test/")}, rel=1e-4)


def test_its_text_run_generates(release: Path) -> None:
    done = blockyard(release, "generate", f"run={run_of(release, 'gpt')}", "prompt=7 times", "max_tokens=8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("7 times")


def test_its_interrupted_run_resumes_to_the_end_of_the_whole_one(release: Path) -> None:
    run = run_of(release, "interrupted")
    assert RunFolder.open(run).status.state == "interrupted"
    done = blockyard(release, "train", f"resume={run}")
    assert done.returncode == 0, done.stderr
    assert RunFolder.open(run).status.state == "done"
    assert_equal_metrics(run, run_of(release, "vit"))


def test_its_sweep_compares(release: Path) -> None:
    comparison = package.compare(str(release / "outputs" / "sweeps" / "positions")).as_dict()
    assert {arm["name"] for arm in comparison["arms"]} == {"with", "without"}
