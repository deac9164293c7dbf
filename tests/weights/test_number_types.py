"""Weights that are not floating point are refused by name and type; floats of 8 bits are converted exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockyard.cli import main
from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.errors import UserError
from blockyard.runs.checkpoint import BadCheckpointError, check_weights
from blockyard.weights.convert.importing import import_weights
from tests.support.library_models import CASES
from tests.support.tiny import SHORTEST

NAME = "blocks.0.token_mixer.proj_in.weight"
REFUSED = (torch.int8, torch.uint8, torch.bool, torch.int64, torch.complex64)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """The initial weights of a tiny model."""
    model = Components(compose([*SHORTEST]).config).model(0)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def written(path: Path, weights: dict[str, torch.Tensor], **changed: torch.Tensor) -> Path:
    save_file({name: value.contiguous() for name, value in (weights | changed).items()}, path)
    return path


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
@pytest.mark.parametrize("strict", ["true", "false"])
def test_init_from_refuses_what_is_not_floating_point(
    dtype: torch.dtype, strict: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = written(tmp_path / "w.safetensors", weights, **{NAME: (weights[NAME] * 100).to(dtype)})
    (issue,) = check(compose([*SHORTEST, f"init.from={path}", f"init.strict={strict}"]))
    assert issue.key == "init.from"
    assert f"{NAME} is {str(dtype).removeprefix('torch.')}" in str(issue)


def test_the_command_ends_with_code_2(
    weights: dict[str, torch.Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every tensor as int8 is one message, which names the first of them."""
    path = tmp_path / "w.safetensors"
    save_file({name: (value * 100).to(torch.int8).contiguous() for name, value in weights.items()}, path)
    assert main(["check", *SHORTEST, f"init.from={path}"]) == 2
    assert "is int8" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_eight_bits_are_converted_exactly(dtype: torch.dtype, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    small = weights[NAME].to(dtype)
    path = written(tmp_path / "w.safetensors", weights, **{NAME: small})
    composed = compose([*SHORTEST, f"init.from={path}"])
    assert not check(composed)
    components = Components(composed.config)
    model = components.model(0)
    components.node("init").load(components, model)
    assert torch.equal(model.state_dict()[NAME], small.float())
    assert model.state_dict()[NAME].dtype == torch.float32


@pytest.mark.parametrize("scale", [f"{NAME}_scale", f"{NAME}_scale_inv", NAME.replace("weight", "scale")])
def test_eight_bits_with_scales_are_refused(scale: str, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    changed = {NAME: weights[NAME].to(torch.float8_e4m3fn), scale: torch.ones(1)}
    path = written(tmp_path / "w.safetensors", weights, **changed)
    (issue,) = check(compose([*SHORTEST, f"init.from={path}", "init.strict=false"]))
    assert scale in str(issue)


def test_eight_bits_that_are_not_finite_are_refused(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    spoilt = weights[NAME].clone()
    spoilt[0, 0] = float("nan")
    path = written(tmp_path / "w.safetensors", weights, **{NAME: spoilt.to(torch.float8_e5m2)})
    components = Components(compose([*SHORTEST, f"init.from={path}"]).config)
    with pytest.raises(UserError, match=f"{NAME} holds values that are not finite"):
        components.node("init").load(components, components.model(0))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2, as transformers writes it."""
    import transformers

    folder = tmp_path_factory.mktemp("gpt2")
    transformers.GPT2LMHeadModel(CASES["gpt2"].config()).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", [*REFUSED, torch.float8_e4m3fn], ids=str)
def test_an_import_refuses_or_converts_them(dtype: torch.dtype, gpt2: Path, tmp_path: Path) -> None:
    """`blockyard import` refuses the types that init.from refuses, and converts floats of 8 bits."""
    name, ours = "transformer.h.0.mlp.c_fc.weight", "blocks.0.channel_mixer.proj_in.weight"
    tensors = load_file(gpt2 / "model.safetensors")
    tensors[name] = tensors[name].to(dtype)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text(json.dumps(json.loads((gpt2 / "config.json").read_text())))
    save_file(tensors, theirs / "model.safetensors", metadata={"format": "pt"})
    if dtype in REFUSED:
        with pytest.raises(UserError, match=f"{name} is {str(dtype).removeprefix('torch.')}"):
            import_weights(theirs, tmp_path / "ours")
        assert not (tmp_path / "ours").exists()
        return
    import_weights(theirs, tmp_path / "ours")
    assert torch.equal(load_file(tmp_path / "ours" / "model.safetensors")[ours], tensors[name].float().T)


@pytest.mark.parametrize("dtype", [*REFUSED, *EIGHT_BITS], ids=str)
def test_a_run_refuses_weights_of_another_type(dtype: torch.dtype, weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(BadCheckpointError, match=f"another type of {NAME}"):
        check_weights(Path("x"), weights | {NAME: weights[NAME].to(dtype)}, weights, [])
