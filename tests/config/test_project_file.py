"""The project file: found upwards, read safely, added to what is typed and never in place of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.cli import main
from blockyard.config.override_grammar import parse_override
from blockyard.config.project_file import find, read, with_project
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from tests.support.tiny import DEBUG

WHOLE = "config_dirs: [conf]\nallow: [mine]\noutputs: runs\nlogger: none\n"
NORM = '''"""A norm of one\'s own."""

from blockyard.norm.layer import Layer


class Mine(Layer):
    """The usual one."""
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a component of its own; the working directory is inside it. Nothing of it stays imported."""
    (tmp_path / "blockyard.yaml").write_text(WHOLE)
    (tmp_path / "conf/norm").mkdir(parents=True)
    (tmp_path / "conf/norm/mine.yaml").write_text("_target_: mine.norm.Mine\n_partial_: true\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/norm.py").write_text(NORM)
    (tmp_path / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep/er")
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def test_a_component_of_ones_own_is_trained_without_a_flag(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "norm=mine", *DEBUG]) == 0
    run_folder = RunFolder.open(next((project / "runs").glob("*/s0")))
    assert run_folder.config["norm"]["_target_"] == "mine.norm.Mine"
    assert run_folder.config["allow"] == ["mine"]
    errors = capsys.readouterr().err
    assert f"../../blockyard.yaml: --config-dir {project}/conf" in errors
    assert main(["eval", "run=last"]) == 0
    assert "test/accuracy" in capsys.readouterr().out


def test_what_is_typed_comes_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = str(project / "conf")
    assert with_project("check", ["a=1"]) == [
        *("a=1", "--config-dir", conf, "allow=[mine]", f"outputs={project}/runs", "logger=none")
    ]
    assert with_project("check", ["logger=wandb", "allow=[other]", "outputs=x"]) == [
        *("logger=wandb", "allow=[other]", "outputs=x", "--config-dir", conf)
    ]
    assert with_project("train", ["resume=last"]) == [
        *("resume=last", "--config-dir", conf, "allow=[mine]", f"outputs={project}/runs")
    ]
    assert with_project("runs", []) == [f"outputs={project}/runs"]
    assert with_project("completion", ["bash"]) == ["bash"]


def test_it_can_be_switched_off(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find() == project / "blockyard.yaml"
    monkeypatch.setenv("BLOCKYARD_PROJECT", "none")
    assert find() is None
    assert with_project("train", ["a=1"]) == ["a=1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("config_dir: [a]", "unknown key 'config_dir'; did you mean config_dirs?"),
        ("allow: mine", "allow: 'mine' is not a list of names; write allow: [name]"),
        ("allow: [mine.norm]", "allow: 'mine.norm' is not the name of a package"),
        ("outputs: 3", "outputs: 3 is not a folder"),
        ("logger: {a: b}", "logger: {'a': 'b'} is not a list of names"),
        ("a: &a [x]\nb: *a", "aliases are not allowed"),
        ("allow: [a]\nallow: [b]", "'allow' is defined twice"),
        ("[1]", "holds a list, not `key: value` lines"),
        ("a: [", "line 1, column 5: "),
        ("a: !!python/object/apply:os.system [ls]", "tags are not allowed"),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "blockyard.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "blockyard.yaml"
    path.write_text("allow: [mine]")
    path.chmod(0o666)
    with pytest.raises(UserError, match=r"everybody may write to it.*BLOCKYARD_PROJECT=none"):
        read(path)


def other_owner(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let a path belong to another user: in truth for root, in the eyes of Python otherwise."""
    if os.getuid() == 0:
        os.lchown(path, 12345, 12345)
        return
    lstat, status = Path.lstat, Path.stat

    def of(real: os.stat_result, each: Path) -> Any:
        other = {"st_mode": real.st_mode, "st_size": real.st_size, "st_uid": os.getuid() + 1}
        return SimpleNamespace(**other) if each == path else real

    monkeypatch.setattr(Path, "lstat", lambda each: of(lstat(each), each))
    monkeypatch.setattr(Path, "stat", lambda each, **more: of(status(each, **more), each))


