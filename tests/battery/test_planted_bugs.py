"""Bugs planted in the guarding code: the short form of the batteries, or the test named, fails on each.

A planted bug replaces one passage of a source file in a copy of the project, and runs the tests that guard it there.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.battery.cases import battery, cases
from tests.battery.planted import BUGS, Bug
from tests.support.paths import ROOT

pytestmark = battery("planted_bugs")
COPIED = ("src", "conf", "sweeps", "tests", "pyproject.toml")
LIMIT = 600  # s, for the tests of one bug


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, into which bugs are planted one at a time."""
    copy = tmp_path_factory.mktemp("planted")
    for name in COPIED:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, copy / name, ignore=ignored) if source.is_dir() else shutil.copy(source, copy / name)
    return copy


@pytest.fixture
def clean(project: Path) -> Iterator[Path]:
    """The copy as it is in the project, also afterwards."""
    yield project
    shutil.copytree(ROOT / "src", project / "src", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def run(project: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests of the copy in a process of their own."""
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_every_bug_can_still_be_planted(bug: Bug, record_property: pytest.RecordProperty) -> None:
    record_property("cases", 0)
    text = (ROOT / "src" / "blockyard" / bug.file).read_text(encoding="utf-8")
    assert text.count(bug.sound) == 1, "the passage changed: plant the bug in the new one"
    assert bug.broken != bug.sound
    planted = ast.parse(text.replace(bug.sound, bug.broken))  # raises SyntaxError for a bug that only breaks the file
    assert ast.dump(planted) != ast.dump(ast.parse(text)), "the bug changes nothing that runs"
    for test in bug.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("bug", cases(BUGS, short=0, names=lambda bug: bug.name))
def test_the_planted_bug_is_caught(clean: Path, bug: Bug) -> None:
    path = clean / "src" / "blockyard" / bug.file
    path.write_text(path.read_text(encoding="utf-8").replace(bug.sound, bug.broken), encoding="utf-8")
    done = run(clean, bug.tests)
    assert done.returncode == 1, f"{bug.name} was not caught\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}"


@pytest.mark.battery
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("test", sorted({test for bug in BUGS for test in bug.tests}))
def test_sound_code_passes_what_catches_a_bug(clean: Path, test: str, record_property: pytest.RecordProperty) -> None:
    """The copy itself breaks nothing: without a bug each of these tests passes, so that a bug is what fails it."""
    record_property("cases", 0)
    done = run(clean, (test,))
    assert done.returncode == 0, done.stdout[-3000:]
