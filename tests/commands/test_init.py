"""`blockyard init`: the project works at once, and nothing is overwritten."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from blockyard.cli import main
from tests.support.fork import blockyard, pytest_in
from tests.support.tiny import ONE_LAYER

SMALL = ("debug=fast", "logger=none", *ONE_LAYER)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projects")
    done = blockyard(folder, "init", "My-Study")
    assert done.returncode == 0, done.stderr
    files = {path.relative_to(folder) for path in (folder / "My-Study").rglob("*") if path.is_file()}
    assert files == {Path(line.removeprefix("wrote ")) for line in done.stdout.splitlines()[:-1]}
    return folder / "My-Study"


@pytest.mark.full
def test_it_trains_and_sweeps(project: Path) -> None:
    done = blockyard(project, "train", "experiment=baseline", "token_mixer=running_mean", *SMALL)
    assert done.returncode == 0, done.stderr
    done = blockyard(project, "sweep", "sweeps/running_mean.yaml", *SMALL, "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "running_mean" in done.stdout
    assert (project / "outputs" / "sweeps" / "running_mean" / "report.html").is_file()


@pytest.mark.full
def test_its_component_does_what_it_declares(project: Path) -> None:
    done = blockyard(project, "verify", "token_mixer=running_mean")
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_its_own_tests_pass_and_find_a_planted_mistake(project: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = pytest_in(project, *options)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    experiment = project / "conf" / "experiment" / "baseline.yaml"
    before = experiment.read_text(encoding="utf-8")
    experiment.write_text(before.replace("depth: 3", "depht: 3"), encoding="utf-8")
    done = pytest_in(project, *options)
    experiment.write_text(before, encoding="utf-8")
    assert done.returncode == 1
    assert "2 failed, 1 passed" in done.stdout


def test_choices_of_data_are_committed(project: Path, tmp_path: Path) -> None:
    """`data/` without a slash in front also meant conf/data, where `blockyard new data` writes."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shutil.copy(project / ".gitignore", tmp_path)
    paths = ["conf/data/mine.yaml", "data/digits.npz", "outputs/x/s0/config.yaml", ".schema/config.json"]
    done = subprocess.run(["git", "-C", tmp_path, "check-ignore", *paths], capture_output=True, text=True)
    assert done.stdout.split() == paths[1:]


def test_its_files_are_of_one_name(project: Path) -> None:
    assert yaml.safe_load((project / "blockyard.yaml").read_text()) == {"config_dirs": ["conf"], "allow": ["my_study"]}
    assert (project / "my_study" / "running_mean.py").is_file()
    for path in project.rglob("*"):
        if path.is_file() and "outputs" not in path.parts and path.suffix in (".md", ".py", ".toml", ".yaml", ".yml"):
            names = set(path.read_text(encoding="utf-8").replace("/", " ").split())
            assert not names & {"PROJECT", "PACKAGE", "CONF", "NAME"}, path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "init takes one folder"),
        (("one", "two"), "init takes one folder"),
        (("x" * 300,), "the name is too long for a file or folder"),
        (("/proc/x",), "/proc/x cannot be written: "),
        (("full",), "is not an empty folder"),
        (("file",), "is not an empty folder"),
        (("link",), "is not an empty folder"),
        (("9lives",), "package=9lives is not the name of a Python package"),
        (("torch",), "package=torch is an installed package"),
        (("mine", "package=conf"), "package=conf is a folder of the project already"),
        (("mine", "packages=x"), "did you mean package"),
    ],
)
def test_what_cannot_be_made_is_refused(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    before = sorted(tmp_path.rglob("*"))
    assert main(["init", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_package_may_be_called_as_yaml_calls_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "on"]) == 0
    assert yaml.safe_load((tmp_path / "on" / "blockyard.yaml").read_text())["allow"] == ["on"]
