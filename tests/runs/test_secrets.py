"""No secret of a config reaches a file of a run, or an error."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.redact import REDACTED, is_secret_key, redact, redact_command, redact_text
from blockyard.runs.start import create_run
from tests.runs.run_folders import run_config

SECRET = "hunter2hunter2"


def test_no_secret_reaches_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2)
    config = run_config(
        tmp_path,
        logger={"api_key": SECRET, "nested": {"password": SECRET, "list": [{"auth_token": SECRET}]}},
        data={"url": f"https://me:{SECRET}@host/x", "key": "0123456789abcdef" * 2, "hub": "hf_" + "a1" * 15},
        head={"class_token": True, "pad_token": "<pad>", "max_tokens": 3},
    )
    arguments = [
        f"logger.api_key={SECRET}",
        f"+a.password={SECRET}",
        "--token",
        SECRET,
        f"logger={{api_key:{SECRET},b:1}}",
    ]
    arguments += [f"url=https://me:{SECRET}@host", "key=" + "0123456789abcdef" * 2, "model.dim=4"]
    with create_run(config, command=arguments) as run:
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
    assert redact({"token": 2}) == {"token": 2}  # data.token of data=tag is a column
    assert redact_command(["data.token=2", "data.token=12345"]) == ["data.token=2", f"data.token={REDACTED}"]
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
        "postgresql://user:p@SECRETVALUE@host/x",
        "postgresql://user:pa/SECRETVALUE@host/x",
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
    with create_run(plain, command=["test"]) as run_folder:
        assert run.train(run_folder) == 1
    assert run_folder.status.state == "failed"
    assert "the service does not take <redacted>" in str(run_folder.status.reason)
    assert secret not in caplog.text
    assert secret not in str(run_folder.path)
    for path in (path for path in run_folder.path.rglob("*") if path.is_file()):
        assert secret not in path.read_text(), path
    assert "auto" in redact_text("auto")


TOKEN = "ghp_" + "a1B2c3D4e5" * 4


@pytest.mark.full
def test_a_token_in_a_free_text_reaches_no_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Names, tags, groups and projects are redacted for W&B, TensorBoard, the pages and the screen alike."""
    from blockyard.cli import main
    from tests.support.tiny import DEBUG

    overrides = [override for override in DEBUG if not override.startswith("logger=")]
    free = {
        "name": f"my {TOKEN}",
        "tags": f"[{TOKEN}]",
        **{f"logger.wandb.{key}": TOKEN for key in ("project", "group", "job_type", "name")},
        **{f"logger.tensorboard.{key}": TOKEN for key in ("group", "name")},
        "logger.wandb.tags": f"[{TOKEN}]",
        "logger.wandb.mode": "offline",
        "outputs": tmp_path,
    }
    assert (
        main(["train", *overrides, "logger=[wandb,tensorboard]", *(f"{key}={value}" for key, value in free.items())])
        == 0
    )
    for command in (["runs", f"outputs={tmp_path}"], ["eval", "run=last", f"outputs={tmp_path}"]):
        assert main(command) == 0
    assert list(tmp_path.rglob("*.wandb"))
    assert list(tmp_path.rglob("events.out.*"))
    names = [path for path in tmp_path.rglob("*") if TOKEN in path.name]
    assert names == []
    assert [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()] == []
    assert TOKEN not in "".join(capfd.readouterr())


def test_trackio_gets_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed to Trackio, config and names, holds no token."""
    from blockyard.engine.loggers.base import presented
    from blockyard.engine.loggers.trackio import Trackio
    from tests.engine.loggers.logged_runs import run_folder

    trackio = pytest.importorskip("trackio")
    records: list[str] = []
    monkeypatch.setattr(trackio, "init", lambda **options: records.append(repr(options)))
    folder = run_folder(tmp_path, name=f"my {TOKEN}", data={"password": SECRET, "url": f"https://me:{SECRET}@host"})
    Trackio().start(folder, presented(folder))
    assert "model.dim" in records[0]
    assert TOKEN not in records[0]
    assert SECRET not in records[0]


def test_pages_and_exported_weights_hold_no_token(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A token in a name, a tag or a project reaches no page of runs and no file beside exported weights."""
    from blockyard.cli import main
    from tests.support.tiny import DEBUG

    outputs, exported = tmp_path / "outputs", tmp_path / "exported"
    free = [f"name=my {TOKEN}", f"tags=[{TOKEN}]", f"outputs={outputs}"]
    assert main(["train", *DEBUG, *free]) == 0
    assert main(["runs", "--html", f"outputs={outputs}"]) == 0
    assert main(["compare", str(outputs), f"outputs={outputs}"]) == 0
    assert main(["export", "run=last", f"outputs={outputs}", f"to={exported}", "format=safetensors"]) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".html"]
    assert [path for path in files if path.suffix == ".safetensors"]
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    assert TOKEN not in "".join(capfd.readouterr())


