"""A run folder belongs to one process, says how it stands, and holds no secret."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from blockyard import atomic_files
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import held
from blockyard.runs.not_started import AlreadyDone
from blockyard.runs.provenance import git_state
from blockyard.runs.rank import check_restarts
from blockyard.runs.redact import REDACTED, redact, redact_command, redact_text
from blockyard.runs.start import create_run
from blockyard.sweep.execution.cell_states import final_metrics


def _config(outputs: Path, **more: Any) -> dict[str, Any]:
    return {"seed": 0, "name": "run", "outputs": str(outputs), "force": False, "model": {"dim": 4}, **more}


def _hold(config: dict[str, Any], ready: Any) -> None:
    folder = create_run(config)
    folder.set_status("running", step=3)
    ready.set()
    time.sleep(60)


@pytest.fixture
def other(tmp_path: Path) -> Any:
    """Another process that has the run and is in the middle of it."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(_config(tmp_path), ready))
    process.start()
    assert ready.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_second_process_is_told_the_first(tmp_path: Path, other: Any) -> None:
    with pytest.raises(UserError, match=rf"in use by process {other.pid}\b"):
        create_run(_config(tmp_path))
    with pytest.raises(UserError, match="in use"):
        create_run(_config(tmp_path, force=True))
    path = next(tmp_path.glob("*/s0"))
    assert RunFolder.open(path).status.state == "running"
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    status = RunFolder.open(path).status
    assert (status.state, status.step) == ("interrupted", 3)
    assert str(other.pid) in str(status.reason)
    assert "killed" in str(status.reason)
    with create_run(_config(tmp_path)) as again:
        assert again.resumes
        assert "interrupted at step 3" in str(again.message)


def test_a_worker_that_outlives_its_run_does_not_hold_it(tmp_path: Path) -> None:
    folder = create_run(_config(tmp_path))
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    worker.start()
    try:
        assert held(folder.path)
        folder.release()
        assert not held(folder.path)
        create_run(_config(tmp_path)).release()
    finally:
        worker.kill()
        worker.join()


def test_of_six_starts_at_once_one_runs(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from blockyard.runs.start import create_run\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n"
        f"    run = create_run({_config(Path('OUT'))!r} | {{'outputs': sys.argv[1]}})\n"
        "except ValueError as error:\n"
        "    sys.exit('refused' if 'in use' in str(error) else str(error))\n"
        "run.set_status('running'); sys.stdin.readline()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    starts = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], **pipes) for _ in range(6)]
    assert [start.stdout.readline() for start in starts] == ["ready\n"] * 6
    for start in starts:
        start.stdin.write("go\n")
        start.stdin.flush()
    deadline = time.monotonic() + 60
    while sum(start.poll() is not None for start in starts) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    said = [(start.communicate("done\n", timeout=60)[1], start.returncode) for start in starts]
    assert sorted(code for _, code in said) == [0, 1, 1, 1, 1, 1], said
    assert all("refused" in words for words, code in said if code)
    assert len(list(tmp_path.glob("*/s0"))) == 1


def test_seeds_have_folders_of_their_own(tmp_path: Path) -> None:
    made = [create_run(_config(tmp_path) | {"seed": seed}) for seed in range(3)]
    assert len({run.path for run in made}) == 3
    assert len({run.path.parent for run in made}) == 1
    for run in made:
        run.release()


def test_the_same_command_after_the_end_does_nothing_unless_forced(tmp_path: Path) -> None:
    with create_run(_config(tmp_path)) as run:
        run.metrics.append(1, {"a": 1})
        run.write_json("summary.json", {"a": 1})
        run.set_status("done", exit_code=0)
    with pytest.raises(AlreadyDone, match="force=true") as caught:
        create_run(_config(tmp_path))
    assert caught.value.folder.finished
    with create_run(_config(tmp_path, force=True)) as anew:
        assert not anew.resumes
        assert anew.path == run.path
        assert anew.status.state == "queued"
        assert anew.metrics.rows() == []
        assert "force" not in atomic_files.read_yaml(anew.path / "config.yaml")
    kept = next(path for path in anew.path.parent.iterdir() if path.name.startswith(".replaced-s0-"))
    assert RunFolder.open(kept).finished
    assert (kept / "metrics.csv").is_file()


def test_a_failed_run_is_not_started_again_by_accident(tmp_path: Path) -> None:
    with create_run(_config(tmp_path)) as run:
        run.set_status("failed", "loss is NaN at step 7", step=7, exit_code=1)
    with pytest.raises(UserError, match=r"loss is NaN at step 7.*resume=.*force=true"):
        create_run(_config(tmp_path))


def test_what_is_incidental_may_change_and_is_frozen_anew(tmp_path: Path) -> None:
    with create_run(_config(tmp_path)) as run:
        run.set_status("interrupted", "Ctrl-C", step=1)
    with create_run(_config(tmp_path, tags=["late"])) as again:
        assert again.path == run.path
        assert RunFolder.open(run.path).config["tags"] == ["late"]
        entry = again.facts()["resumes"][0]
        assert entry["before"] == {"tags": None}
        assert "Ctrl-C" in entry["was"]


def test_a_folder_that_lost_its_config_does_not_lend_its_checkpoints(tmp_path: Path) -> None:
    with create_run(_config(tmp_path)) as run:
        (run.checkpoints / "last.ckpt").write_bytes(b"old")
        (run.path / "config.yaml").unlink()
    with create_run(_config(tmp_path)) as anew:
        assert not list(anew.checkpoints.iterdir())
        assert "the old run is kept as" in str(anew.message)


def test_leftovers_of_killed_writers_are_swept_at_the_start(tmp_path: Path) -> None:
    with create_run(_config(tmp_path)) as run:
        run.set_status("interrupted", "x")
    for folder in (run.path, run.checkpoints):
        (folder / ".tmp-last.ckpt-1-abc").write_bytes(b"torn")
    with create_run(_config(tmp_path)) as again:
        assert not list(again.path.rglob(".tmp-*"))
        assert len(again.facts()["resumes"][0]["swept"]) == 2


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    atomic_files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        atomic_files.write_json(path, {"a": object()})
    with pytest.raises(FileNotFoundError), atomic_files.replacing(path) as temporary:
        temporary.with_name("absent").rename(temporary)
    assert atomic_files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"state": "odd"}', b"\xff\xfe"])
