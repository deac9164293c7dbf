"""Writes an SBOM of the installed environment, then looks every locked version up in the public advisories.

    make audit

dist/sbom.json (CycloneDX) needs no network. The advisories come from the service that pip-audit asks. Exit code 1: a
version has an advisory. 3: versions could not be looked up, because the service cannot be reached or does not know
them, as behind a mirror that serves files alone; nothing is known about those.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SBOM = ROOT / "dist" / "sbom.json"
LOCKS = ("build", "run", "dev", "supply")  # the shortest first: it shows whether there is an answer
SECONDS = 600


def write_sbom(python: Path, path: Path = SBOM) -> None:
    """Write the SBOM of the environment of an interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cyclonedx_py", "environment", str(python), "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(path)]
    subprocess.run(command, check=True)
    print(f"{path} is written")


def look_up(lock: Path) -> list[dict[str, Any]] | str:
    """What pip-audit reports about each package of a lock, or why it reports nothing."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    command += ["--format", "json", "--timeout", "20", "--requirement", str(lock)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS} s"
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return (done.stderr.strip().splitlines() or ["pip-audit gave no reason"])[-1][:300]
    return packages


def verdict(name: str, packages: list[dict[str, Any]] | str) -> int:
    """Print what is known about the packages of a lock; the exit code."""
    if isinstance(packages, str):
        packages, reason = [], packages
    else:
        skipped = [package for package in packages if "skip_reason" in package]
        reason = f"{len(skipped)} of {len(packages)}: {skipped[0]['skip_reason']}" if skipped else ""
    advisories = [
        f"  {package['name']} {package['version']}: {advisory['id']} {advisory.get('fix_versions') or 'not fixed'}"
        for package in packages
        for advisory in package.get("vulns") or ()
    ]
    if advisories:
        print(f"{name}: {len(advisories)} advisories", *advisories, sep="\n")
    if reason:
        print(
            f"{name}: NOT AUDITED: the advisory service cannot be reached from here or gives no answer ({reason}); "
            "run `make audit` where there is internet access",
            file=sys.stderr,
        )
    if not advisories and not reason:
        print(f"{name}: {len(packages)} packages, no advisory")
    return 1 if advisories else 3 if reason else 0


def main() -> None:
    """`python tools/audit.py PYTHON`: the SBOM of its environment, then the advisories of every lock."""
    write_sbom(Path(sys.argv[1]))
    codes = []
    for name in LOCKS:
        lock = ROOT / "requirements" / f"{name}.lock"
        codes.append(verdict(lock.name, look_up(lock)))
        if codes[-1] == 3:
            break
    sys.exit(1 if 1 in codes else max(codes))


if __name__ == "__main__":
    main()
