"""Runs benchmarks and puts what they print into docs/performance.md, with the date and the machine.

    python tools/performance.py overhead [ARGUMENT ...]

`overhead` is benchmarks/overhead.py; its section of the page stands between markers of its name. Run it with nothing
else running.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"


def machine() -> str:
    """The processor, the number of cores and torch's version."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.M) if cpuinfo.is_file() else []
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    name = models[0] if models else platform.processor()
    return f"{os.cpu_count()} cores ({name}){gpu}, torch {torch.__version__}"


def section(name: str, arguments: list[str], printed: str, load: float) -> str:
    """What stands between the markers of a benchmark."""
    command = " ".join(["python", f"benchmarks/{name}.py", *arguments])
    today = datetime.date.today().isoformat()
    return f"`{command}`, {today}, {machine()}, load {load:.1f} at the start:\n\n{printed.strip()}"


def main() -> int:
    """Run one benchmark and rewrite its section."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    name, *arguments = sys.argv[1:]
    text, load = PAGE.read_text(encoding="utf-8"), os.getloadavg()[0]
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if begin not in text:
        sys.exit(
            f"docs/performance.md has no section {name}; sections: {', '.join(re.findall('begin (.*) -->', text))}"
        )
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / f"{name}.py", *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    body = f"{begin}\n{section(name, arguments, done.stdout, load)}\n{end}"
    PAGE.write_text(re.sub(rf"{begin}.*?{end}", lambda _: body, text, flags=re.S), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
