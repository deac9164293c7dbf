"""Types the commands of a page's `console` blocks and puts what they print below them.

    python tools/outputs.py docs/tutorial.md [...]

The commands run in an empty folder with the files that the page shows. Only standard output is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.pages import FENCE, write_files  # noqa: E402

COLUMNS = "100"


def output(command: str, folder: Path) -> str:
    """What a command prints. Raises SystemExit where it fails."""
    environment = os.environ | {"COLUMNS": COLUMNS, "NO_COLOR": "1", "WANDB_MODE": "offline"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    typed = re.sub(r"^blockyard ", f"{sys.executable} -m blockyard ", re.sub(r"\s+#.*", "", command))
    typed = re.sub(r"^python ", f"{sys.executable} ", typed)
    done = subprocess.run(typed, shell=True, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    if done.returncode not in (0, 2):
        sys.exit(f"{command}\n{done.stdout}{done.stderr}")
    return shown(done, folder)


def shown(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    """What a page shows of a finished command: its output, or the error where it refused."""
    text = done.stderr if done.returncode else done.stdout
    lines = [line.rstrip() for line in text.replace(f"{folder}/", "").splitlines()]
    return "\n".join(lines).rstrip()


def renewed(path: Path, folder: Path) -> str:
    """The page with the outputs of now."""

    def renew(match: re.Match[str]) -> str:
        if match[3] != "console" or (match[1] or "").startswith("not typed: "):
            return match[0]
        body = ""
        for line in match[5].splitlines():
            if line.startswith("$ "):
                sys.stderr.write(f"{line}\n")
                printed = output(line[2:], folder)
                body += f"{line}\n" + (f"{printed}\n" if printed else "")
        return match[0].replace(match[5], body)

    return FENCE.sub(renew, path.read_text(encoding="utf-8"))


def main() -> None:
    """Renew the pages named."""
    if not sys.argv[1:] or any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(__doc__)
    for page in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch).resolve()
            write_files(page, folder)
            page.write_text(renewed(page, folder), encoding="utf-8")


if __name__ == "__main__":
    main()
