"""Makes an environment with the least version of every package that pyproject.toml names.

    python tools/oldest.py PYTHON FOLDER

What those packages require in turn is as new as they admit. The checkout is installed there too.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Resolve, then install."""
    python, folder = sys.argv[1], Path(sys.argv[2])
    uv = [sys.executable, "-m", "uv", "--quiet"]
    interpreter = ["--python", str(folder / "bin" / "python")]
    subprocess.run([*uv, "venv", "--allow-existing", "--python", python, str(folder)], check=True, cwd=ROOT)
    lowest = [*uv, "pip", "compile", "pyproject.toml", "--extra", "dev", "--resolution", "lowest-direct"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as versions:
        subprocess.run([*lowest, *interpreter, "--output-file", versions.name], check=True, cwd=ROOT)
        subprocess.run([*uv, "pip", "install", *interpreter, "--requirement", versions.name], check=True, cwd=ROOT)
    subprocess.run([*uv, "pip", "install", *interpreter, "--no-deps", "--editable", "."], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
