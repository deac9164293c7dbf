"""`blockyard import` and `blockyard export` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from blockyard.cli import main
from blockyard.commands.completion import complete
from tests.support.untrained import untrained

TINY = ("preset=gpt2", "data=code", "data.context=16", "tokenizer=byte", "model.dim=16", "model.depth=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("run") / "run", *TINY)


def test_there_and_back(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exported run can be imported again; the import generates the same text and exports to safetensors."""
    monkeypatch.chdir(tmp_path)

    def output(*args: str) -> str:
        """The standard output of a successful command; `generate` also reports its speed on stderr."""
        assert main([*args]) == 0
        captured = capsys.readouterr()
        assert captured.err == "" or args[0] == "generate"
        return captured.out

    printed = output("export", f"run={run}", "to=hf", "format=hf")
    assert "GPT2LMHeadModel.from_pretrained" in printed
    assert "AutoTokenizer.from_pretrained" in printed
    assert "None was stated at the export" in (tmp_path / "hf" / "README.md").read_text()
    printed = output("import", "hf", "out=back", *TINY[1:4])
    assert "preset=gpt2 from transformers GPT2LMHeadModel" in printed
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == [
        *("config.yaml", "import.json", "model.safetensors", "run.json")
    ]
    texts = [
        output("generate", f"run={where}", "prompt=def", "max_tokens=8", "temperature=0") for where in (run, "back")
    ]
    assert texts[0] == texts[1]
    output("export", "run=back", "to=plain", "format=safetensors")
    assert json.loads((tmp_path / "plain" / "run.json").read_text())["export"]["step"] == 0
    output("export", "run=plain", "to=again", "format=hf")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "hf" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import", "takes one folder or file, and none is named"),
        ("import a b out=c", "not 2 (a, b)"),
        ("import a", "needs out=FOLDER"),
        ("import a out=", "out="),
        ("import nothing out=c", "no file or folder"),
        ("export to=x format=hf", "export needs run=RUN"),
        ("export run={run} format=hf", "needs to=FOLDER"),
        ("export run={run} to=x", "needs format=safetensors|hf"),
        ("export run={run} to=x format=pickle", "format="),
        ("export run={run} to=x format=hf chosen=last", "unknown option of export"),
        ("export run={run} to=x format=onnx as=gpt2", "as=gpt2 has an effect with"),
        ("export run={run} to=x format=hf license=Mine!", "a licence by the hub's name"),
        ("export run={run} to=x format=onnx license=mit", "license=mit has an effect with format=hf only"),
        ("export run={run} to=x format=hf push=gpt", "a repository of the hub, such as USER/NAME"),
        ("export run={run} to=x format=hf push=../gpt", "a repository of the hub, such as USER/NAME"),
        ("export run={run} to=x format=hf as=vit", "as=vit: no class of transformers"),
        ("export run={run} to=x format=hf as=llama", "position=learned, expected rope"),
        ("export run={run} to=x format=timm", "no class of timm has these blocks"),
        ("export run={run} to={run} format=hf", "it exists"),
        ("export run={run} to=x format=hf which=previous", "no previous.ckpt"),
    ],
)
def test_refusals(
    line: str, reason: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([part.format(run=run) for part in line.split()]) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("token_mixer.qk_norm=true",), "token_mixer.qk_norm=True, expected False"),
        (("token_mixer.gate=head",), "token_mixer.gate='head', expected 'none'"),
        (("block=parallel",), "block=parallel, expected pre_norm"),
        (("norm=rms",), "norm=rms, expected layer"),
        (("position=rope",), "position=rope, expected learned"),
        (("token_mixer.num_kv_heads=1",), "token_mixer.num_kv_heads=1, expected 4"),
        (("token_mixer=linear_attention",), "token_mixer=linear_attention, expected attention"),
        (("model.prefix.registers=1",), "model.prefix"),
        (("channel_mixer=glu",), "channel_mixer=glu, expected mlp"),
        (("parametrization=mup",), "parametrization=mup, expected none"),
        (("head.bias=true",), "head.bias=True, expected False"),
        (("tokenizer.scale=sqrt_dim",), "tokenizer.scale"),
    ],
)
def test_settings_that_no_class_has(
    overrides: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Every setting that differs from GPT-2 is named."""
    folder = untrained(tmp_path / "run", *TINY, *overrides)
    assert main(["export", f"run={folder}", f"to={tmp_path / 'x'}", "format=hf", "as=gpt2"]) == 2
    assert reason in capsys.readouterr().err


def test_completion() -> None:
    assert complete("blockyard export format=p") == ["format=peft", "format=pt2"]
    assert "to=" in complete("blockyard export ")
    assert {"out=", "timm=", "data="} <= set(complete("blockyard import folder "))
    assert "as=gpt2" in complete("blockyard import folder as=g")


def pushed(monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, ...]], token: str | None, failure: str = "") -> None:
    """Put a hub into the place of the client's that records what it is sent, or fails."""

    def create_repo(repository: str, *, private: bool, exist_ok: bool) -> None:
        calls.append((repository, private, exist_ok))

    def upload_folder(*, repo_id: str, folder_path: Path, commit_message: str) -> SimpleNamespace:
        if failure:
            raise OSError(failure)
        calls.append((repo_id, sorted(path.name for path in folder_path.iterdir()), commit_message))
        return SimpleNamespace(commit_url=f"hub/{repo_id}/commit/1")

    for function in (create_repo, upload_folder):
        monkeypatch.setattr(huggingface_hub, function.__name__, function)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)


def test_an_export_is_pushed_to_the_hub(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    pushed(monkeypatch, calls, token="hf_x")
    assert main(["export", f"run={run}", f"to={tmp_path / 'gpt'}", "format=hf", "push=me/gpt"]) == 0
    assert "pushed to hub/me/gpt/commit/1" in capsys.readouterr().out
    files = sorted(path.name for path in (tmp_path / "gpt").iterdir())
    assert calls == [("me/gpt", True, True), ("me/gpt", files, "blockyard export")]


def test_an_export_without_a_token_of_the_hub_writes_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    pushed(monkeypatch, calls, token=None)
    assert main(["export", f"run={run}", f"to={tmp_path / 'gpt'}", "format=hf", "push=me/gpt"]) == 2
    assert "set HF_TOKEN" in capsys.readouterr().err
    assert calls == []
    assert not (tmp_path / "gpt").exists()


def test_an_export_that_the_hub_does_not_take_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed(monkeypatch, [], token="hf_x", failure="no route to the hub")
    assert main(["export", f"run={run}", f"to={tmp_path / 'gpt'}", "format=hf", "push=me/gpt"]) == 2
    message = capsys.readouterr().err
    assert "the hub did not take it (no route to the hub)" in message
    assert f"`hf upload me/gpt {tmp_path / 'gpt'}`" in message
    assert (tmp_path / "gpt" / "model.safetensors").is_file()
