"""A storage whose writer means harm, or has lost something: nothing of it reaches the folder of runs."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from blockyard.cli import main
from blockyard.runs.checkpoint import STAMP
from tests.battery.hostile_files import Call
from tests.battery.hostile_folders import CANARY
from tests.remote.copied_runs import files, forge, make_outputs, seal, typed


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the runs of a sweep."""
    folder = tmp_path_factory.mktemp("saved")
    outputs = make_outputs(folder)
    assert main(["runs", "push", f"file://{folder}/store", f"outputs={outputs}"]) == 0
    return folder / "store"


@pytest.fixture
def store(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    copy = Path(shutil.copytree(saved, tmp_path / "store"))
    for config in sorted(copy.glob("*/s*/config.yaml")):
        if not (config.parent / "summary.json").exists() or len(list(copy.glob("*/s*/config.yaml"))) > 1:
            shutil.rmtree(config.parent)
    return copy


def only(store: Path) -> Path:
    """Return the one run of the storage."""
    (config,) = store.glob("*/s*/config.yaml")
    return config.parent


def member(name: str) -> Callable[[Path], None]:
    """Return a change that lists one more file in the manifest of a run, which has its content."""

    def change(run: Path) -> None:
        content = b"x" * 10
        target = Path(os.path.normpath(run / name)) if not name.startswith("/") else None
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        entry = {"sha256": "0" * 64, "bytes": 10}
        forge(run, lambda manifest: manifest["members"].update({name: entry}))

    return change


def truncated(run: Path) -> None:
    path = run / "checkpoints" / "best.ckpt"
    path.write_bytes(path.read_bytes()[:-1])


def flipped(run: Path) -> None:
    path = run / "metrics.csv"
    path.write_bytes(path.read_bytes()[:-2] + b"7\n")


def flipped_weights(run: Path) -> None:
    path = run / "checkpoints" / "best.ckpt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def longer(run: Path) -> None:
    (run / "metrics.csv").write_bytes((run / "metrics.csv").read_bytes() + b"1")


def linked(run: Path) -> None:
    secret = run.parents[1].parent / "secret"
    secret.write_bytes((run / "metrics.csv").read_bytes())
    (run / "metrics.csv").unlink()
    (run / "metrics.csv").symlink_to(secret)


def pickled_checkpoint(run: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"state_dict": {}, "global_step": 1, STAMP: {"format": 1, "step": 1}, "x": Call()}, buffer)
    seal(run, "checkpoints/best.ckpt", buffer.getvalue())


def other_checkpoint(run: Path) -> None:
    content = torch.load(run / "checkpoints/best.ckpt", weights_only=True)
    content[STAMP]["identity"] = "0123456789"
    buffer = io.BytesIO()
    torch.save(content, buffer)
    seal(run, "checkpoints/best.ckpt", buffer.getvalue())


def pickled_predictions(run: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, sample=np.array([Call()], dtype=object), meta=np.array('{"kind": "classes"}'))
    seal(run, "predictions-test.npz", buffer.getvalue())


