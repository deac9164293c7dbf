"""Debian packages that a test needs, installed where they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

_APT = ("apt-get", "install", "--yes", "--no-install-recommends")


def require_commands(commands: tuple[str, ...], packages: tuple[str, ...]) -> None:
    """Install packages where a command is missing; skip the test, with the reason, where that cannot be done."""
    missing = [command for command in commands if shutil.which(command) is None]
    if not missing:
        return
    needs = f"{' '.join(missing)} missing, of Debian's {' '.join(packages)}"
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"{needs}; they are installed only by root with apt-get")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in ((*_APT, *packages), ("apt-get", "update"), (*_APT, *packages)):
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=900, check=False)
        if arguments[1] == "install" and done.returncode == 0:
            return
    pytest.skip(f"{needs}; apt-get: {' '.join(done.stderr.split())[-300:]}")