def test_a_damaged_status_is_an_interrupted_run(tmp_path: Path, damage: bytes) -> None:
    with create_run(_config(tmp_path)) as run:
        (run.path / "status.json").write_bytes(damage)
        assert run.status.state == "interrupted"
        assert "damaged" in str(run.status.reason)
        run.set_status("running")
        assert run.status.state == "running"


@pytest.mark.parametrize("damage", ["", "- a list", "a: &x [1]\nb: *x", "a: !!python/object/apply:os.system [id]", "{"])
def test_a_damaged_or_hostile_config_is_refused(tmp_path: Path, damage: str) -> None:
    with create_run(_config(tmp_path)) as run:
        (run.path / "config.yaml").write_text(damage)
    with pytest.raises(UserError, match="cannot be read"):
        RunFolder.open(run.path)


def test_the_config_reads_back_as_it_was(tmp_path: Path) -> None:
    odd = {
        "f": 1e-05,
        "i": 3,
        "s": "1e-3",
        "n": None,
        "t": True,
        "l": [1, "a"],
        "u": "é\n'\"",
        "e": {},
        "inf": float("inf"),
    }
    same = [0.1]
    with create_run(_config(tmp_path, data={**odd, "x": same, "y": same})) as run:
        assert RunFolder.open(run.path).config["data"] == {**odd, "x": same, "y": same}


def test_a_place_that_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose outputs="):
        create_run(_config(tmp_path / "file"))
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(UserError, match="seed="):
        create_run(_config(tmp_path) | {"seed": "x"})


def test_another_rank_waits_for_the_main_ones_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_run(_config(tmp_path)) as run:
        run.set_status("running")
        monkeypatch.setenv("RANK", "1")
        assert create_run(_config(tmp_path)).path == run.path


