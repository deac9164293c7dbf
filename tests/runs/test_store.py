"""Finding a run by what a person would call it, rebuilding it, and resuming it."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import blockyard
from blockyard import atomic_files
from blockyard.atomic_files import TEMPORARY
from blockyard.errors import UserError
from blockyard.runs.checkpoint import BEST, LAST, BadCheckpointError
from blockyard.runs.folder import RunFolder
from blockyard.runs.not_started import AlreadyDoneError
from blockyard.runs.resume import reopen
from blockyard.runs.start import create_run
from blockyard.runs.store import find, runs
from tests.support.engine_runs import config, folder, run
from tests.support.every import every
from tests.support.tiny import steps

pytestmark = pytest.mark.xdist_group("runs_store")  # its runs are made once

FOUR_STEPS = (*steps(4, 2), "token_mixer.dropout=0.0")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("done"), *FOUR_STEPS, "name=short")


@pytest.fixture
def copied(done: RunFolder, tmp_path: Path) -> RunFolder:
    """The finished run, to be damaged."""
    shutil.copytree(done.path.parent, tmp_path / done.path.parent.name)
    return RunFolder.open(tmp_path / done.path.parent.name / done.path.name)


def _many(outputs: Path) -> list[RunFolder]:
    run_folders = []
    for number, (name, seed) in enumerate([("alpha", 0), ("alpha", 1), ("alphabet", 0), ("beta", 0)]):
        with create_run({"seed": seed, "name": name, "outputs": str(outputs), "x": name}) as one:
            one.add_facts({"wandb": {"id": f"wid{number}xyz"}})
        os.utime(one.path / "run.json", (1000 + number, 1000 + number))
        run_folders.append(one)
    return run_folders


def test_runs_are_found_by_any_of_their_names(tmp_path: Path) -> None:
    run_folders = _many(tmp_path)
    beta = run_folders[3]
    digits = beta.path.parent.name.rpartition("-")[2]
    for name in ("last", "beta", "bet", str(beta.path), f"{beta.path}/", digits, digits[:6], beta.name, "wid3xyz"):
        assert find(name, tmp_path).path == beta.path, name
    assert find(beta.path.parent, tmp_path).path == beta.path
    for name in ("alpha/s1", f"{run_folders[1].path.parent.name}/s1"):
        assert find(name, tmp_path).path == run_folders[1].path
    assert [entry.path for entry in runs(tmp_path)] == [one.path for one in reversed(run_folders)]


def test_what_may_mean_several_runs_is_refused_with_their_names(tmp_path: Path) -> None:
    run_folders = _many(tmp_path)
    with pytest.raises(UserError, match="matches 2 runs; choose one: ") as caught:
        find("alpha", tmp_path)
    assert run_folders[0].name in str(caught.value)
    assert run_folders[1].name in str(caught.value)
    with pytest.raises(UserError, match=r"no such run; nearest: .*alphabet"):
        find("alfabet", tmp_path)
    with pytest.raises(UserError, match="no such run"):
        find("../" * 20, tmp_path)
    with pytest.raises(UserError, match="no run given"):
        find("  ", tmp_path)
    with pytest.raises(UserError, match="no runs under"):
        find("last", tmp_path / "absent")
    for odd in ("x" * 5000, "a\0b", "é*[", "/", "b", "be"):  # "b" begins beta and no other name, and any id by chance
        with pytest.raises(UserError):
            find(odd, tmp_path)


def test_a_path_of_several_runs_or_of_a_damaged_one_says_so(tmp_path: Path) -> None:
    """The reason was swallowed, and a run of a like name in the folder of outputs was looked for."""
    run_folders = _many(tmp_path / "here")
    with pytest.raises(UserError, match="matches 2 runs; choose one: "):
        find(run_folders[0].path.parent, tmp_path / "absent")
    (run_folders[3].path / "config.yaml").write_text("seed: 1\nseed: 2\n")
    with pytest.raises(UserError, match=r"cannot be read: .*seed"):
        find(run_folders[3].path, tmp_path / "absent")


def test_runs_set_aside_or_damaged_do_not_hide_others(tmp_path: Path) -> None:
    run_folders = _many(tmp_path)
    (run_folders[0].path / "config.yaml").write_text("{")
    run_folders[3].path.rename(run_folders[3].path.with_name(".replaced-s0-x"))
    assert len(runs(tmp_path)) == 3
    assert find("alphabet", tmp_path).path == run_folders[2].path


def test_a_run_is_rebuilt_from_its_folder_in_one_line(done: RunFolder) -> None:
    loaded = blockyard.load(done.path)
    assert not loaded.model.training
    assert loaded.step in (2, 4)
    weights = torch.load(loaded.checkpoint, weights_only=True)["state_dict"]
    for name, value in loaded.model.state_dict().items():
        torch.testing.assert_close(value, weights[f"model.{name}"], rtol=0, atol=0)
    assert blockyard.load(done.path, which="last").step == 4
    with pytest.raises(UserError, match="which='first'"):
        blockyard.load(done.path, which="first")


def test_a_checkpoint_of_another_shape_names_what_differs(copied: RunFolder) -> None:
    path = copied.checkpoints / LAST
    content = torch.load(path, weights_only=True)
    name = next(iter(content["state_dict"]))
    for change, messages in (
        (lambda state: state.pop(name), "lacks"),
        (lambda state: state.update({"model.odd": torch.ones(1)}), "has unknown odd"),
        (lambda state: state.update({name: torch.ones(1, 2, 3)}), "has another shape of"),
    ):
        state = dict(content["state_dict"])
        change(state)
        torch.save({**content, "state_dict": state}, path)
        with pytest.raises(BadCheckpointError, match=f"another architecture.*{messages}"):
            blockyard.load(copied.path, which="last")


def test_missing_or_damaged_weights_name_what_is_there(copied: RunFolder) -> None:
    (copied.checkpoints / BEST).write_bytes(b"x")
    with pytest.raises(BadCheckpointError, match=r"truncated.*which=last exists"):
        blockyard.load(copied.path)
    (copied.checkpoints / BEST).unlink()
    with pytest.raises(UserError, match=r"has no best.ckpt.*which=last exists"):
        blockyard.load(copied.path)


def test_a_folder_from_elsewhere_may_not_name_packages_of_its_own(
    copied: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hostile = copied.config | {"allow": ["hostile"], "data": {"_target_": "hostile.Data"}}
    atomic_files.write_yaml(copied.path / "config.yaml", hostile)
    with pytest.raises(UserError, match=r"hostile; if you trust the folder, add allow=\[hostile\]"):
        blockyard.load(copied.path)
    atomic_files.write_yaml(copied.path / "config.yaml", hostile | {"allow": []})
    with pytest.raises(UserError, match="not in an allowed package"):
        blockyard.load(copied.path)
    atomic_files.write_yaml(
        copied.path / "config.yaml", copied.config | {"data": {"_target_": "subprocess.Popen", "args": "id"}}
    )
    with pytest.raises(UserError, match="not in an allowed package"):
        blockyard.load(copied.path)


# -- resume ---------------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path: Path) -> RunFolder:
    with folder(tmp_path, *FOUR_STEPS, "name=stopped") as run_folder:
        run_folder.set_status("interrupted", "Ctrl-C at step 2", step=2, exit_code=130)
    return run_folder


@pytest.mark.full
def test_resume_without_changes(stopped: RunFolder) -> None:
    with reopen(stopped.path) as again:
        assert again.resumes
        assert again.config | {"force": False} == stopped.config
        assert "interrupted at step 2: Ctrl-C" in str(again.message)
        with pytest.raises(UserError, match="in use by process"):
            reopen(stopped.path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=0.5", r"optimizer.lr is [\d.e-]+ and cannot become 0.5"),
        ("norm=rms", "norm is layer and cannot become rms"),
        ("seed=1", "seed is 0 and cannot become 1"),
        ("name=other", "name is stopped and cannot become other"),
        ("trainer.max_steps=9", "trainer.max_steps is 4 and cannot become 9"),
        ("model.depht=3", "model.depht is not a setting of this run"),
        ("position=learnt", "position"),
        ("debug=overfit", "debug is none and cannot become overfit"),
        ("experiment=mixer_digits", "experiment is null and cannot become mixer_digits"),
        ("nonsense=1", "nonsense is not a setting of this run"),
        ("force=true", "one of them"),
        ("optimizer.lr=1,2", "one value per key"),
        ("~logger", "one value per key"),
        ("a=[", "cannot be parsed"),
        ("trainer.num_workers=many", "num_workers"),
    ],
)
def test_resume_refuses_what_it_would_have_to_ignore(stopped: RunFolder, override: str, message: str) -> None:
    before = {path.name: path.read_bytes() for path in stopped.path.iterdir() if path.is_file()}
    with pytest.raises(UserError, match=message):
        reopen(stopped.path, [override])
    assert {path.name: path.read_bytes() for path in stopped.path.iterdir() if path.is_file()} == before
    reopen(stopped.path).release()  # the lock was given back


def test_resume_does_not_follow_a_link_in_place_of_the_checkpoints(stopped: RunFolder, tmp_path: Path) -> None:
    """Files where it leads would be replaced and removed."""
    elsewhere = tmp_path / "elsewhere"
    shutil.move(stopped.checkpoints, elsewhere)
    (elsewhere / f"{TEMPORARY}left").write_bytes(b"not ours")
    stopped.checkpoints.symlink_to(elsewhere)
    before = sorted(path.name for path in elsewhere.iterdir())
    with pytest.raises(UserError, match="is a link to"):
        reopen(stopped.path)
    assert sorted(path.name for path in elsewhere.iterdir()) == before


def test_resume_moves_links_aside(stopped: RunFolder, tmp_path: Path) -> None:
    """A log would be appended to what a link leads to, and a logger would fill that folder."""
    for name, target in {"log.txt": tmp_path / "victim", "tensorboard": tmp_path}.items():
        (stopped.path / name).symlink_to(target)
    reopen(stopped.path).release()
    assert not [path for path in stopped.path.iterdir() if path.is_symlink() and ".damaged" not in path.name]


def test_a_new_run_moves_a_folder_with_links_aside(stopped: RunFolder, tmp_path: Path) -> None:
    (stopped.path / "config.yaml").unlink()
    shutil.rmtree(stopped.checkpoints)
    (stopped.path / "metrics.csv").unlink(missing_ok=True)
    stopped.checkpoints.symlink_to(tmp_path)
    with create_run(stopped.config) as run:
        assert run.replaced is not None
        assert run.checkpoints.is_dir()
        assert not run.checkpoints.is_symlink()


def test_resume_sees_a_frozen_config_that_was_edited(stopped: RunFolder) -> None:
    config = atomic_files.read_yaml(stopped.path / "config.yaml")
    config["optimizer"]["lr"] = 0.7
    atomic_files.write_yaml(stopped.path / "config.yaml", config)
    with pytest.raises(UserError, match=r"was .* at the start and is"):
        reopen(stopped.path)


def test_a_stranger_s_identity_reaches_a_warning_as_escapes(
    tmp_path: Path, done: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """A terminal would act on it: colours, text from right to left, a line that looks like one of ours."""
    copy = Path(shutil.copytree(done.path, tmp_path / done.path.parent.name / done.path.name))
    facts = atomic_files.read_json(copy / "run.json")
    atomic_files.write_json(copy / "run.json", facts | {"identity": "\x1b[31mred\u202e\nblockyard: all is well"})
    with pytest.raises(BadCheckpointError) as caught:
        blockyard.load(copy)
    (warning,) = [record.getMessage() for record in caplog.records if "at the start" in record.getMessage()]
    assert warning.isprintable()
    assert str(caught.value).isprintable()
    assert "\\x1b[31mred" in warning
    caplog.clear()
    logging.getLogger("blockyard").warning("%s: a name of \x1b[2J", "\u202e")
    assert [record.getMessage() for record in caplog.records] == ["\\u202e: a name of \\x1b[2J"]


def test_resume_names_every_difference_at_once(stopped: RunFolder) -> None:
    with pytest.raises(UserError, match=r"model.depth is 1 and cannot become 3.*optimizer.lr is"):
        reopen(stopped.path, ["optimizer.lr=0.5", "model.depth=3"])


def test_resume_takes_what_is_incidental(stopped: RunFolder) -> None:
    overrides = [
        "logger=wandb",
        "logger.project=mine",
        "trainer.num_workers=1",
        "tags=[a,b]",
        "norm=layer",
        "model.depth=1",
        "debug=none",
        "experiment=null",
    ]
    with reopen(stopped.path, overrides) as again:
        frozen = RunFolder.open(again.path).config
        assert frozen["logger"]["project"] == "mine"
        assert frozen["logger"]["_target_"].endswith("Wandb")
        assert frozen["trainer"]["num_workers"] == 1
        assert frozen["tags"] == ["a", "b"]
        assert again.facts()["resumes"][0]["before"].keys() == {"logger", "trainer", "tags"}


def test_a_choice_that_was_changed_once_is_changed_back(stopped: RunFolder) -> None:
    """The choice of the first start was taken for the one that the run had, and the third command did nothing."""
    first = stopped.facts()["choices"]["logger"]
    for choice in ("wandb", "none", "wandb"):
        with reopen(stopped.path, [f"logger={choice}"]) as again:
            assert again.facts()["choices"]["logger"] == choice
            name = again.config["logger"]["_target_"].rpartition(".")[2]
            assert name == {"wandb": "Wandb", "none": "NoLogger"}[choice]
    assert first == "none"


def test_resume_takes_a_choice_of_the_user_s_own_folder(stopped: RunFolder, tmp_path: Path) -> None:
    own = tmp_path / "own" / "logger"
    own.mkdir(parents=True)
    text = "# Mine.\n_target_: blockyard.engine.loggers.wandb.Wandb\nproject: theirs\n"
    (own / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match="logger"):
        reopen(stopped.path, ["logger=mine"])
    with reopen(stopped.path, ["logger=mine"], config_dirs=[str(own.parent)]) as again:
        assert again.config["logger"]["project"] == "theirs"


@pytest.mark.parametrize("damage", ["nothing", "run.json"])
def test_a_foreign_run_s_package_is_not_imported(
    stopped: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    (tmp_path / "evilpack.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    plain = atomic_files.read_yaml(stopped.path / "config.yaml")
    plain |= {"allow": ["evilpack"], "norm": {"_target_": "evilpack.Norm", "_partial_": True}}
    atomic_files.write_yaml(stopped.path / "config.yaml", plain)
    if damage != "nothing":
        (stopped.path / damage).unlink()
        assert RunFolder.open(stopped.path).identity
    with pytest.raises(UserError, match="if you trust the folder"):
        reopen(stopped.path)


def test_resume_of_a_finished_run_is_news_and_of_a_failed_one_allowed(done: RunFolder, stopped: RunFolder) -> None:
    with pytest.raises(AlreadyDoneError):
        reopen(done.path)
    with stopped.lock():
        stopped.set_status("failed", "the disk was full", exit_code=1)
    with reopen(stopped.path) as again:
        assert "failed at step 2: the disk was full" in str(again.message)


def test_resume_says_what_changed_around_the_run(stopped: RunFolder) -> None:
    facts = stopped.facts()
    facts["versions"]["torch"] = "1.0"
    stopped.write_json("run.json", facts)
    with reopen(stopped.path) as again:
        assert "torch was 1.0" in str(again.message)


def test_the_whole_way_round(tmp_path: Path) -> None:
    plain, _ = config(tmp_path, *FOUR_STEPS)
    run_folder: Any = run(tmp_path, *FOUR_STEPS)
    with pytest.raises(AlreadyDoneError):
        create_run(plain)
    assert run_folder.summary()["steps"] == 4


def test_resume_says_that_other_processes_or_pieces_change_the_bits(stopped: RunFolder) -> None:
    with reopen(stopped.path, ["trainer.accumulate=2", "trainer.threads=1"]) as again:
        assert "not bitwise equal" in str(again.message)
        assert "trainer.accumulate was 1 and is 2" in str(again.message)
        assert "trainer.threads was auto and is 1" in str(again.message)
    with reopen(stopped.path, ["trainer.num_workers=1"]) as again:
        assert "bitwise" not in str(again.message)


def _goes_on(outputs: Path, name: str, budget: int, parent: RunFolder | None, seed: int = 0) -> RunFolder:
    init = {"parent": str(parent.path), "parent_sha256": "x"} if parent else {}
    config = {"seed": seed, "name": name, "outputs": str(outputs), "trainer": {"max_epochs": budget}, "init": init}
    with create_run(config) as one:
        return one


def test_of_runs_that_go_on_from_each_other_the_last_is_meant(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name stays usable after `resume=NAME` with a longer budget; which run is meant is said."""
    first = _goes_on(tmp_path, "stable", 1, None)
    second = _goes_on(tmp_path, "stable", 2, first)
    assert find("stable", tmp_path).path == second.path
    third = _goes_on(tmp_path, "stable", 3, second)
    caplog.clear()
    assert find("stable", tmp_path).path == third.path
    assert third.name in caplog.text
    assert find(first.name, tmp_path).path == first.path


def test_two_runs_that_go_on_from_one_are_told_apart_by_their_names(tmp_path: Path) -> None:
    first = _goes_on(tmp_path, "stable", 1, None)
    others = [_goes_on(tmp_path, "stable", budget, first) for budget in (2, 3)]
    with pytest.raises(UserError, match="matches 3 runs") as refused:
        find("stable", tmp_path)
    assert every(each.name in str(refused.value) for each in (first, *others))


def test_seeds_are_told_apart(tmp_path: Path) -> None:
    first = _goes_on(tmp_path, "stable", 1, None)
    _goes_on(tmp_path, "stable", 2, first)
    _goes_on(tmp_path, "stable", 1, None, seed=1)
    with pytest.raises(UserError, match="matches 3 runs"):
        find("stable", tmp_path)
