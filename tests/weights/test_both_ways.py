"""Every preset that a class of transformers is like: the same predictions as imported, and as exported again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.testing import assert_close

from blockyard.contracts import Inputs
from blockyard.runs.load import load
from blockyard.weights.convert.converter import converters
from blockyard.weights.convert.exporting import export_weights
from blockyard.weights.convert.importing import import_weights
from tests.support.helpers import stir
from tests.support.library_checkpoints import again, closeness, eager, preset_of, saved
from tests.support.library_models import CASES
from tests.support.tolerances import FLOAT64, double


def of_converters() -> list[Any]:
    """All cases; a further one of a converter is left to the full suite."""
    seen, cases = set(), []
    for case in CASES:
        own = preset_of(case)
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
    back = again(case, tmp_path / "back").double()
    assert_close(spec.call(eager(back), inputs), ours, **close)
    with pytest.raises(AssertionError):  # the comparison depends on the weights
        assert_close(spec.call(back, inputs), expected, **close)


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
