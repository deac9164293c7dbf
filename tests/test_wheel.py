"""The distributions that would be published: whole, sound for an index, and enough without the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
from importlib import metadata
from pathlib import Path

import pytest

import blockyard
from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("wheel")  # the distributions are built once


def run(*command: object, folder: Path = ROOT) -> str:
    """Run a command that has to succeed and return its standard output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment of its own with the wheel, and the packages of this one without the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    # A folder of a .pth file is searched, but its own .pth files, such as that of an editable checkout, are not read.
    packages = dict.fromkeys(path for path in sys.path if path.endswith("site-packages"))
    (site / "packages.pth").write_text("\n".join([*packages, sysconfig.get_path("purelib")]), encoding="utf-8")
    return folder


def test_the_metadata_is_sound_and_the_readme_renders(built: Path) -> None:
    checked = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *sorted(built.iterdir()))
    assert checked.count("PASSED") == 2


def test_the_source_distribution_has_every_file_of_the_checkout(built: Path) -> None:
    """All that its README, its pages and its tests name; an unpacked one knows no other files than its own."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        names = {member.partition("/")[2] for member in members.getnames()}
    tracked = run("git", "ls-files", "-z").strip("\0").split("\0")
    assert {"Makefile", "constraints.txt", "requirements/run.lock", ".ci/run"} <= {*tracked}
    assert [name for name in tracked if name not in names] == []


def test_the_version_is_that_of_the_changelog() -> None:
    heading = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None
    assert heading[1] == blockyard.__version__


def test_it_says_what_an_index_shows(installed: Path) -> None:
    (site,) = installed.glob("lib/python*/site-packages")
    (found,) = metadata.distributions(name="blockyard", path=[str(site)])
    assert found.version == blockyard.__version__
    assert {"Author", "Classifier", "Keywords", "License-Expression"} <= {*found.metadata}
    text = found.metadata["Description"] or found.metadata.get_payload()
    assert "pip install blockyard" in text
    assert "[Tutorial]" not in text
    assert "Tutorial" in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith("https://")] == [], "paths that lead nowhere on an index"


def files_of(package: Path) -> set[Path]:
    return {path.relative_to(package) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_it_holds_every_file_of_the_package(installed: Path) -> None:
    """Also those that are not Python: configs, sweeps, the page, and the templates of `new` and `init`."""
    (package,) = installed.glob("lib/python*/site-packages/blockyard")
    files = files_of(package)
    assert files_of(ROOT / "src" / "blockyard") <= files
    for folder in ("conf", "sweeps"):
        assert {Path(folder) / path for path in files_of(ROOT / folder)} <= files
    assert {
        Path("report/page/style.css"),
        Path("commands/templates/init/.gitignore-tpl"),
        Path("data/co2.csv"),
    } <= files


def test_it_answers_its_first_question_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """The command of the README, with fewer and shorter runs."""
    python, command = installed / "bin" / "python", installed / "bin" / "blockyard"
    module = "import blockyard.config.choices.catalog as c; print(c.__file__, c.conf_dir())"
    for path in run(python, "-P", "-c", module, folder=tmp_path).split():
        assert Path(path).is_relative_to(installed)
    assert run(command, "--version", folder=tmp_path) == f"blockyard {blockyard.__version__}\n"
    out = run(command, "sweep", "quickstart", "--seeds", 2, "trainer.max_epochs=1", "logger=none", folder=tmp_path)
    assert "stem" in out
    assert len(list(tmp_path.glob("outputs/*/s[01]/summary.json"))) == 4
    assert list(tmp_path.glob("outputs/sweeps/quickstart/*.html"))
