"""A file of a run that lies elsewhere reaches nobody else: not by an export, an artifact, a page or another run."""

from __future__ import annotations

import base64
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.atomic_files import read_member
from blockyard.engine.loggers._wandb_artifacts import log_sweep
from blockyard.errors import UserError
from blockyard.report.arms.pictures import pictures
from blockyard.report.arms.written_texts import written_texts
from blockyard.report.load.run_record import LoadedRun, read_run
from blockyard.runs.folder import RunFolder
from blockyard.weights.convert.exporting import export_weights
from blockyard.weights.sources import Source
from tests.report.report_runs import run

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

Linked = Callable[[str, bytes], Path]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A finished run."""
    return RunFolder.open(run(tmp_path / "outputs"))


@pytest.fixture(params=["link", "hard link"])
def linked(request: pytest.FixtureRequest, folder: RunFolder, tmp_path: Path) -> Linked:
    """A function that puts a file of the run, or a new one, elsewhere, with a link in its place."""

    def put(name: str, content: bytes = b"") -> Path:
        path, elsewhere = folder.path / name, tmp_path / "private"
        if path.exists():
            path.rename(elsewhere)
        else:
            elsewhere.write_bytes(content)
        path.parent.mkdir(exist_ok=True)
        (os.symlink if request.param == "link" else os.link)(elsewhere, path)
        return path

    return put


def record(folder: RunFolder) -> LoadedRun:
    """The run as a page has it."""
    return read_run(folder.path, arm="a")


def test_links_pipes_and_folders_are_not_read(tmp_path: Path, linked: Linked) -> None:
    path = linked("run.json", b"")
    with pytest.raises(UserError, match=r"run\.json is not copied: it (is a link to|has a second name)"):
        read_member(path)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UserError, match="is not copied: it is not a regular file"):
            read_member(other)
    with pytest.raises(FileNotFoundError):
        read_member(tmp_path / "none")
    (tmp_path / "plain").write_bytes(b"12")
    assert read_member(tmp_path / "plain", 2) == b"12"
    with pytest.raises(ValueError, match="larger than 1 bytes"):
        read_member(tmp_path / "plain", 1)


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "summary.json", "tokenizer.json"])
def test_an_export_names_the_file(name: str, folder: RunFolder, linked: Linked, tmp_path: Path) -> None:
    linked(name, b"{}")
    loaded: Any = SimpleNamespace(folder=folder)
    with pytest.raises(UserError, match=f"{name} is not copied"):
        export_weights(loaded, tmp_path / "exported", kind="safetensors")
    assert not (tmp_path / "exported").exists()


def test_a_run_that_starts_from_it_gets_no_tokenizer(folder: RunFolder, linked: Linked) -> None:
    source = Source(folder.path, (), folder)
    assert source.tokenizer_states() == {}
    linked("tokenizer.json", b"{}")
    with pytest.raises(UserError, match=r"tokenizer\.json is not copied"):
        source.tokenizer_states()


def test_an_artifact_of_a_sweep_holds_no_linked_page(
    folder: RunFolder, linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: dict[str, bytes] = {}

    def add_file(path: str, *, name: str, policy: str) -> None:
        added[name] = Path(path).read_bytes()

    artifact = SimpleNamespace(add_file=add_file)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Artifact=lambda *_, **__: artifact))
    wandb_run = SimpleNamespace(log_artifact=lambda _: None)
    (folder.path / "plan.json").write_bytes(b"{}")
    log_sweep(wandb_run, "s", folder.path, ("plan.json", "report.html"), {})
    assert added == {"plan.json": b"{}"}
    linked("report.html", b"SECRET")
    with pytest.raises(UserError, match=r"report\.html is not copied"):
        log_sweep(wandb_run, "s", folder.path, ("plan.json", "report.html"), {})
    assert b"SECRET" not in added.values()


@pytest.mark.parametrize("name", ["samples.png", "inspect/restore.png"])
def test_a_page_shows_no_linked_picture_and_says_so(
    name: str, folder: RunFolder, linked: Linked, caplog: pytest.LogCaptureFixture
) -> None:
    path = linked(name, PNG)
    with caplog.at_level(logging.WARNING, "blockyard"):
        assert pictures([record(folder)]) == []
    assert f"{name} is not copied" in caplog.text
    path.unlink()
    path.write_bytes(PNG)
    assert len(pictures([record(folder)])) == 1


def test_a_page_shows_no_picture_of_a_linked_folder(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "restore.png").write_bytes(PNG)
    os.symlink(tmp_path / "private", folder.path / "inspect")
    assert pictures([record(folder)]) == []


def test_a_page_shows_no_linked_texts_and_names_the_file(folder: RunFolder, linked: Linked) -> None:
    linked("written-test.jsonl", b'{}\n{"source": "SECRET", "reference": "SECRET", "written": "SECRET"}\n')
    table = written_texts([record(folder)])
    assert table is not None
    assert table.rows == []
    assert "written-test.jsonl is not copied" in str(table.left_out)