@pytest.mark.sampled(100)
@pytest.mark.parametrize(
    ("preset", "formats"),
    [
        (["preset=gpt2", "data=text_file", "tokenizer=bpe", "tokenizer.vocab_size=300", "data.context=16"], ["hf"]),
        (["preset=vit", "data=digits"], ["timm", "onnx", "pt2"]),
    ],
    ids=["text", "images"],
)
def test_files_for_other_libraries_hold_no_token(
    preset: list[str], formats: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A token in a name, a tag or a project reaches no exported file, nor a member of an archive, nor the screen."""
    from blockyard.cli import main
    from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, steps

    if "onnx" in formats:
        pytest.importorskip("onnx")
    outputs = tmp_path / "outputs"
    free = [f"name=my {TOKEN}", f"tags=[{TOKEN}]", f"outputs={outputs}"]
    if "hf" in formats:
        (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 80)
        free.append(f"data.path={tmp_path / 'text.txt'}")
    assert main(["train", *preset, *ON_CPU, *ONE_LAYER, *ONE_BATCH, *steps(1, None), "data.batch_size=4", *free]) == 0
    for kind in formats:
        folder = tmp_path / kind
        assert main(["export", "run=last", f"outputs={outputs}", f"to={folder}", f"format={kind}"]) == 0
        contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        for path in folder.rglob("*.pt2"):
            with zipfile.ZipFile(path) as archive:
                contents += [archive.read(name) for name in archive.namelist()]
        assert contents
        assert not any(TOKEN.encode() in content for content in contents), kind
    assert TOKEN not in "".join(capfd.readouterr())


@pytest.mark.full
def test_a_wandb_sweep_file_and_the_page_of_a_sweep_hold_no_token(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token in a claim, an arm, a setting or an override of a sweep is not written into what leaves its folder."""
    import yaml

    from blockyard.cli import main
    from tests.support.tiny import TINY, steps

    monkeypatch.chdir(tmp_path)
    file = tmp_path / "leak.yaml"
    body = {
        "claim": f"see https://me:{SECRET}@host and {TOKEN}",
        "metric": "val/loss",
        "base": [*TINY, *steps(2, 2), "logger=none", f"name={TOKEN}"],
        "arms": {"pre": ["block=pre_norm"], "post": ["block=post_norm", f"tags=[{TOKEN}]"]},
        "seeds": [0, 1],
    }
    file.write_text(yaml.safe_dump(body))
    assert main(["sweep", str(file), "--to-wandb", f"outputs={tmp_path / 'o'}"]) == 0
    printed = "".join(capfd.readouterr())
    (written,) = (tmp_path / "wandb").glob("*.yaml")
    assert main(["sweep", str(file), f"outputs={tmp_path / 'o'}"]) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != file]
    assert written in files
    assert [path for path in files if path.suffix == ".html"]
    for secret in (TOKEN, SECRET):
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
    printed += "".join(capfd.readouterr())
    assert TOKEN not in printed
    assert SECRET not in printed


@pytest.mark.parametrize("arguments", [["tag", TOKEN[:40]], ["note", f"see {TOKEN}"]], ids=["tag", "note"])
def test_notes_take_no_secret(arguments: list[str]) -> None:
    """A tag or note with a token is refused before it is written; the message does not repeat it."""
    from blockyard.runs.notes import RunNotes, write_notes

    with pytest.raises(UserError, match="looks like a secret") as refused:
        RunNotes().tagged([arguments[1]]) if arguments[0] == "tag" else write_notes(
            Path("nowhere"), RunNotes(note=arguments[1])
        )
    assert TOKEN[:40] not in str(refused.value)


@pytest.mark.parametrize(
    "secret",
    [
        *("github_pat_" + "a1" * 15, "glpat-" + "a1" * 10, "sk-" + "a1" * 15, "wandb_v1_" + "a1" * 15),
        *("xoxb-" + "1a" * 10, "AKIA" + "A1" * 8, "AIza" + "a1" * 20, "local-" + "0f" * 20),
        *("eyJ" + "a1" * 8 + ".eyJ" + "b2" * 8 + ".sig", "Authorization: Bearer " + "a1" * 10),
    ],
)
def test_every_kind_of_secret_is_hidden_in_a_text(secret: str) -> None:
    assert secret.split()[-1] not in redact_text(f"refused: {secret}!")


@pytest.mark.parametrize(
    "key",
    [
        *("connection_string", "passphrase", "private_key", "ssh_key", "credentials", "cookie", "netrc"),
        *("a.authorization", "pwd"),
    ],
)
def test_every_kind_of_secret_key_is_one(key: str) -> None:
    assert is_secret_key(key)
