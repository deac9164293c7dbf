"""What an import refuses: settings without a counterpart, by name, and files that are missing, damaged or unsafe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from blockyard.errors import UserError
from blockyard.weights.convert.importing import import_weights
from tests.support.every import every
from tests.support.library_models import CASES, CODE

NAMES = "deepseek_v3 falcon_h1 gpt2 gpt_oss llama mixtral qwen3 qwen3_moe qwen3_next smollm3 t5 patchtst wav2vec2"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a few models as transformers writes them."""
    folders = {}
    for name in NAMES.split():
        folders[name] = tmp_path_factory.mktemp(name)
        getattr(transformers, CASES[name].name)(CASES[name].config()).save_pretrained(folders[name])
    return folders


def copied(source: Path, to: Path, **settings: Any) -> Path:
    """The same folder with other settings in its config."""
    to.mkdir()
    config = json.loads((source / "config.json").read_text()) | settings
    (to / "config.json").write_text(json.dumps(config))
    (to / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    return to


YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 500.0, "original_max_position_embeddings": 4}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx='?True"),
        ("gpt2", {"activation_function": "mish"}, "activation_function='mish'"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention='?True"),
        ("gpt2", {"a_new_feature": 3}, "a_new_feature='?3'?: unknown"),
        ("gpt2", {"n_layer": 0}, "n_layer='?0'? is not a whole number"),
        ("gpt2", {"n_layer": 3}, r"the weights have no transformer\.h\.2"),
        ("gpt2", {"n_layer": 1}, r"the weights hold transformer\.h\.1"),
        ("gpt2", {"n_positions": 7}, "position.table .*expected"),
        ("gpt2", {"n_head": 5}, "does not divide"),
        ("gpt2", {"model_type": "gpt_neo"}, "model_type='gpt_neo' has no converter"),
        ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2DoubleHeadsModel"),
        ("llama", {"sliding_window": 128}, "sliding_window='?128"),
        ("llama", {"rope_parameters": LINEAR | {"rope_type": "dynamic"}}, "rope_type='dynamic'"),
        ("llama", {"rope_parameters": LINEAR | {"rope_type": "llama3"}}, "original_max_position_embeddings"),
        ("llama", {"rope_parameters": YARN | {"truncate": 1}}, "truncate=1 is not true or false"),
        ("llama", {"rope_parameters": YARN | {"beta_fast": 16}}, "beta_fast='?16"),
        ("llama", {"rope_parameters": LINEAR | {"beta_fast": 32}}, "beta_fast"),
        ("llama", {"rope_parameters": LINEAR | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("llama", {"hidden_act": "relu6"}, "hidden_act"),
        ("llama", {"intermediate_size": 41}, "intermediate_size=41: expected a multiple of 8"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types=.*each of the 2 layers"),
        ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types=.*sliding_attention"),
        ("qwen3_next", {"shared_expert_intermediate_size": 12}, "expected a multiple of 8, that of an expert"),
        ("qwen3_next", {"linear_num_key_heads": 3}, "linear_num_key_heads=3 does not divide 4"),
        ("qwen3_next", {"layer_types": ["sliding_attention"] * 4}, "layer_types=.*linear_attention or full_attention"),
        ("qwen3_next", {"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05: expected 1e-06"),
        ("smollm3", {"no_rope_layers": [1, 2, 1, 0, 1]}, "no_rope_layers=.*expected 0 or 1"),
        ("mixtral", {"sliding_window": 128}, "sliding_window=128"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1"),
        ("deepseek_v3", {"quantization_config": {"quant_method": "fp8"}}, "weights of fewer bits are not read"),
        ("deepseek_v3", {"first_k_dense_replace": 2}, "no layer of 2 has experts"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method='greedy'"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias='?True"),
        ("falcon_h1", {"attention_bias": True}, "attention_bias='?True"),
        ("falcon_h1", {"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers=.* is not a list of 5 numbers"),
        ("falcon_h1", {"key_multiplier": 0.0}, "a multiplier is 0"),
        ("falcon_h1", {"mamba_d_head": 5}, r"mamba_d_head: expected 24 / 3"),
        ("gpt_oss", {"swiglu_alpha": 1.0}, "swiglu_alpha=1.0: expected 1.702"),
        ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}, "weights of four bits are not read"),
        ("qwen3_moe", {"mlp_only_layers": [2]}, "mlp_only_layers=.*numbers of the 2 layers"),
        ("qwen3_moe", {"moe_intermediate_size": 12}, "moe_intermediate_size=12: expected a multiple of 8"),
        ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj"),
        ("wav2vec2", {"vocab_size": 200}, r"lm_head\.weight \(257, 16\), which head\.proj\.weight cannot be made of"),
        ("patchtst", {"pre_norm": True}, "pre_norm"),
        ("patchtst", {"channel_attention": True}, "channel_attention"),
        ("patchtst", {"loss": "nll"}, "loss='nll'"),
    ],
)
def test_settings(model: str, settings: dict[str, Any], reason: str, models: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(models[model], tmp_path / "theirs", **settings)
    with pytest.raises(UserError, match=reason):
        import_weights(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
    assert not list(tmp_path.glob(".tmp-*"))


def pickled(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def extra(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"transformer.h.0.adapter.weight": torch.zeros(3)}, path)


def outside(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../one.safetensors"}}')


def named_in_index(folder: Path, *names: str) -> None:
    """An index over files of these names; the file of weights has another one."""
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = {"weight_map": {str(number): name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def empty_index(folder: Path) -> None:
    named_in_index(folder)


def long_name(folder: Path) -> None:
    named_in_index(folder, "x" * 300)


def twice(folder: Path) -> None:
    named_in_index(folder, "one.safetensors", "two.safetensors")
    table = load_file(folder / "one.safetensors")["transformer.wte.weight"]
    save_file({"transformer.wte.weight": torch.zeros_like(table)}, folder / "two.safetensors")


def averaged(folder: Path) -> None:
    """The same model twice, as training saves it beside its average."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    average = {f"ema.{name}": torch.full_like(value, 0.5) for name, value in weights.items()}
    save_file({f"model.{name}": value for name, value in weights.items()} | average, path)


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def bad_config(folder: Path) -> None:
    (folder / "config.json").write_text("[1, 2")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (pickled, r"pytorch_model\.bin may hold code"),
        (truncated, "damaged"),
        (extra, r"transformer\.h\.0\.adapter\.weight"),
        (outside, "names '../one.safetensors', which is not a file of its folder"),
        (empty_index, "names no files"),
        (long_name, "is damaged .*File name too long"),
        (twice, "transformer.wte.weight is in two of its files"),
        (averaged, r"the weights have no transformer\.h\.0"),
        (no_config, "timm=NAME"),
        (bad_config, "cannot be read"),
    ],
)
def test_damaged_folders_are_refused_and_leave_nothing(
    damage: Callable[[Path], None], reason: str, models: dict[str, Path], tmp_path: Path
) -> None:
    folder = copied(models["gpt2"], tmp_path / "theirs")
    damage(folder)
    with pytest.raises(UserError, match=reason):
        import_weights(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_sharded_weights_equal_one_file(models: dict[str, Path], tmp_path: Path) -> None:
    """Weights in several files are those of one."""
    folder = copied(models["gpt2"], tmp_path / "theirs")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: weights[name] for name in own}, folder / file)
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    import_weights(folder, tmp_path / "ours")
    import_weights(models["gpt2"], tmp_path / "whole")
    ours, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "whole"))
    assert every(torch.equal(ours[name], whole[name]) for name in {**ours, **whole})


def test_names_of_the_model_inside(models: dict[str, Path], tmp_path: Path) -> None:
    """Files of GPT2Model, as the hub has them, name their weights without `transformer.` and hold causal masks."""
    folder = copied(models["gpt2"], tmp_path / "theirs")
    path = folder / "model.safetensors"
    weights = {name.removeprefix("transformer."): value for name, value in load_file(path).items()}
    save_file(weights | {"h.0.attn.bias": torch.zeros(1, 1, 6, 6)}, path)
    imported = import_weights(folder, tmp_path / "ours", overrides=CODE)
    assert imported.loads
    assert imported.unread == ["transformer.h.0.attn.bias"]


def test_other_mistakes(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    with pytest.raises(UserError, match="it exists"):
        import_weights(models["gpt2"], tmp_path / "full")
    assert (tmp_path / "full" / "mine").read_text() == "kept"
    with pytest.raises(UserError, match=r"no converter.*did you mean"):
        import_weights(models["gpt2"], tmp_path / "ours", preset="gpt")
    with pytest.raises(UserError, match="no file or folder"):
        import_weights(tmp_path / "nothing", tmp_path / "ours")
    with pytest.raises(UserError, match=r"256 token ids.* give 102[46]"):
        import_weights(models["gpt2"], tmp_path / "ours", overrides=["data=code", "data.context=6"])
    with pytest.raises(UserError, match=r"data\.contxt"):
        import_weights(models["gpt2"], tmp_path / "ours", overrides=[*CODE, "data.contxt=6"])
