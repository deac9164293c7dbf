"""Numbers in a library's config have bounds and types, and must fit the file of weights, before anything is built."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import save_file

from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.weights.convert import importing
from blockyard.weights.convert.declared_sizes import KINDS, LARGEST, Stored, whole_number
from blockyard.weights.convert.importing import import_weights
from tests.support.library_models import CASES

CLASSIFIER = "BertForSequenceClassification"
NAMES = "gpt2 llama t5 bert wav2vec2 whisper gemma2 gemma3 deepseek_v3 palm qwen3"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of small models as transformers writes them, and one of timm."""
    import timm

    folders = {}
    for name in NAMES.split():
        folders[name] = tmp_path_factory.mktemp(name)
        getattr(transformers, CASES[name].name)(CASES[name].config()).save_pretrained(folders[name])
    folders["vit"] = tmp_path_factory.mktemp("vit")
    sizes = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10, "embed_dim": 16, "depth": 1}
    sizes["num_heads"] = 4
    model = timm.create_model("vit_tiny_patch16_224", **sizes)
    save_file(model.state_dict(), folders["vit"] / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "model_args": sizes}
    (folders["vit"] / "config.json").write_text(json.dumps(config))
    return folders


def copied(source: Path, to: Path, settings: dict[str, Any]) -> Path:
    """The same folder with other settings in its config; those of `model_args` are merged."""
    to.mkdir()
    config = json.loads((source / "config.json").read_text())
    if isinstance(arguments := settings.get("model_args"), dict):
        settings = {**settings, "model_args": config["model_args"] | arguments}
    (to / "config.json").write_text(json.dumps(config | settings))
    (to / "model.safetensors").symlink_to(source / "model.safetensors")
    return to


