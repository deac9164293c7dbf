"""Every preset that a class of transformers is like: the same predictions as imported, and as exported again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch.testing import assert_close
from transformers.models.whisper.modeling_whisper import sinusoids

from blockyard.contracts import Inputs
from blockyard.runs.load import load
from blockyard.weights.convert import matching
from blockyard.weights.convert.converter import converters
from blockyard.weights.convert.importing import import_weights
from blockyard.weights.exporting import export_weights
from tests.support.helpers import stir
from tests.support.library_models import CASES
from tests.support.tolerances import FLOAT32_STEPS, FLOAT64, double, float32

# What their classes compute in float64 from the first step to the last; the others cast norms or angles to float32.
WHOLLY_DOUBLE = {"gpt2", "imagegpt", "patchtst"}
# Classes with a recurrence in float32: how many sums follow each other, each over 6 tokens. A delta rule solves a
# triangular system of as many rows, in each of three layers.
RECURRENCES = {"qwen3_next": 18}


def closeness(case: str, expected: torch.Tensor) -> dict[str, float]:
    """How close the predictions of a case have to be."""
    if case in WHOLLY_DOUBLE:
        return FLOAT64
    sums = next((count for name, count in RECURRENCES.items() if case.startswith(name)), None)
    return FLOAT32_STEPS if sums is None else float32(terms=6, layers=sums, size=expected.abs().max().item())


def saved(case: str, folder: Path) -> torch.nn.Module:
    """The library's model, written by the library."""
    spec = CASES[case]
    torch.manual_seed(0)
    model = getattr(transformers, spec.name)(spec.config())
    state = stir(model).eval().state_dict()
    state |= {name: make(state[name]) for name, make in FIXED.items() if name in state}
    model.load_state_dict(state)
    model.save_pretrained(folder)
    return model


def eager(model: torch.nn.Module) -> torch.nn.Module:
    """The model with experts that compute one after the other: torch's grouped product takes no float64."""
    model.config._experts_implementation = "eager"
    return model


# What ours has not, or computes.
FIXED = {
    "model.encoder.embed_positions.weight": lambda x: sinusoids(*x.shape),
    "fnet.embeddings.projection.weight": lambda x: torch.eye(len(x)),
    "fnet.embeddings.projection.bias": torch.zeros_like,
}


def of_converters() -> list[Any]:
    """All cases; a further one of a converter is left to the full suite."""
    names = [name for name, each in converters().items() if each.library == "transformers"]
    seen, cases = set(), []
    for case in CASES:
        own = next(name for name in sorted(names, reverse=True) if case.startswith(name))
        cases.append(pytest.param(case, marks=pytest.mark.full) if own in seen else case)
        seen.add(own)
    return cases


@torch.no_grad()
@pytest.mark.parametrize("case", of_converters())
@pytest.mark.sampled(3)
def test_both_ways(case: str, tmp_path: Path) -> None:
    theirs = saved(case, tmp_path / "theirs")
    spec, inputs = CASES[case], double(CASES[case].inputs())
    expected = spec.call(eager(theirs.double()), inputs)
    close = closeness(case, expected)
    imported = import_weights(tmp_path / "theirs", tmp_path / "ours", overrides=spec.overrides)
    assert imported.loads
    assert imported.missing == []
    loaded = load(imported.folder)
    assert_close(loaded.model.double()(Inputs(**inputs)), expected, **close)
    # Other weights than those that were imported, as after training.
    stir(loaded.model.float())
    export_weights(loaded, tmp_path / "back", kind="hf")
    ours = loaded.model.double()(Inputs(**inputs))
    again, report = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert_close(spec.call(eager(again.double().eval()), inputs), ours, **close)
    with pytest.raises(AssertionError):  # the comparison depends on the weights
        assert_close(spec.call(again, inputs), expected, **close)


@torch.no_grad()
@pytest.mark.parametrize(
    ("case", "key", "value"),
    [
        ("gpt_oss", "swiglu_limit", 7.0),
        ("deepseek_v3", "topk_group", 4),
        ("deepseek_v3", "rope_interleave", False),
        ("qwen3_next", "rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}),
        ("falcon_h1", "key_multiplier", 1.0),
        ("falcon_h1", "ssm_multipliers", [1.0] * 5),
    ],
)
def test_a_setting_read_as_another_is_seen(case: str, key: str, value: object, tmp_path: Path) -> None:
    """Planted: a config that says something else than the library's model has."""
    theirs, spec = saved(case, tmp_path / "theirs"), CASES[case]
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    assert config[key] != value
    path.write_text(json.dumps(config | {key: value}))
    inputs = double(spec.inputs())
    expected = spec.call(eager(theirs.double()), inputs)
    imported = import_weights(tmp_path / "theirs", tmp_path / "ours", overrides=spec.overrides)
    ours = load(imported.folder).model.double()(Inputs(**inputs))
    with pytest.raises(AssertionError):
        assert_close(ours, expected, **closeness(case, expected))


def test_every_converter_of_transformers_is_compared() -> None:
    whole = {name for name, each in converters().items() if each.library == "transformers" and not each.partly}
    assert whole == {next(each for each in sorted(whole, reverse=True) if name.startswith(each)) for name in CASES}


def test_a_folder_with_a_tokenizer_is_a_run_at_once(tmp_path: Path) -> None:
    """Its tokenizer.json goes into the run, which needs the folder no more, and comes back with an export."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = saved("gpt2", tmp_path / "theirs")
    tokenizer = Tokenizer(models.BPE({"d": 0, "e": 1, "f": 2, "de": 3, "[MASK]": 4}, [("d", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    imported = import_weights(tmp_path / "theirs", tmp_path / "ours")
    assert imported.loads
    shutil.rmtree(tmp_path / "theirs")
    loaded = load(imported.folder)
    assert loaded.tokenizer.encode("def") == [3, 2]
    assert loaded.config["tokenizer"]["mask_id"] == 4
    assert loaded.config["tokenizer"]["vocab_size"] == 256
    inputs = torch.tensor([loaded.tokenizer.encode("def fed")])
    assert_close(loaded.model.double()(inputs), model.double()(inputs).logits, **FLOAT64)
    export_weights(loaded, tmp_path / "back", kind="hf")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert again("def fed")["input_ids"] == loaded.tokenizer.encode("def fed")


def test_layers_of_several_hidden_widths_are_like_no_class() -> None:
    """The config of a class has one width, by which its weights would not fit."""
    names = [f"blocks.{layer}.channel_mixer.proj_out.weight" for layer in range(3)]
    for widths, problems in (((64, 64, 64), 0), ((64, 128, 64), 1)):
        weights = {name: torch.empty(16, width) for name, width in zip(names, widths, strict=True)}
        run: Any = SimpleNamespace(weights=weights, shape=lambda name, own=weights: tuple(own[name].shape))
        assert len(list(matching._widths(run))) == problems
