"""Configs of transformers say the same to us as to the library: other values, absent keys, released files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch.testing import assert_close

from blockyard.errors import UserError
from blockyard.runs.load import load
from blockyard.weights.convert.converter import Foreign, converters
from blockyard.weights.convert.exporting import export_weights
from blockyard.weights.convert.importing import import_weights
from blockyard.weights.convert.settings import LibrarySettings
from tests.support.library_checkpoints import again, closeness, imported, predicted, preset_of, saved
from tests.support.library_models import CASES, LLAMA

# The key of the norms' epsilon in a config, and the cases in which a norm of ours has an epsilon of its own.
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
WITHOUT_OPTION = {"olmo2", "wav2vec2", *(name for name in CASES if name.startswith(("qwen3", "gemma3")))}
# Keys that weights show too: where the library has another default, its weights have other shapes, and are refused.
SHOWN_BY_WEIGHTS = {"head_dim", "num_key_value_heads"}


def understood(preset: str, config: dict[str, Any]) -> Foreign:
    """What a config says in our terms. Raises UserError for one that the preset cannot express."""
    settings = LibrarySettings(config, "config.json")
    foreign = converters()[preset].read(settings)
    settings.finish(preset)
    return foreign


def whole(config: Any) -> dict[str, Any]:
    """A config with every key of its class."""
    result: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return result


def with_settings(case: str, **settings: Any) -> Any:
    """The config of a case with other settings."""
    config = CASES[case].config()
    for key, value in settings.items():
        assert getattr(config, key) != value
        setattr(config, key, value)
    return config


@pytest.mark.parametrize("case", [case for case in CASES if case != "whisper"])  # which has no such key
@pytest.mark.sampled(5)
def test_another_epsilon(case: str, tmp_path: Path) -> None:
    """It reaches every norm of ours, in both directions, or is refused."""
    config = CASES[case].config()
    key = next((each for each in EPSILONS if hasattr(config, each)), None)
    if key is None:
        return
    expected = predicted(case, saved(case, tmp_path / "theirs", with_settings(case, **{key: 1e-2})))
    if case in WITHOUT_OPTION:
        with pytest.raises(UserError, match=f"{key}=0.01: expected 1e-0[56]"):
            import_weights(tmp_path / "theirs", tmp_path / "ours")
        return
    assert_close(imported(case, tmp_path / "theirs", tmp_path / "ours"), expected, **closeness(case, expected))
    export_weights(load(tmp_path / "ours"), tmp_path / "back", kind="hf")
    assert_close(predicted(case, again(case, tmp_path / "back")), expected, **closeness(case, expected))
    usual = predicted(case, saved(case, tmp_path / "usual"))
    with pytest.raises(AssertionError):  # the predictions depend on it
        assert_close(usual, expected, **closeness(case, expected))


@pytest.mark.parametrize("case", ["bert", "fnet"])
def test_the_hidden_layer_of_a_head_has_the_activation_of_the_blocks(case: str, tmp_path: Path) -> None:
    expected = predicted(case, saved(case, tmp_path / "theirs", with_settings(case, hidden_act="relu")))
    assert_close(imported(case, tmp_path / "theirs", tmp_path / "ours"), expected, **closeness(case, expected))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(3)
def test_an_absent_key_means_the_default_of_the_class(case: str) -> None:
    """Either it is refused, or reads as what the library completes."""
    preset, config = preset_of(case), CASES[case].config()
    complete, compared = whole(config), 0
    complete.pop("time_step_limit", None)  # infinity, which the library does not read back from JSON as a dictionary
    for key in complete.keys() - SHOWN_BY_WEIGHTS:
        less = {name: value for name, value in complete.items() if name != key}
        try:
            ours = understood(preset, less)
            completed = whole(type(config).from_dict(dict(less)))
        except (UserError, StrictDataclassError):
            continue  # either of both needs it
        try:
            theirs = understood(preset, completed)
        except UserError as error:
            pytest.fail(f"{key}: the library completes what we refuse ({error})")
        assert (key, ours.overrides, ours.outputs) == (key, theirs.overrides, theirs.outputs)
        assert [rule.library_names for rule in ours.rules] == [rule.library_names for rule in theirs.rules]
        compared += 1
    assert compared > 10


@pytest.mark.parametrize(
    ("case", "absent"),
    [
        ("smollm3", "rope_parameters"),
        ("mixtral", "rope_parameters"),
        ("palm", "rope_parameters"),
        ("gpt_oss", "rope_parameters"),
        ("gemma2", "hidden_activation"),
        ("modernbert", "hidden_activation"),
    ],
)
@pytest.mark.sampled(3)
def test_an_absent_key_predicts_as_in_the_library(case: str, absent: str, tmp_path: Path) -> None:
    saved(case, tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    del config[absent]
    path.write_text(json.dumps(config))
    expected = predicted(case, again(case, tmp_path / "theirs"))
    assert_close(imported(case, tmp_path / "theirs", tmp_path / "ours"), expected, **closeness(case, expected))


@pytest.mark.parametrize("key", ["pre_norm", "pooling_type"])
def test_what_has_another_default_and_no_counterpart_must_be_there(key: str) -> None:
    config = whole(CASES["patchtst"].config())
    del config[key]
    with pytest.raises(UserError, match=f"has no {key}"):
        understood("patchtst", config)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 70.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 30.0},
    ],
)
def test_scaling_under_the_older_key_wins(settings: dict[str, Any], tmp_path: Path) -> None:
    saved("qwen3", tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    expected = predicted("qwen3", again("qwen3", tmp_path / "theirs"))
    assert_close(imported("qwen3", tmp_path / "theirs", tmp_path / "ours"), expected, **closeness("qwen3", expected))


def test_windows_of_smollm3_are_in_layers_without_positions(tmp_path: Path) -> None:
    """Where its config names no layer."""
    config = transformers.SmolLM3Config(
        **LLAMA | {"num_hidden_layers": 4}, use_sliding_window=True, sliding_window=2, no_rope_layers=[1, 1, 1, 0]
    )
    saved("smollm3", tmp_path / "theirs", config)
    path = tmp_path / "theirs" / "config.json"
    declared = json.loads(path.read_text())
    assert declared.pop("layer_types") == ["full_attention"] * 3 + ["sliding_attention"]
    path.write_text(json.dumps(declared))
    expected = predicted("smollm3", again("smollm3", tmp_path / "theirs"))
    assert_close(
        imported("smollm3", tmp_path / "theirs", tmp_path / "ours"), expected, **closeness("smollm3", expected)
    )


# What the configs of released models hold besides the sizes, and the classes do not read, or read as we do.
RELEASED = {
    "qwen3_moe": {"max_window_layers": 48, "sliding_window": None, "use_sliding_window": False, "rope_scaling": None},
    "smollm3": {"max_window_layers": 28, "pretraining_tp": 2, "rope_scaling": None, "rope_theta": 5e6},
    "falcon_h1": {"attn_layer_indices": None, "mamba_use_mlp": True, "mlp_expansion_factor": 8, "mamba_expand": 2},
    "gpt_oss": {"experts_per_token": 3, "initial_context_length": 4096, "output_router_logits": False},
    "gemma2": {"cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh"},
    "gemma3": {"cache_implementation": "hybrid", "sliding_window_pattern": 6, "rope_scaling": None},
    "modernbert": {"layer_norm_eps": 1e-5, "norm_eps": 1e-5, "position_embedding_type": "absolute"},
}


@pytest.mark.parametrize("case", RELEASED)
def test_keys_of_released_configs(case: str) -> None:
    config = json.loads(CASES[case].config().to_json_string())
    understood(preset_of(case), config | RELEASED[case])
    with pytest.raises(UserError, match="another_key=1: unknown"):
        understood(preset_of(case), config | RELEASED[case] | {"another_key": 1})


@pytest.mark.parametrize(
    ("key", "option"), [("attn_logit_softcapping", "token_mixer.softcap"), ("final_logit_softcapping", "head.softcap")]
)
def test_a_soft_cap_of_null_is_read(key: str, option: str) -> None:
    config = whole(CASES["gemma2"].config())
    assert f"{option}=null" not in understood("gemma2", config).overrides
    assert f"{option}=null" in understood("gemma2", config | {key: None}).overrides


def test_the_pattern_of_windows_is_read_under_the_key_that_the_library_reads() -> None:
    config = whole(CASES["gemma3"].config())
    del config["layer_types"]
    theirs = transformers.Gemma3TextConfig.from_dict(config | {"sliding_window_pattern": 2}).layer_types
    kinds = next(
        each for each in understood("gemma3", config | {"sliding_window_pattern": 2}).overrides if "pattern" in each
    )
    assert theirs == ["sliding_attention", "full_attention"] * 2
    assert kinds == "layers.pattern=[near,base]"
