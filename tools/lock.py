"""Writes requirements/*.lock, which `make` installs, and constraints.txt, their versions alone.

    make lock                               keeps the versions of constraints.txt; for a requirement that is new
    make lock UPGRADE=--upgrade             the newest versions that the ranges in pyproject.toml admit
    make lock UPGRADE="--package torch"     the newest version of one package

A lock has the exact version of each package, those that packages require included, and the hashes of all files of that
version: every platform and Python from PYTHON on can install it, and only these files. The index is the one that uv is
set up with. A package is in the first lock that needs it of build, run and dev; supply stands alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS, LOCKS = ROOT / "constraints.txt", ROOT / "requirements"
PYTHON = "3.11.0"
# Builds antlr4-python3-runtime, which Hydra requires and which is published as source only; an editable checkout.
BUILD = ("setuptools", "editables")
# What is installed without what it requires: W&B's schema of sweep files, whose code is not run (an old numpy); and muP
# of its authors, of which tests use the rates alone (seaborn, for its plots).
ALONE = ("sweeps", "mup")
WRITTEN = "Written by `make lock`; the ranges are in pyproject.toml.\n"
CONTENT = {
    "build": "builds the checkout and the one dependency without a wheel",
    "run": "blockyard imports",
    "dev": "`make test` and `make docs` use besides",
    "supply": "`make lock`, `make audit`, `make test-oldest` and `make test-pythons` use, in an environment of its own",
}
Entries = dict[str, str]  # name==version -> the lines of the lock


def main() -> None:
    """Write the files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = [*project["build-system"]["requires"], *BUILD]
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch) / "versions.txt"
        pinned = _pinned(sys.argv[1:])
        constraints.write_text("\n".join(pinned), encoding="utf-8")
        dev = _compiled(["pyproject.toml", "--extra", "dev"], constraints)
        alone = _compiled(["-", "--no-deps"], constraints, [*ALONE])
        # What only `supply` needs stands in its own lock and not among the versions of the others.
        pinned += _pinned(sys.argv[1:], LOCKS / "supply.lock")
        constraints.write_text("\n".join(pinned), encoding="utf-8")
        supply = _compiled(["-"], constraints, project["project"]["optional-dependencies"]["supply"])
        # One version of a package in all locks but `supply`.
        constraints.write_text("\n".join(dev), encoding="utf-8")
        run = _compiled(["pyproject.toml"], constraints)
        first = _compiled(["-"], constraints, build)
    _write({"build": first, "run": run, "dev": dev | alone})
    _write_lock("supply", supply)


def _pinned(arguments: list[str], file: Path = VERSIONS) -> list[str]:
    """Return the versions in constraints.txt, or in a lock, that are not to be upgraded."""
    if "--upgrade" in arguments or not file.exists():
        return []
    released = {word for flag, word in pairwise(arguments) if flag == "--package"}
    lines = file.read_text(encoding="utf-8").splitlines()
    versions = [line.removesuffix("\\").strip() for line in lines if re.match(r"[\w.\[\]-]+==", line)]
    return [version for version in versions if version.partition("==")[0] not in released]


def _compiled(words: list[str], constraints: Path, requirements: list[str] | None = None) -> Entries:
    """What uv resolves a file's requirements to, or those given."""
    command = [sys.executable, "-m", "uv", "pip", "compile", *words, "--constraint", str(constraints), "--quiet"]
    command += ["--no-header", "--no-annotate", "--generate-hashes"]
    command += ["--universal", "--python-version", PYTHON]
    done = subprocess.run(command, input="\n".join(requirements or []), capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(done.stderr)
    entries = re.split(r"^(?=\S)", done.stdout, flags=re.MULTILINE)
    return {entry.split()[0]: entry for entry in entries if entry}


def _write(locks: dict[str, Entries]) -> None:
    """Write locks without the packages of those before them, and the versions of all."""
    seen: Entries = {}
    for name, entries in locks.items():
        # One that an earlier lock has for other platforms only is there twice.
        _write_lock(name, {key: entry for key, entry in entries.items() if seen.get(key) != entry})
        seen |= entries
    head = f"# The versions in build.lock, run.lock and dev.lock, for `pip install --constraint`. {WRITTEN}"
    VERSIONS.write_text(head + "".join(f"{key}\n" for key in sorted(seen)), encoding="utf-8")


def _write_lock(name: str, entries: Entries) -> None:
    LOCKS.mkdir(exist_ok=True)
    text = "".join(entries[key] for key in sorted(entries))
    (LOCKS / f"{name}.lock").write_text(f"# What {CONTENT[name]}. {WRITTEN}{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
