"""The locks that `make` installs hold every requirement once, exactly and with hashes, and name no host."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT
from tools import audit
from tools.lock import ALONE

LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def entries(path: Path) -> dict[str, tuple[str, int]]:
    """name -> its version, and the number of its hashes."""
    text = path.read_text(encoding="utf-8")
    hashes = {}
    for entry in re.split(r"^(?=[A-Za-z])", text, flags=re.MULTILINE)[1:]:
        name, version = re.match(r"([\w.-]+)==(\S+)", entry).groups()
        assert canonicalize_name(name) not in hashes, f"{name} is twice in {path.name}"
        hashes[canonicalize_name(name)] = (version, len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)))
    return hashes


def test_the_locks_hold_what_the_packages_of_this_environment_require() -> None:
    """Of the installed packages that a lock has, each requirement is in the locks, for this platform."""
    paths = [ROOT / "requirements" / f"{name}.lock" for name in ("build", "run", "dev")]
    here = {name for path in paths for name in installable(path)}
    missing = [
        f"{name} requires {requirement}"
        for name in sorted(here - {*ALONE})
        for requirement in map(Requirement, requires_of(name))
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonicalize_name(requirement.name) not in here
    ]
    assert missing == []


def installable(path: Path) -> set[str]:
    """The packages of a lock whose markers hold here."""
    lines = re.findall(r"^[A-Za-z].*?(?= \\$)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name) for each in requirements if each.marker is None or each.marker.evaluate()}


def requires_of(name: str) -> list[str]:
    """What the installed package requires; nothing where it is not installed."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def required(extra: str) -> list[Requirement]:
    own = PROJECT["project"]["name"]
    names = []
    for requirement in map(Requirement, PROJECT["project"]["optional-dependencies"][extra]):
        names += (
            [each for name in requirement.extras for each in required(name)]
            if requirement.name == own
            else [requirement]
        )
    return names


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_package_has_hashes(path: Path) -> None:
    assert [name for name, (_, hashes) in entries(path).items() if not hashes] == []
    assert not re.search(r"://|--(index|extra|find|trusted)", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("names", "requirements"),
    [
        (["build"], [Requirement(text) for text in PROJECT["build-system"]["requires"]]),
        (["build", "run"], [Requirement(text) for text in PROJECT["project"]["dependencies"]]),
        (["build", "run", "dev"], required("dev")),
        (["supply"], required("supply")),
    ],
    ids=["build", "run", "dev", "supply"],
)
def test_every_requirement_is_locked_within_its_range(names: list[str], requirements: list[Requirement]) -> None:
    locked = {k: v for name in names for k, v in entries(ROOT / "requirements" / f"{name}.lock").items()}
    versions = {each: locked.get(canonicalize_name(each.name), ("none", 0))[0] for each in requirements}
    assert [(str(each), version) for each, version in versions.items() if not each.specifier.contains(version)] == []


def test_constraints_are_the_versions_of_the_locks() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    paths = [ROOT / "requirements" / f"{name}.lock" for name in ("build", "run", "dev")]
    assert listed == sorted({f"{name}=={version}" for path in paths for name, (version, _) in entries(path).items()})


def package(**more: Any) -> dict[str, Any]:
    return {"name": "torch", "version": "1.0", "vulns": [], **more}


ADVISORY = {"id": "PYSEC-1", "fix_versions": ["1.1"]}


@pytest.mark.parametrize(
    ("packages", "code", "message"),
    [
        ([package()], 0, "1 packages, no advisory"),
        ([package(vulns=[ADVISORY])], 1, "torch 1.0: PYSEC-1 ['1.1']"),
        ([package(skip_reason="not found")], 3, "no answer (1 of 1: not found)"),
        ([package(vulns=[ADVISORY]), package(skip_reason="not found")], 1, "NOT AUDITED"),
        ("Could not resolve host", 3, "no answer (Could not resolve host)"),
    ],
)
def test_a_version_that_was_not_looked_up_is_not_called_sound(
    packages: list[dict[str, Any]] | str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.verdict("run.lock", packages) == code
    printed = capsys.readouterr()
    report = " ".join((printed.out + printed.err).split())
    assert message in report
