"""Makes an environment for an interpreter, with the newest or the least versions of what pyproject.toml requires.

    python tools/environment.py .venv-3.12 3.12               the newest versions, not those of constraints.txt
    python tools/environment.py .venv-oldest 3.11 --lowest    the least version of every package that it names

With --lowest, what those packages require in turn is as new as they admit. The checkout is installed there too. An
interpreter that this machine does not have is not downloaded.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = (sys.executable, "-m", "uv", "--quiet", "--no-python-downloads")


def main() -> None:
    """Resolve, then install."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the environment")
    parser.add_argument("python", help="a version or a path")
    parser.add_argument("--lowest", action="store_true", help="the least versions instead of the newest")
    arguments = parser.parse_args()
    resolution = "highest"
    if arguments.lowest:
        resolution = "lowest-direct"

    find = [*UV, "python", "find", "--system", arguments.python]
    found = subprocess.run(find, capture_output=True, text=True, cwd=ROOT)
    if found.returncode:
        sys.exit(f"no Python {arguments.python} to be had; set PYTHONS to versions that are installed\n{found.stderr}")
    interpreter = ["--python", str(arguments.folder / "bin" / "python")]
    _uv("venv", "--allow-existing", "--python", arguments.python, str(arguments.folder))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as versions:
        resolve = ["pip", "compile", "pyproject.toml", "--extra", "dev", "--resolution", resolution]
        _uv(*resolve, *interpreter, "--output-file", versions.name)
        _uv("pip", "install", *interpreter, "--requirement", versions.name)
    _uv("pip", "install", *interpreter, "--no-deps", "--editable", ".")


def _uv(*arguments: str) -> None:
    subprocess.run([*UV, *arguments], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
