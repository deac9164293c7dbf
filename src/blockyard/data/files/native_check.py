"""Reads a Parquet or Arrow file in a process of its own before the real read.

Their readers check few of the offsets in a file: damaged bytes can end the process by a signal, without a message. A
file that the other process has read and validated in full is safe here. It is validated once for each set of columns.

Reference: pyarrow.Table.validate(full=True)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from blockyard.errors import UserError

PARQUET, ARROW, STREAM = "parquet", "arrow", "arrow stream"


def verify(path: Path, kind: str, columns: Sequence[str] = ()) -> list[str]:
    """Return the columns of a file that can be read without harm. Raises UserError for a damaged file.

    kind: parquet, arrow or arrow stream; columns: the ones that will be read
    """
    return verify_all([path], kind, columns)[0]


def verify_all(paths: Sequence[Path], kind: str, columns: Sequence[str] = ()) -> list[list[str]]:
    """Return the columns of several files as `verify` does, in one process."""
    files = []
    for path in paths:
        status = os.stat(path)
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        files.append((str(Path(path).absolute()), *version))
    result = _verified(tuple(files), kind, tuple(dict.fromkeys(columns)))
    if isinstance(result, str):
        raise UserError(result)
    return [list(names) for names in result]


@lru_cache(maxsize=1024)
def _verified(files: tuple[Any, ...], kind: str, columns: tuple[str, ...]) -> tuple[tuple[str, ...], ...] | str:
    """Return the columns of each file, or the problem of the first damaged one; both are cached."""
    paths = [file[0] for file in files]
    child = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        input=json.dumps([paths, kind, columns]).encode(),
        capture_output=True,
        check=False,
    )
    answers = [json.loads(line) for line in child.stdout.splitlines() if line.endswith(b"}")]
    for path, answer in zip(paths, answers, strict=False):
        if "problem" in answer:
            return f"{path} cannot be read as {kind}: {answer['problem']}"
    if child.returncode or len(answers) < len(paths):
        path = paths[min(len(answers), len(paths) - 1)]
        return f"{path} is damaged: its reader ended {_end(child.returncode, child.stderr)}; write the file again"
    return tuple(tuple(answer["names"]) for answer in answers)


def _end(code: int, stderr: bytes) -> str:
    if code < 0:
        return f"by {signal.Signals(-code).name}"
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    if not lines:
        return f"with exit code {code}"
    return f"with exit code {code} ({lines[-1][:200]})"


def _read(path: str, kind: str, columns: Sequence[str]) -> list[str]:
    """Read the names and validate the columns, as the other process will read them; all columns of a stream."""
    import pyarrow as pa

    if kind == PARQUET:
        import pyarrow.parquet

        names = list(pyarrow.parquet.ParquetFile(path).schema_arrow.names)
        there = [name for name in columns if names.count(name) == 1]
        if there:
            pyarrow.parquet.read_table(path, columns=there).validate(full=True)
        return names
    mapped = pa.memory_map(path)
    reader = pa.ipc.open_file(mapped) if kind == ARROW else pa.ipc.open_stream(mapped)
    names = list(reader.schema.names)
    there = [name for name in columns if names.count(name) == 1]
    if there:
        reader.read_all().select(there).validate(full=True)
    elif kind == STREAM:
        reader.read_all().validate(full=True)
    return names


def main() -> int:
    """Write a line for each file to standard output: its columns, or why it cannot be read."""
    import resource

    # A crash is expected here, and a core file of it would fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    paths, kind, columns = json.load(sys.stdin)
    for path in paths:
        try:
            text = json.dumps({"names": _read(path, kind, columns)})
        except Exception as error:  # readers raise nearly anything on a damaged file
            text = json.dumps({"problem": " ".join(str(error).split())[:500] or type(error).__name__})
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
