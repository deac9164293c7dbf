"""An installed wheel finds its configs, from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.every import every
from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("wheel")  # the wheel is built once


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the wheel's content, as pip would lay it out."""
    built = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = built.glob("*.whl")
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "blockyard", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_is_what_runs(installed, tmp_path):
    code = "import blockyard, blockyard.config.choices.catalog as c; print(blockyard.__file__); print(c.conf_dir())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert every(line.startswith(str(installed)) for line in done.stdout.split())


def test_it_holds_every_config(installed):
    shipped = {p.relative_to(ROOT / "conf") for p in (ROOT / "conf").rglob("*.yaml")}
    assert {
        p.relative_to(installed / "blockyard/conf") for p in (installed / "blockyard/conf").rglob("*.yaml")
    } == shipped


def files_of(package: Path) -> set[Path]:
    return {path.relative_to(package) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_it_holds_every_file_of_the_package(installed):
    """Also those that are not Python: the page, and the templates of `new` and `init`."""
    files = files_of(ROOT / "src" / "blockyard")
    assert files <= files_of(installed / "blockyard")
    assert {Path("report/page/style.css"), Path("commands/templates/init/.gitignore-tpl")} <= files


@pytest.mark.full
def test_it_holds_every_sweep(installed, tmp_path):
    shipped = {path.stem for path in (ROOT / "sweeps").glob("*.yaml")}
    assert {path.stem for path in (installed / "blockyard/sweeps").glob("*.yaml")} == shipped
    done = run(installed, tmp_path, "sweep", "quickstart", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "15 to run" in done.stdout


@pytest.mark.full
def test_it_trains_from_an_empty_folder(installed, tmp_path):
    done = run(installed, tmp_path, "train", "debug=fast", "logger=none")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("outputs/*/s0/summary.json"))