def test_a_file_of_another_user_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of the folder is imported before the owner is known, and the command ends with exit code 2."""
    other_owner(monkeypatch, project / "blockyard.yaml")
    assert main(["check", "norm=mine", *DEBUG]) == 2
    assert "it belongs to another user" in capsys.readouterr().err
    assert "mine" not in sys.modules


@pytest.mark.parametrize("through", ["file", "folder", "chain", "relative"])
def test_a_link_of_another_user_to_ones_own_file_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], through: str
) -> None:
    """The owner of the file does not make the link's folder a trusted one."""
    theirs = tmp_path / "theirs"
    (theirs / "mine").mkdir(parents=True)
    (theirs / "mine/norm.py").write_text(f"open({str(tmp_path / 'EXECUTED')!r}, 'w')\n" + NORM)
    link = theirs / "blockyard.yaml"
    if through == "folder":  # my link, through their link to my folder
        (tmp_path / "door").symlink_to(project)
        link.symlink_to(tmp_path / "door/blockyard.yaml")
        other_owner(monkeypatch, tmp_path / "door")
    elif through == "chain":
        (tmp_path / "middle").symlink_to(project / "blockyard.yaml")
        link.symlink_to(tmp_path / "middle")
        other_owner(monkeypatch, tmp_path / "middle")
    else:
        link.symlink_to("../blockyard.yaml" if through == "relative" else project / "blockyard.yaml")
        other_owner(monkeypatch, link)
    monkeypatch.chdir(theirs)
    assert main(["check", "norm=mine", *DEBUG]) == 2
    assert "it is a link of another user" in capsys.readouterr().err
    assert not (tmp_path / "EXECUTED").exists()


def test_ones_own_link_leads_to_the_folder_of_the_file(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths and packages are those beside the file itself."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "blockyard.yaml").symlink_to("../blockyard.yaml")
    monkeypatch.chdir(elsewhere)
    assert read(elsewhere / "blockyard.yaml").outputs == str(project / "runs")
    assert main(["check", "norm=mine", *DEBUG]) == 0
    (elsewhere / "blockyard.yaml").unlink()
    (elsewhere / "blockyard.yaml").symlink_to("blockyard.yaml")
    assert main(["check", *DEBUG]) == 2
    assert "links" in capsys.readouterr().err


@pytest.mark.full
def test_a_sweep_file_says_what_it_needs_and_grants_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "sweeps").mkdir()
    (project / "sweeps/norms.yaml").write_text(
        "claim: Mine is as good\nconfig_dirs: [../conf]\nallow: [mine]\nbase: [debug=fast, logger=none]\n"
        "seeds: 1\nbaseline: layer\narms: {layer: [], mine: [norm=mine]}\n"
    )
    assert main(["sweep", "../../sweeps/norms.yaml", "--dry-run"]) == 0
    monkeypatch.setenv("BLOCKYARD_PROJECT", "none")
    monkeypatch.syspath_prepend(str(project))
    capsys.readouterr()
    assert main(["sweep", "../../sweeps/norms.yaml", "--dry-run"]) == 2
    assert (
        "uses components of mine; if you trust it, add allow=[mine] here or to blockyard.yaml"
        in capsys.readouterr().err
    )
    assert main(["sweep", "../../sweeps/norms.yaml", "--dry-run", "allow=[mine]"]) == 0


@pytest.mark.parametrize("command", ["export", "soup", "bench", "tokenize"])
def test_every_command_that_has_an_option_takes_it_from_the_file(command: str, tmp_path: Path) -> None:
    path = tmp_path / "blockyard.yaml"
    path.write_text("outputs: runs\nallow: [mine]\nconfig_dirs: [.]\n")
    added = read(path).arguments(command, [])
    assert "allow=[mine]" in added
    assert any(text.startswith("outputs=") for text in added) == (command in ("export", "soup"))
    assert ("--config-dir" in added) == (command in ("bench", "tokenize"))


@pytest.mark.parametrize("name", ["ü", "a (1)", "it's", "a,b"])
def test_outputs_lie_in_a_folder_of_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that read Hydra's grammar get the path in quotes, the others as it is."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "blockyard.yaml").write_text("outputs: outputs\n")
    monkeypatch.chdir(folder)
    for command in ("train", "check"):
        (text,) = with_project(command, [])
        assert parse_override(text).value() == str(folder / "outputs")
    assert with_project("sweep", []) == [f"outputs={folder / 'outputs'}"]


def test_a_user_that_does_not_exist_is_the_name_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "blockyard.yaml").write_text("outputs: ~nosuchuser/x\n")
    assert read(tmp_path / "blockyard.yaml").outputs == str(tmp_path / "~nosuchuser" / "x")
