"""Damaged and hostile data files and weights: `check` reads them, or refuses them in one message; it never crashes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from blockyard.cli import main
from tests.battery import damaged_data
from tests.battery.cases import battery, cases
from tests.battery.damaged_data import Case
from tests.support.library_models import CASES

pytestmark = [battery("damaged_data"), pytest.mark.timeout(120), pytest.mark.xdist_group("damaged_data")]

ALL = list(damaged_data.cases())
LONGEST = 20_000  # characters of a message


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an undamaged file of each format."""
    folder = tmp_path_factory.mktemp("whole")
    damaged_data.write_whole(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2, as transformers writes it."""
    import transformers

    folder = tmp_path_factory.mktemp("gpt2")
    transformers.GPT2LMHeadModel(CASES["gpt2"].config()).save_pretrained(folder)
    return folder


def _one_message(arguments: list[str], capsys: pytest.CaptureFixture[str], *codes: int) -> str:
    """The error of a command that ends with one of the exit codes; with exit code 2 it is one message."""
    capsys.readouterr()
    code = main(arguments)
    err = capsys.readouterr().err
    assert code in codes, (code, err)
    if code == 2:
        assert sum(line.startswith("blockyard: ") for line in err.splitlines()) == 1, err
        assert "Traceback" not in err
        assert len(err) <= LONGEST
        assert not any(ord(character) < 32 and character not in "\n\t" for character in err), repr(err)
    return err


@pytest.mark.parametrize("file", cases(list(damaged_data.FORMATS), short=9))
def test_an_undamaged_file_is_read(file: str, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the damages begin with passes: a refusal below is of the damage."""
    _one_message(["check", *damaged_data.overrides(file, whole / file)], capsys, 0)


@pytest.mark.parametrize("case", cases(ALL, short=12))
def test_a_damaged_file_is_read_or_refused(
    case: Case, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / case.file
    if (whole / case.file).is_file():
        shutil.copy(whole / case.file, path)
    case.write(path)
    before = path.read_bytes()
    err = _one_message(["check", *damaged_data.overrides(case.file, path)], capsys, 2, *(() if case.refused else (0,)))
    if case.refused:
        assert case.file in err, err  # and not another option
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(*each.values[0], id=str(each.values[0])[:60], marks=each.marks)
        for each in cases(list(damaged_data.configs()), short=6)
    ],
)
def test_a_config_of_no_such_model(
    key: str, value: Any, gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An import with an impossible value of its config.json writes nothing; `check` refuses it as init.from too."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(gpt2 / "model.safetensors")
    config = json.loads((gpt2 / "config.json").read_text()) | {key: value}
    (folder / "config.json").write_text(json.dumps(config))
    message = _one_message(["import", str(folder), f"out={tmp_path / 'ours'}"], capsys, 2)
    assert key in message or "timm has no model" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]
    _one_message(["check", *damaged_data.SHORTEST, f"init.from=hf:{folder}"], capsys, 2)
