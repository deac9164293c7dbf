"""`format=peft`: peft's model of an exported adapter predicts as the run does, for every class of transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from blockyard.contracts import Inputs
from blockyard.errors import UserError
from blockyard.runs.load import Loaded, load
from blockyard.weights.convert.exporting import export_weights
from blockyard.weights.convert.importing import import_weights
from blockyard.weights.init import Init
from blockyard.weights.lora import Lora, added_parameters
from tests.support.library_checkpoints import again, closeness, eager, saved
from tests.support.library_models import CASES
from tests.support.tolerances import FLOAT64, double
from tests.support.untrained import untrained

LORA = Lora(rank=3, alpha=5.0)


def adapted(case: str, folder: Path, lora: Lora = LORA) -> Loaded:
    """An import with additions, as after a training: what is trained has other values than the source."""
    saved(case, folder / "base")
    loaded = load(import_weights(folder / "base", folder / "run", overrides=CASES[case].overrides).folder)
    Init(from_=f"hf:{folder / 'base'}", lora=lora).adapt(loaded.model, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return replace(loaded, config={**loaded.config, "init": {"from": f"hf:{folder / 'base'}"}})


# The message of a case with additions in all layers, and the layers with which it is written.
REFUSED = {
    "qwen3_moe_dense": (r"layers\.0\.mlp\.gate_proj\.weight of the library stands beside experts", "token_mixer"),
    "gpt_oss": (r"experts\.gate_up_proj of the library is not a linear layer", "token_mixer"),
    "deepseek_v3": (r"mlp\.gate_proj\.weight of the library stands beside experts", "token_mixer"),
    "deepseek_v3_yarn": (r"shared_experts\.\w+_proj\.weight of the library", "token_mixer"),
    "qwen3_next": (r"shared_expert\.\w+_proj\.weight of the library", "token_mixer"),
    "qwen3_next_dense": (r"shared_expert\.\w+_proj\.weight of the library", "token_mixer"),
    "falcon_h1": (r"mamba\.out_proj\.weight of the library is a layer that peft does not adapt", "channel_mixer"),
    "falcon_h1_tied": (r"mamba\.out_proj\.weight of the library is a layer", "channel_mixer"),
    "mamba2": (r"mixer\.out_proj\.weight of the library is a layer that peft does not adapt", "proj_in"),
    "mamba2_biases": (r"mixer\.out_proj\.weight of the library is a layer", "proj_in"),
}


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(5)
def test_peft_predicts_as_the_run(case: str, tmp_path: Path) -> None:
    layers = REFUSED[case][1] if case in REFUSED else "blocks"
    loaded = adapted(case, tmp_path, Lora(rank=3, alpha=5.0, layers=(layers,)))
    spec, inputs = CASES[case], double(CASES[case].inputs())
    export_weights(loaded, tmp_path / "adapter", kind="peft")
    ours = loaded.model.double()(Inputs(**inputs))
    base = again(case, tmp_path / "base")
    before = spec.call(eager(base.double()), inputs)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").double().eval()
    theirs = spec.call(model.base_model.model, inputs)
    assert_close(theirs, ours, **closeness(case, ours))
    with pytest.raises(AssertionError):  # the additions matter
        assert_close(before, ours, **closeness(case, ours))


@torch.no_grad()
def test_an_adapter_with_another_scale_is_seen(tmp_path: Path) -> None:
    """Planted: the factor B' times the scale, which peft multiplies by again."""
    loaded = adapted("llama", tmp_path)
    export_weights(loaded, tmp_path / "adapter", kind="peft")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    scaled = {name: x * (5 / 3) if ".lora_B." in name else x for name, x in load_file(path).items()}
    save_file(scaled, path)
    spec, inputs = CASES["llama"], CASES["llama"].inputs()
    model = peft.PeftModel.from_pretrained(again("llama", tmp_path / "base"), tmp_path / "adapter").eval()
    with pytest.raises(AssertionError):
        assert_close(spec.call(model.base_model.model, inputs), loaded.model(Inputs(**inputs)))


@torch.no_grad()
def test_a_run_that_starts_from_a_run_has_its_export_as_base(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", "preset=gpt2", "data=code", "data.context=6", "tokenizer=byte", "model.depth=1")
    export_weights(load(run), tmp_path / "base", kind="hf")
    loaded = load(run)
    Init(from_=str(run), lora=LORA).adapt(loaded.model, 0)
    for addition in added_parameters(loaded.model):
        addition.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    loaded = replace(loaded, config={**loaded.config, "init": {"from": str(run)}})
    exported = export_weights(loaded, tmp_path / "adapter", kind="peft")
    assert f"run={run} to=BASE format=hf" in exported.lines[1]
    model = peft.PeftModel.from_pretrained(
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    inputs = CASES["gpt2"].inputs()["inputs"]
    assert_close(model.double().eval()(input_ids=inputs).logits, loaded.model.double()(inputs), **FLOAT64)


def test_a_run_without_additions_is_refused(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", "preset=gpt2", "data=code", "data.context=6", "tokenizer=byte", "model.depth=1")
    with pytest.raises(UserError, match=r"writes what init\.lora\.rank adds"):
        export_weights(load(run), tmp_path / "adapter", kind="peft")


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.sampled(4)
def test_layers_that_peft_cannot_hold_are_refused(case: str, tmp_path: Path) -> None:
    loaded = adapted(case, tmp_path)
    with pytest.raises(UserError, match=REFUSED[case][0]):
        export_weights(loaded, tmp_path / "adapter", kind="peft")
    assert not (tmp_path / "adapter").exists()