DEEPSEEK_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0}
SETTINGS = [
    ("gpt2", {"n_layer": 10**6}, "the layers may be at most 1,024"),
    ("gpt2", {"n_layer": 1000}, "fewer than layers"),
    ("gpt2", {"n_layer": 2.0}, "not a whole number"),
    ("gpt2", {"n_layer": "2"}, "not a whole number"),
    ("gpt2", {"n_layer": True}, "not a whole number"),
    ("gpt2", {"n_layer": [2]}, "not a whole number"),
    ("gpt2", {"n_layer": 10**400}, "the layers may be at most"),
    ("gpt2", {"n_embd": 10**9}, "the width may be at most"),
    ("gpt2", {"n_embd": 100_000}, "no tensor in its file of weights is that large"),
    ("gpt2", {"n_head": 10**5}, "the heads may be at most"),
    ("gpt2", {"n_inner": 10**8}, "the hidden width may be at most"),
    ("gpt2", {"n_inner": "64 model.depth=3"}, "not a whole number"),
    ("gpt2", {"n_positions": 10**7}, "no tensor in its file of weights is that large"),
    ("gpt2", {"vocab_size": 10**12}, "the vocabulary may be at most"),
    ("gpt2", {"layer_norm_epsilon": float("nan")}, "not a finite number"),
    ("gpt2", {"layer_norm_epsilon": 10**400}, "not a finite number"),
    ("gpt2", {"tie_word_embeddings": "false"}, "not true or false"),
    ("gpt2", {"activation_function": ["gelu"]}, "activation_function"),
    ("gpt2", {"model_type": ["gpt2"]}, "model_type=.* has no converter"),
    ("gpt2", {"model_type": {"a": 1}}, "model_type=.* has no converter"),
    ("gpt2", {"architectures": 3}, "not a list of names"),
    ("gpt2", {"architectures": [["GPT2LMHeadModel"]]}, "not a list of names"),
    ("gpt2", {"architecture": ["vit"]}, "not the name of a model of timm"),
    ("llama", {"num_key_value_heads": 10**9}, "the heads may be at most"),
    ("llama", {"head_dim": -4}, "not a whole number"),
    ("llama", {"max_position_embeddings": 10**12}, "the positions may be at most"),
    ("llama", {"rope_parameters": [1]}, "not a mapping"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": "x"}}, "factor='x' is not a number"),
    ("llama", {"rope_parameters": {"rope_type": ["linear"]}}, "rope_type"),
    ("t5", {"num_decoder_layers": 10**6}, "the layers may be at most"),
    ("t5", {"relative_attention_num_buckets": 10**6}, "the size may be at most"),
    ("t5", {"relative_attention_max_distance": 2.5}, "not a whole number"),
    ("t5", {"feed_forward_proj": ["relu"]}, "feed_forward_proj"),
    ("bert", {"architectures": [CLASSIFIER], "id2label": 3}, "not a mapping"),
    ("bert", {"architectures": [CLASSIFIER], "num_labels": 10**9}, "the classes may be at most"),
    ("bert", {"hidden_act": {"a": 1}}, "hidden_act"),
    ("wav2vec2", {"conv_kernel": 3}, "not a list of 1 to 64 whole numbers"),
    ("wav2vec2", {"conv_kernel": [3] * 10_000}, "not a list of 1 to 64 whole numbers"),
    ("wav2vec2", {"conv_stride": [10**9] * 7}, "the size may be at most"),
    ("wav2vec2", {"pad_token_id": 257}, "pad_token_id, which is the blank, must be below vocab_size=257"),
    ("wav2vec2", {"layer_norm_eps": 1e-2}, "layer_norm_eps=0.01: expected 1e-05"),
    ("t5", {"dense_act_fn": "gelu"}, "dense_act_fn='gelu' .*: expected 'relu'"),
    ("t5", {"is_gated_act": True}, "is_gated_act='?True'? .*: expected False"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0.0: expected a number above 0"),
    ("gemma2", {"query_pre_attn_scalar": -4}, "query_pre_attn_scalar=-4.0: expected a number above 0"),
    ("gemma2", {"use_sliding_window": False}, "use_sliding_window='?False'? .*: expected True"),
    ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0.0: expected a number above 0"),
    ("gemma3", {"query_pre_attn_scalar": -4}, "query_pre_attn_scalar=-4.0: expected a number above 0"),
    ("gemma3", {"layer_types": [["a"], 1, 2, 3]}, "layer_types=.*each of the 4 layers"),
    ("qwen3", {"layer_types": [{"a": 1}, {"b": 2}]}, "layer_types=.*each of the 2 layers"),
    ("palm", {"logit_scale": 0}, "logit_scale=0.0: expected a number above 0"),
    ("palm", {"head_dim": 5}, "head_dim=5: expected an even number"),
    ("deepseek_v3", {"qk_rope_head_dim": 7}, "qk_rope_head_dim=7: expected an even number"),
    (
        "deepseek_v3",
        {"rope_parameters": DEEPSEEK_ROPE | {"mscale_all_dim": -10 / math.log(4)}},
        "mscale_all_dim=.* makes the factor of the scores 0",
    ),
    ("whisper", {"d_model": 2}, "d_model=2 is not a whole number of at least 4"),
    ("whisper", {"max_source_positions": 2**23}, "no tensor in its file of weights is that large"),
    ("vit", {"model_args": {"depth": 10**6}}, "the layers may be at most"),
    ("vit", {"model_args": {"embed_dim": 10**9}}, "the width may be at most"),
    ("vit", {"model_args": {"embed_dim": 100_000}}, "no tensor in its file of weights is that large"),
    ("vit", {"model_args": {"img_size": 10**6}}, "the size may be at most"),
    ("vit", {"model_args": {"img_size": "8"}}, "not a whole number"),
    ("vit", {"model_args": {"patch_size": [2, 2.5]}}, "not a whole number"),
    ("vit", {"model_args": {"mlp_ratio": 10**6}}, "at most 64"),
    ("vit", {"model_args": {"num_classes": 10**9}}, "the classes may be at most"),
    ("vit", {"model_args": {"checkpoint_path": "/etc/passwd"}}, "checkpoint_path='/etc/passwd' is not taken"),
    ("vit", {"model_args": {"pretrained": True}}, "pretrained=True is not taken"),
    ("vit", {"model_args": {"pretrained_cfg": {"file": "/etc/passwd"}}}, "pretrained_cfg=.* is not taken"),
    ("vit", {"model_args": {"features_only": True}}, "features_only=True is not taken"),
    ("vit", {"model_args": {"act_layer": "foo"}}, "timm cannot build vit_tiny_patch16_224"),
    ("vit", {"model_args": {"norm_layer": "foo"}}, "timm cannot build vit_tiny_patch16_224"),
    ("vit", {"architecture": "vit_base_patch16_rpn_224"}, "its blocks are ResPostBlock"),
    ("vit", {"model_args": {"qkv_bias": "no"}}, "not true or false"),
    ("vit", {"model_args": [1]}, "not a mapping"),
]


@pytest.mark.parametrize(("model", "settings", "reason"), SETTINGS, ids=lambda value: str(value)[:60])
def test_a_declared_size_is_refused_before_a_model_is_built(
    model: str,
    settings: dict[str, Any],
    reason: str,
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importing, "compose", lambda *_: pytest.fail("a config was composed"))
    folder = copied(models[model], tmp_path / "theirs", settings)
    with pytest.raises(UserError, match=reason):
        import_weights(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


DAMAGED = ("[" * 100_000, '{"a": ' * 100_000, "[]", "null", "9" * 5000, "\ud800", "{")


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_damaged_json_is_named(
    name: str, content: str, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(models["gpt2"], tmp_path / "theirs", {})
    if name != "config.json":
        (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert main(["import", str(folder), f"out={tmp_path / 'ours'}"]) == 2
    assert name in capsys.readouterr().err
    assert main(["check", "experiment=vit_digits", "logger=none", f"init.from=hf:{folder}"]) == 2
    assert name in capsys.readouterr().err
    if name != "config.json":
        assert main(["check", "experiment=vit_digits", "logger=none", f"init.from={folder}"]) == 2
        assert name in capsys.readouterr().err


def test_a_file_of_other_sizes_than_the_named_model(models: dict[str, Path], tmp_path: Path) -> None:
    """Both shapes are named where timm=NAME is a model of other sizes, and nothing is written."""
    with pytest.raises(UserError, match=r"weights of another shape|the weights have no"):
        import_weights(models["vit"] / "model.safetensors", tmp_path / "ours", timm="vit_tiny_patch16_224")
    folder = copied(models["vit"], tmp_path / "theirs", {"model_args": {"patch_size": 4}})
    with pytest.raises(UserError, match=r"patch_embed\.proj\.weight \(16, 1, 2, 2\).*embedder\.proj\.weight"):
        import_weights(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_the_class_that_the_config_names_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A classifier's import names BertForSequenceClassification, on the screen and in import.json."""
    sizes = {"hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=150, max_position_embeddings=12, num_labels=3, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), f"out={tmp_path / 'ours'}"]) == 0
    assert f"from transformers {CLASSIFIER}\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "ours" / "import.json").read_text())["architecture"] == CLASSIFIER


def test_every_key_has_a_bound() -> None:
    """Planted: a bound that is never applied would let this through."""
    for key, kind in KINDS.items():
        assert whole_number("x", key, 1) == 1
        with pytest.raises(UserError, match=f"x: {key}="):
            whole_number("x", key, LARGEST[kind] + 1)
    stored = Stored.of({"a": (3, 5), "b": ()})
    assert stored == Stored(2, 5)
    assert whole_number("x", "n_embd", 5, stored=stored) == 5
    with pytest.raises(UserError, match="largest dimension is 5"):
        whole_number("x", "n_embd", 6, stored=stored)