def test_where_it_comes_from_is_recorded_outside_a_repository_too(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    with create_run(_config(tmp_path), command=["blockyard", "train"], choices={"data": "digits"}) as run:
        facts = json.loads((run.path / "run.json").read_text())
    assert facts["command"] == ["blockyard", "train"]
    assert facts["choices"] == {"data": "digits"}
    assert facts["versions"]["python"].startswith("3.")
    assert facts["host"]["cores"] >= 1
    assert facts["identity"] in run.path.parent.name


SECRET = "hunter2hunter2"


def test_no_secret_reaches_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2)
    config = _config(
        tmp_path,
        logger={"api_key": SECRET, "nested": {"password": SECRET, "list": [{"auth_token": SECRET}]}},
        data={"url": f"https://me:{SECRET}@host/x", "key": "0123456789abcdef" * 2, "hub": "hf_" + "a1" * 15},
        head={"class_token": True, "pad_token": "<pad>", "max_tokens": 3},
    )
    words = [f"logger.api_key={SECRET}", f"+a.password={SECRET}", "--token", SECRET, f"logger={{api_key:{SECRET},b:1}}"]
    words += [f"url=https://me:{SECRET}@host", "key=" + "0123456789abcdef" * 2, "model.dim=4"]
    with create_run(config, command=words) as run:
        assert run.config["logger"]["api_key"] == SECRET  # usable in this process
        run.set_status("failed", f"cannot reach https://me:{SECRET}@host", url=f"https://me:{SECRET}@host")
    for path in (path for path in run.path.rglob("*") if path.is_file()):
        text = path.read_text()
        assert SECRET not in text, path
        assert "0123456789abcdef" * 2 not in text, path
        assert "hf_a1" not in text, path
    frozen = RunFolder.open(run.path).config
    assert frozen["head"] == config["head"]
    assert frozen["logger"]["api_key"] == REDACTED
    assert "logger.api_key looks like a secret" in caplog.text
    assert "model.dim=4" in run.facts()["command"]


def test_names_of_options_that_are_no_secrets_stay() -> None:
    harmless = {"tokenizer": "bpe", "token_mixer": "attention", "class_token": "x", "max_tokens": 5, "unk_token": "<u>"}
    assert redact(harmless) == harmless
    assert redact({"password": None, "token": ""}) == {"password": None, "token": ""}
    assert redact_command(["token_mixer=fourier", "tokenizer.max_symbols=3"]) == [
        "token_mixer=fourier",
        "tokenizer.max_symbols=3",
    ]
    assert redact_text("plain words, 1e-3, /a/path, https://host/x") == "plain words, 1e-3, /a/path, https://host/x"


@pytest.mark.parametrize(
    "text",
    [
        "https://SECRETVALUE@host/x",
        "https://u:SECRETVALUE@host/x",
        "https://host/x?token=SECRETVALUE&a=1",
        "https://host/x?a=1&X-Amz-Signature=SECRETVALUE",
        "https://host/x?access_token=SECRETVALUE",
        "https://host/x?key=SECRETVALUE",
        "https://host/x?signature=SECRETVALUE#part",
    ],
)
def test_secrets_in_addresses_go(text: str) -> None:
    assert "SECRETVALUE" not in redact_text(f"cannot open {text}")
    assert "host/x" in redact_text(f"cannot open {text}")


def test_addresses_without_secrets_stay() -> None:
    text = "ssh://git@host/a.git https://host/@me?page=2&size=3"
    assert redact_text(text) == text


def test_a_secret_option_does_not_come_back_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from blockyard.engine import run
    from blockyard.runs import redact as module

    monkeypatch.setattr(module, "_REMEMBERED", set())
    secret = "hunter2-open-sesame"
    plain = {"outputs": str(tmp_path), "name": f"my {secret}", "logger": {"api_key": secret, "mode": "auto"}, "x": 1}

    def fails(*_: object) -> None:
        raise RuntimeError(f"the service does not take {secret}")

    monkeypatch.setattr(run, "_train_and_test", fails)
    with create_run(plain, command=["test"]) as made:
        assert run.train(made) == 1
    assert made.status.state == "failed"
    assert "the service does not take <redacted>" in str(made.status.reason)
    assert secret not in caplog.text
    assert secret not in str(made.path)
    for path in (path for path in made.path.rglob("*") if path.is_file()):
        assert secret not in path.read_text(), path
    assert "auto" in redact_text("auto")


def test_restarts_on_several_nodes_need_a_store_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}.items():
        monkeypatch.setenv(name, value)
    check_restarts()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(UserError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        check_restarts()
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    check_restarts()


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    """NaN is no JSON (RFC 8259): other programs could not read it. Readers here take null in metrics for NaN."""

    def refused(name: str) -> None:
        raise AssertionError(f"{name} in a JSON file")

    with create_run(_config(tmp_path)) as folder:
        folder.write_summary({"metrics": {"test/f1": math.nan, "test/loss": 1.5}, "seconds": (math.inf, 2)})
    text = (folder.path / "summary.json").read_text()
    content = json.loads(text, parse_constant=refused)
    assert content["metrics"] == {"test/f1": None, "test/loss": 1.5}
    assert content["seconds"] == [None, 2]
    assert math.isnan(folder.summary()["metrics"]["test/f1"])
    assert math.isnan(final_metrics(folder.path)["test/f1"])
    assert final_metrics(folder.path)["test/loss"] == 1.5
