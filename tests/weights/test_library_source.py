"""`init.from=hf:NAME` and `timm:NAME`: read from the local cache, converted as an import does, never downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import save_file
from torch.testing import assert_close

from blockyard.cli import main
from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.override_grammar import parse_value
from blockyard.contracts import Inputs
from blockyard.errors import UserError
from blockyard.weights.convert import importing
from blockyard.weights.convert.importing import import_weights
from blockyard.weights.convert.source import read_source
from blockyard.weights.sources import find_source, outline, read_weights
from tests.support.helpers import stir
from tests.support.library_models import CASES
from tests.support.tolerances import FLOAT32_STEPS, FLOAT64


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Hugging Face."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def in_cache(cache: Path, repository: str) -> Path:
    """The folder of a repository in the cache, as a download leaves it, without its files."""
    root = cache / f"models--{repository.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("abc")
    folder = root / "snapshots" / "abc"
    folder.mkdir(parents=True)
    return folder


def gpt2(folder: Path) -> torch.nn.Module:
    """A small GPT-2, written by transformers."""
    torch.manual_seed(0)
    model = stir(transformers.GPT2LMHeadModel(CASES["gpt2"].config())).eval()
    model.save_pretrained(folder)
    return model


def started(*overrides: str) -> torch.nn.Module:
    """The model of a run with its initial weights."""
    composed = compose(["logger=none", *overrides])
    assert not check(composed)
    components = Components(composed.config)
    model = components.model(0).eval()
    components.node("init").load(components, model)
    return model


@torch.no_grad()
@pytest.mark.parametrize("by_name", [True, False])
def test_a_model_of_transformers_predicts_what_it_predicted(by_name: bool, cache: Path, tmp_path: Path) -> None:
    folder = in_cache(cache, "someone/tiny") if by_name else tmp_path / "saved"
    theirs = gpt2(folder)
    name = "hf:someone/tiny" if by_name else f"hf:{folder}"
    sizes = read_source(folder).foreign.overrides
    overrides = ["preset=gpt2", *sizes, *CASES["gpt2"].overrides, f"init.from={name}"]
    inputs = CASES["gpt2"].inputs()
    ours = started(*overrides)  # its head is the table of tokens
    assert_close(ours.double()(Inputs(**inputs)), CASES["gpt2"].call(theirs.double(), inputs), **FLOAT64)
    composed = compose(["logger=none", *overrides])
    assert composed.config["init"]["from"] == name
    # The same weights, imported first, are the same source.
    imported = import_weights(folder, tmp_path / "ours")
    assert composed.config["init"]["sha256"] == outline(find_source(str(imported.folder / "model.safetensors"))).sha256


@torch.no_grad()
def test_a_pretrained_model_of_timm(cache: Path) -> None:
    """A model of timm's own name, whose repository timm knows, with other weights in the cache."""
    name = "vit_tiny_patch16_224"
    small = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10, "embed_dim": 16, "depth": 1}
    small["num_heads"] = 4
    theirs = stir(timm.create_model(name, **small)).eval()
    folder = in_cache(cache, timm.get_pretrained_cfg(name).hf_hub_id)
    save_file(theirs.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": name, "model_args": small}))
    sizes = read_source(folder).foreign.overrides
    parts = "init.parts=[embedder,position,prefix,blocks,final_norm,head]"
    ours = started("preset=vit", *sizes, "data=digits", f"init.from=timm:{name}", parts)
    pictures = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_close(ours.double()(pictures), theirs.double()(pictures), **FLOAT32_STEPS)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hf:someone/absent", r"someone/absent is not in the local cache .*downloads? nothing.*hf download"),
        ("hf:someone/absent@v2", r"--revision v2"),
        ("timm:vit_tiny_patch16_224", r"hf download timm/vit_tiny_patch16_224"),
        ("timm:vit_tini_patch16_224", r"no model 'vit_tini_patch16_224'.*vit_tiny_patch16_224"),
        ("hf:", "a name is missing"),
        ("hf:a/b/c", "no name of a repository, and no folder"),
        ("hf:someone/empty", r"no \.safetensors file"),
        ("hf:someone/odd", "model_type='mamba' has no converter"),
    ],
)
def test_refused_in_one_message(name: str, reason: str, cache: Path) -> None:
    in_cache(cache, "someone/empty")
    odd = in_cache(cache, "someone/odd")
    save_file({"a": torch.ones(1)}, odd / "model.safetensors")
    (odd / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(UserError, match=reason):
        read_weights(find_source(name))


def test_paths_of_any_letters_and_folders_of_choices_reach_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bracket or a comma in the path of a tokenizer was read as Hydra's grammar; --config-dir was not used."""
    path = Path("gpt2 (1), ü=x/tokenizer.json").absolute()
    foreign = SimpleNamespace(text=["data=code"], vocabulary=10)
    source: Any = SimpleNamespace(partly="", foreign=foreign, tokenizer=path, converter=SimpleNamespace(preset="gpt2"))
    monkeypatch.setattr(importing, "_special", lambda source: [])
    monkeypatch.setattr(importing, "composed", lambda preset, foreign, overrides, folders: (overrides, folders))
    overrides, folders = importing.composed_run(source, ["seed=1"], ["myconf"])
    values = {key: parse_value(text) for key, _, text in (each.partition("=") for each in overrides)}
    assert values["tokenizer.path"] == str(path)
    assert folders == ["myconf"]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    model = gpt2(tmp_path)
    first = outline(find_source(f"hf:{tmp_path}")).sha256
    stir(model).save_pretrained(tmp_path)
    assert outline(find_source(f"hf:{tmp_path}")).sha256 != first


BASE = ("preset=gpt2", "data=code", "data.context=6", "tokenizer=byte", "model.dim=16", "model.depth=2", "logger=none")


@pytest.mark.parametrize("key", ["init.from", "objective.teacher"])
def test_weights_without_a_config_are_refused(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message advises nothing that only an import has."""
    gpt2(tmp_path / "theirs")
    (tmp_path / "theirs" / "config.json").unlink()
    assert main(["check", *BASE, f"{key}=hf:{tmp_path / 'theirs'}"]) == 2
    message = capsys.readouterr().err
    assert f"{key}: {tmp_path / 'theirs'} has no config.json" in message
    assert "timm=" not in message


def test_an_index_of_impossible_names_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x" * 300}}))
    assert main(["check", *BASE, f"init.from={tmp_path}"]) == 2
    assert f"{index} is damaged" in capsys.readouterr().err


def test_every_file_that_is_read_is_watched(tmp_path: Path) -> None:
    """The index and the tokenizer too: a change of them is seen."""
    gpt2(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    names = {path.name for path in find_source(f"hf:{tmp_path}").files}
    assert names == {"config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"}