def config(old: str, new: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        text = (run / "config.yaml").read_text()
        assert old in text
        seal(run, "config.yaml", text.replace(old, new, 1).encode())

    return change


def status(state: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        content = json.loads((run / "status.json").read_text())
        seal(run, "status.json", json.dumps({**content, "state": state}).encode())

    return change


def moved(run: Path) -> None:
    """Another run's name: a sweep would take it for the cell that it has not trained."""
    forge(run, lambda manifest: manifest.update(name=f"{run.parent.name}/s7"))
    run.rename(run.with_name("s7"))


def moved_arm(run: Path) -> None:
    name = "encoder_digits-0123456789"
    forge(run, lambda manifest: manifest.update(name=f"{name}/{run.name}"))
    facts = json.loads((run / "run.json").read_text())
    seal(run, "run.json", json.dumps({**facts, "identity": "0123456789"}).encode())
    run.parent.rename(run.parent.with_name(name))


def manifest(**changes: object) -> Callable[[Path], None]:
    return lambda run: forge(run, lambda content: content.update(changes))


def no_summary(run: Path) -> None:
    forge(run, lambda content: content["members"].pop("summary.json"))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a path that climbs": (member("../x.json"), "lists '../x.json', which is not a file of a run"),
    "a path that climbs far": (member("../../../x.txt"), "lists '../../../x.txt', which is not a file"),
    "an absolute path": (member("/tmp/x.json"), "lists '/tmp/x.json', which is not a file"),
    "a hidden file": (member(".env.json"), "lists '.env.json', which is not a file"),
    "a module": (member("json.py"), "lists 'json.py', which is not a file"),
    "a pickle": (member("x.pkl"), "lists 'x.pkl', which is not a file"),
    "a page": (member("report.html"), "lists 'report.html', which is not a file"),
    "a folder of its own": (member("hydra_plugins/x.json"), "which is not a file"),
    "another case": (member("Run.json"), "twice, or in another case"),
    "a file that is missing": (lambda run: (run / "run.json").unlink(), "run.json is missing there, or is a link"),
    "a truncated file": (truncated, "best.ckpt has"),
    "a longer file": (longer, "metrics.csv has"),
    "a changed file": (flipped, "the SHA-256 of metrics.csv is not that of its manifest.json"),
    "changed weights": (flipped_weights, "the SHA-256 of checkpoints/best.ckpt is not that"),
    "a link": (linked, "metrics.csv is missing there, or is a link"),
    "a pickle in a checkpoint": (pickled_checkpoint, "best.ckpt cannot be used: it holds more than tensors"),
    "a checkpoint of another run": (other_checkpoint, "it belongs to another run"),
    "a pickle in predictions": (pickled_predictions, "predictions-test.npz is damaged"),
    "a target": (config("_target_: blockyard", "_target_: os"), "of no trusted library"),
    "a package": (config("allow: []", "allow: [mine]"), "uses components of mine; if you trust it, add allow=[mine]"),
    "a tag of YAML": (config("seed: ", "x: !!python/name:os.system\nseed: "), "config.yaml"),
    "another config": (config("lr: ", "lr: 1"), "belongs to another folder"),
    "another seed": (moved, "the seed in its config.yaml is"),
    "another arm": (moved_arm, "belongs to another folder"),
    "a run that goes on": (status("running"), "it is interrupted"),
    "a state that is none": (status("<b>"), "status.json is damaged"),
    "no summary": (no_summary, "it is done, and has no summary.json"),
    "another name": (manifest(name="../../x-0123456789/s0"), "its manifest.json is that of '../../x-0123456789/s0'"),
    "another format": (manifest(format=2), "its manifest.json is damaged (format 2; this version reads 1)"),
    "no members": (manifest(members=[1]), "its manifest.json is damaged"),
    "a size below nothing": (manifest(members={"run.json": {"sha256": "0" * 64, "bytes": -1}}), "has no SHA-256"),
    "a huge size": (manifest(members={"run.json": {"sha256": "0" * 64, "bytes": 10**14}}), "at most 1,073,741,824"),
    "no JSON": (lambda run: (run / "manifest.json").write_text("{"), "its manifest.json is damaged"),
    "deep JSON": (lambda run: (run / "manifest.json").write_text("[" * 100_000), "its manifest.json is damaged"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_harmful_or_damaged_run_is_refused(
    name: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, text = CHANGES[name]
    shutil.rmtree(store / "sweeps")
    change(only(store))
    out, err = typed(capsys, "pull", f"file://{store}", "outputs=mine", code=1)
    assert text in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert "1 refused" in out
    assert "0 runs copied" in out
    assert files(tmp_path / "mine") == {}
    assert not list(tmp_path.glob(CANARY))
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("name", ["a changed file", "a path that climbs", "another config", "a pickle in a checkpoint"])
def test_conditions_let_nothing_in(name: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files by which runs are selected are downloaded first, and are not taken for checked ones."""
    CHANGES[name][0](only(store))
    typed(capsys, "pull", f"file://{store}", "encoder", "outputs=mine", code=1 if name != "a path that climbs" else 2)
    assert not list((tmp_path / "mine").glob("*/s*/config.yaml"))


def test_allow_lets_a_config_with_a_package_in(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config("allow: []", "allow: [mine]")(only(store))
    typed(capsys, "pull", f"file://{store}", "outputs=mine", "allow=[mine]")
    assert len(list((tmp_path / "mine").glob("*/s*/config.yaml"))) == 1


@pytest.mark.parametrize(
    ("file", "old", "new", "text"),
    [
        ("plan.json", '"name":"norms"', '"name":"../../norms"', "its plan is that of '../../norms'"),
        ("plan.json", "encoder_digits-", "../encoder_digits-", "which is not a folder of runs"),
        ("comparison.json", '"cells":', '"cells":7,"x":', "sweeps/norms: refused"),
        ("comparison.json", "{", "[", "comparison.json is damaged"),
    ],
)
def test_a_harmful_sweep_is_refused(
    file: str, old: str, new: str, text: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store / "sweeps/norms" / file
    content = json.dumps(json.loads(path.read_text()), separators=(",", ":"))
    assert old in content
    seal(path.parent, file, content.replace(old, new).encode())
    _, err = typed(capsys, "pull", f"file://{store}", "outputs=mine", code=1)
    assert text in err
    assert not (tmp_path / "mine/sweeps/norms").exists()


def test_no_script_of_the_storage_comes_along(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page is drawn here, with texts escaped."""
    folder = store / "sweeps/norms"
    comparison = json.loads((folder / "comparison.json").read_text())
    seal(folder, "comparison.json", json.dumps({**comparison, "claim": "</script><script>evil()"}).encode())
    (folder / "report.html").write_text("<script>evil()</script>")
    typed(capsys, "pull", f"file://{store}", "outputs=mine")
    page = (tmp_path / "mine/sweeps/norms/report.html").read_text()
    assert "<script>evil()" not in page
    assert "evil()" in page


def test_nothing_is_written_through_links(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither out of a storage that others share, nor out of the folder of runs."""
    typed(capsys, "pull", f"file://{store}", "outputs=mine")
    arm = only(store).parent.name
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(store / arm)
    (store / arm).symlink_to(elsewhere)
    _, err = typed(capsys, "push", f"file://{store}", "outputs=mine", code=1)
    assert "is a link to" in err
    (store / arm).unlink()
    typed(capsys, "push", f"file://{store}", "outputs=mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / arm).symlink_to(elsewhere)
    _, err = typed(capsys, "pull", f"file://{store}", "outputs=other", code=1)
    assert "is a link to" in err
    assert list(elsewhere.iterdir()) == []
