"""Folders, YAML, overrides, names and sweep files from a stranger: each is refused, and nothing runs or is written."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import shutil
import sys
from pathlib import Path

import pytest

from blockyard.cli import main
from tests.battery import hostile_folders, hostile_words, hostile_yaml
from tests.battery.cases import battery, cases
from tests.battery.hostile_folders import COMMANDS, Folder
from tests.battery.watched import nothing_happens, refused

pytestmark = [battery("hostile_input"), pytest.mark.timeout(120)]

REACHING = list(enumerate(hostile_folders.reaching_hydra()))
BROKEN = list(hostile_yaml.broken())
TARGETS = list(hostile_words.targets())


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Libraries write their caches when they are first imported."""
    assert main(["check"]) == 0
    assert main(["train", "--cfg", "job"]) == 0
    assert main(["train", "--info", "searchpath"]) == 0


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder from which Python imports, as a user's may hold a stranger's package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    monkeypatch.chdir("/")
    sys.modules.pop("evilpackage", None)
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.parametrize("case", cases(REACHING, short=8, names=lambda case: case[1].name))
def test_keys_of_hydra_in_a_folder(case: tuple[int, Folder], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number, folder = case
    folder.write(root)
    command = COMMANDS[(number + number // len(hostile_folders.HYDRA_KEYS)) % len(COMMANDS)]
    message = refused(root, [*command, folder.choice, "debug=fast", "logger=none", "--config-dir", "conf"], capsys)
    assert str(root) in message or "Hydra" in message or "hydra" in message


@pytest.mark.parametrize("folder", cases(BROKEN, short=5, names=lambda folder: folder.name))
def test_broken_yaml(folder: Folder, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write(root)
    refused(root, ["check", folder.choice, "--config-dir", "conf"], capsys)


@pytest.fixture(scope="module")
def libraries() -> None:
    """Import what the targets are of: while they are imported, libraries look for compilers and print."""
    for name in ("torch.utils.cpp_extension", "transformers.pipelines", "timm.models", "pytorch_lightning.trainer"):
        importlib.import_module(name)


@pytest.mark.parametrize("folder", cases(TARGETS, short=8, names=lambda folder: folder.name))
@pytest.mark.usefixtures("libraries")
def test_target_of_a_folder(folder: Folder, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write(root)
    for path, text in hostile_words.PACKAGE.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    refused(root, ["train", folder.choice, "--config-dir", "conf"], capsys)
    assert "evilpackage" not in sys.modules


@pytest.mark.parametrize("arguments", cases([*hostile_words.hydra_overrides()], short=3, names=" ".join))
def test_keys_of_hydra_on_the_command_line(
    arguments: tuple[str, ...], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(root, [*arguments, "debug=fast", "logger=none"], capsys)


@pytest.mark.parametrize(
    "arguments", cases([*hostile_words.command_lines()], short=5, names=lambda arguments: repr(arguments)[:80])
)
def test_command_line(arguments: tuple[str, ...], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(root, list(arguments), capsys)


@pytest.mark.parametrize("text", cases(hostile_words.SWEEPS, short=3, names=lambda text: text[:60]))
def test_sweep_file(text: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, content in hostile_words.PACKAGE.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(content)
    (root / "mine.yaml").write_text(hostile_words.SWEEP_HEAD + text + "\n")
    refused(root, ["sweep", "mine.yaml", "--dry-run"], capsys)
    assert "evilpackage" not in sys.modules


@pytest.mark.parametrize("pickled", [b"cos\nsystem\n.", b"cbuiltins\neval\n.", b"cevil\nClass\n."])
def test_unpickling_is_seen(pickled: bytes, root: Path, record_property: pytest.RecordProperty) -> None:
    """A command that unpickles a stranger's file would fail the other tests, whatever it does with the class."""
    record_property("cases", 0)
    with pytest.raises(AssertionError, match="find_class"), nothing_happens(root), contextlib.suppress(ImportError):
        pickle.loads(pickled)
