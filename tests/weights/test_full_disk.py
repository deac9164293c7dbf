"""Weights and graphs on a full disk: an OSError with its reason, and nothing half written."""

from __future__ import annotations

import contextlib
import errno
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from blockyard.atomic_files import new_folder
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.runs.load import load
from blockyard.runs.weights_file import WEIGHTS, write_weights
from blockyard.weights.convert.exporting import PT2, write_pt2
from tests.support.fork import forked
from tests.support.untrained import untrained

VIT = ("preset=vit", "data=digits", "model.dim=16", "model.depth=1", "model.heads=4")


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """In this block, let every write beyond `size` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python would cut that of a module that is imported here
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writes_bytecode


def test_weights_that_cannot_be_written_raise_an_error_of_the_system(tmp_path: Path) -> None:
    with limited(4096), pytest.raises(OSError, match=WEIGHTS) as raised:
        write_weights(tmp_path / WEIGHTS, {"a": torch.zeros(10_000)})
    assert raised.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_its_end_is_named(tmp_path: Path) -> None:
    with (
        limited(4096),
        pytest.raises(OSError, match=r"File too large: .*/exported'") as raised,
        new_folder(tmp_path / "exported") as temporary,
    ):
        write_weights(temporary / WEIGHTS, {"a": torch.zeros(10_000)})
    assert not isinstance(raised.value, UserError)
    assert not list(tmp_path.iterdir())


def test_a_graph_that_cannot_be_written_leaves_the_process_alive(tmp_path: Path) -> None:
    run = load(untrained(tmp_path / "run", *VIT))
    (tmp_path / "out").mkdir()

    def work() -> int:
        with limited(4096), contextlib.suppress(OSError):
            write_pt2(run, tmp_path / "out")
            return 1
        return 0

    assert forked(work) == 0
    assert not list((tmp_path / "out").iterdir())
    write_pt2(run, tmp_path / "out")
    torch.export.load(tmp_path / "out" / PT2)


def test_the_command_ends_with_one_message_and_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = untrained(tmp_path / "run", *VIT)
    out = tmp_path / "exported"
    with limited(4096):
        code = main(["export", f"run={path}", f"to={out}", "format=safetensors"])
    assert code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("blockyard: ")]
    assert line == f"blockyard: File too large: {out}"
    assert not out.exists()
    assert not list(tmp_path.glob(".tmp-*"))
