"""No secret of a config reaches a file of a run, or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.runs.folder import RunFolder
from blockyard.runs.redact import REDACTED, redact, redact_command, redact_text
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
