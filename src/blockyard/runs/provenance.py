"""Where a run comes from: command, versions, git state, machine. Collecting it never fails."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from blockyard.runs.redact import redact_command
from blockyard.runs.status import now

PACKAGES = (
    "torch",
    "torchvision",
    "pytorch-lightning",
    "hydra-core",
    "omegaconf",
    "torchmetrics",
    "timm",
    "transformers",
    "tokenizers",
    "wandb",
    "numpy",
    "scikit-learn",
    "pydantic",
)
NOT_INSTALLED = "not installed"  # but read from a folder on the path, as benchmarks/gpu_check.py may be
_GIT_SECONDS = 5


class GitState(TypedDict):
    """A checkout. diff_hash: of its uncommitted changes, None where it has none"""

    commit: str
    branch: str | None
    dirty: bool
    diff_hash: str | None


class HostFacts(TypedDict):
    """A machine. threads: OMP_NUM_THREADS as it is set; gpus: by name"""

    name: str
    system: str
    cpu: str | None
    cores: int | None
    usable_cores: int | None
    threads: str | None
    memory_gib: float | None
    gpus: list[str]


class Provenance(TypedDict):
    """The facts that a run depends on besides its config. versions: of packages; git: None outside a checkout"""

    time: str
    command: list[str]
    folder: str
    versions: dict[str, str]
    git: GitState | None
    host: HostFacts


def provenance(command: Sequence[str] | None = None) -> Provenance:
    """Return the facts that a run depends on besides its config, as plain JSON without secrets."""
    return {
        "time": now(),
        "command": redact_command(sys.argv if command is None else command),
        "folder": os.getcwd(),
        "versions": versions(),
        "git": git_state(Path(__file__).parents[1]),
        "host": host_facts(),
    }


def own_code(packages: Sequence[str]) -> dict[str, str]:
    """Return a hash of the Python files of each package that a config allows: it changes with them."""
    hashes = {}
    for package in packages:
        try:
            spec = importlib.util.find_spec(package.partition(".")[0])
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            continue
        files = {}
        for location in spec.submodule_search_locations or ():
            folder = Path(location)
            for file in sorted(folder.rglob("*.py")):
                files[file.relative_to(folder)] = file
        if not files:  # a module of one file
            files = {Path(package): Path(str(spec.origin))}
        digest = hashlib.sha256()
        for name, file in files.items():
            digest.update(f"{name}\n".encode())
            with contextlib.suppress(OSError):  # a run that reads the file fails by itself
                digest.update(file.read_bytes())
        hashes[package] = digest.hexdigest()[:16]
    return hashes


def versions() -> dict[str, str]:
    """Return the installed versions of packages that can change a result, read without importing them."""
    installed = {"python": platform.python_version(), "blockyard": NOT_INSTALLED}
    for name in ("blockyard", *PACKAGES):
        number = _version(name)
        if number is not None:
            installed[name] = number
    return installed


@cache
def _version(name: str) -> str | None:
    """Read once in a process: it keeps the code that it has imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git_state(folder: Path) -> GitState | None:
    """Return commit, branch and a hash of uncommitted changes of the checkout around `folder`; None outside one.

    Only tracked files count. The address of the remote is not read, because it may contain a password.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    # A wheel installed inside another repository is not that repository's code.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    branch = _git(folder, "rev-parse", "--abbrev-ref", "HEAD") or ""
    # The settings of a user's git, such as colours or an external diff, must not change the hash.
    diff = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-color", "--binary")
    diff_hash = None
    if diff:
        diff_hash = hashlib.sha256(diff.encode(errors="replace")).hexdigest()[:16]
    return {
        "commit": commit.strip(),
        "branch": branch.strip() or None,
        "dirty": bool(diff),
        "diff_hash": diff_hash,
    }


def host_facts() -> HostFacts:
    """Return the machine: name, system, processor, cores, memory, and GPUs by name."""
    usable_cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        usable_cores = len(os.sched_getaffinity(0))
    return {
        "name": socket.gethostname(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
    }


def _git(folder: Path, *args: str) -> str | None:
    # Inside a hook of another repository, GIT_DIR and its like would name that one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args],
            capture_output=True,
            timeout=_GIT_SECONDS,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode:
        return None
    return done.stdout.decode(errors="replace")


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith(("model name", "Hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _gpus() -> list[str]:
    # Only if torch is loaded already: importing it takes seconds.
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    try:
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError, AttributeError):
        return []
