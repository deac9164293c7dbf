"""Tables that end their reader by a signal are refused in one message, and a file is read ahead once."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from blockyard.data.files import native_check
from blockyard.data.files.native_check import ARROW, PARQUET, STREAM, verify, verify_all
from blockyard.errors import UserError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A small Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "x.parquet")
    return tmp_path / "x.parquet"


@pytest.mark.parametrize("answer", ["", '{"names": ["a", "b"]}'], ids=["without an answer", "after its answer"])
def test_a_reader_that_is_killed_becomes_one_message(answer: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal that ends the other process is named, with the file, and this process goes on."""
    run = subprocess.run

    def killed(command: list[str], **settings: Any) -> Any:
        code = f"import os, signal; os.write(1, {answer.encode()!r}); os.kill(os.getpid(), signal.SIGSEGV)"
        return run([command[0], "-c", code], **settings)

    monkeypatch.setattr(native_check.subprocess, "run", killed)
    with pytest.raises(UserError, match=r"x\.parquet is damaged: its reader ended by SIGSEGV"):
        verify(table, PARQUET)


def test_a_reader_that_ends_without_an_answer_is_no_success(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 alone says nothing of the file."""
    run = subprocess.run
    monkeypatch.setattr(
        native_check.subprocess, "run", lambda command, **settings: run([command[0], "-c", ""], **settings)
    )
    with pytest.raises(UserError, match=r"x\.parquet is damaged: its reader ended with exit code 0"):
        verify(table, PARQUET)


def test_a_file_is_read_ahead_once(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is kept, a refusal too, until the file changes."""
    counts = []
    run = subprocess.run
    monkeypatch.setattr(native_check.subprocess, "run", lambda *a, **k: (counts.append(1), run(*a, **k))[1])
    assert verify(table, PARQUET, ["a"]) == verify(table, PARQUET, ["a"]) == ["a", "b"]
    assert len(counts) == 1
    table.write_bytes(table.read_bytes()[:-9])
    os.utime(table, ns=(1, 1))
    for _ in range(2):
        with pytest.raises(UserError, match="cannot be read as parquet"):
            verify(table, PARQUET, ["a"])
    assert len(counts) == 2


def test_text_that_is_not_valid_is_found_ahead(tmp_path: Path) -> None:
    """An Arrow file whose offsets lead out of its buffer is refused before it is read here, file and stream alike."""
    import pyarrow as pa

    batch = pa.table({"a": ["x" * 12345, "y" * 7655]}).to_batches()[0]
    sound, broken = (struct.pack("<3i", 0, 12345, end) for end in (20000, 2**30))
    for kind, new in ((ARROW, pa.ipc.new_file), (STREAM, pa.ipc.new_stream)):
        path = tmp_path / f"{kind}.arrow"
        with pa.OSFile(str(path), "wb") as file, new(file, batch.schema) as writer:
            writer.write_batch(batch)
        assert verify_all([path], kind, ["a"]) == [["a"]]
        assert path.read_bytes().count(sound) == 1
        path.write_bytes(path.read_bytes().replace(sound, broken))
        os.utime(path, ns=(1, 1))
        with pytest.raises(UserError, match=path.name):
            verify_all([path], kind, ["a"])
