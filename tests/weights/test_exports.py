"""Which runs are written as a model of a library: every preset as it is, and none that the library cannot load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from blockyard.cli import main
from blockyard.contracts import Inputs
from blockyard.errors import UserError
from blockyard.runs.load import load
from blockyard.weights.convert.converter import converters
from blockyard.weights.convert.exporting import export_weights
from tests.support.helpers import stir
from tests.support.library_checkpoints import again
from tests.support.untrained import untrained

SMALL = ("model.dim=32", "model.depth=4", "model.heads=2", "data.context=16", "tokenizer=byte")
CODE = ("data=code", *SMALL)
IMAGES = ("data=digits", "model.depth=2", "tokenizer.size=2")
TIMES = ("data=dial_tones", "tokenizer=byte", "model.depth=1")
# Of each preset that is exported: data and sizes. What docs/exchange.md says that an export needs is after the dash.
RUNS = {
    **dict.fromkeys(("gpt2", "llama", "mistral", "qwen3", "smollm3", "mixtral", "qwen3_moe"), CODE),
    **dict.fromkeys(("deepseek_v3", "gpt_oss", "qwen3_next", "olmo2", "mamba2", "falcon_h1", "palm", "bert"), CODE),
    **dict.fromkeys(("modernbert", "fnet"), CODE),
    **dict.fromkeys(("gemma2", "gemma3"), (*CODE, "model.depth=6", "tokenizer.scale=sqrt_dim")),
    "imagegpt": ("data=digits", "model.depth=2"),
    "t5": ("data=translation", "tokenizer=byte", "model.depth=2"),
    "whisper": (*TIMES, "source_position.base=13459.603241553643", "source_position.scale=1"),
    "wav2vec2": (*TIMES, "source_tokenizer.kernels=[10,3]", "source_tokenizer.strides=[5,2]"),
    "patchtst": ("data=co2", "model.depth=1", "tokenizer.pad_end=false"),
    "vit": IMAGES,
    "dinov2": IMAGES,
}
FIXED_BY_NAMES = {"mixer", "gmlp"}  # whose sizes timm's names fix


def written(folder: Path, *overrides: str, kind: str = "hf") -> Path:
    """The export of a run that was never trained."""
    export_weights(load(untrained(folder / "run", *overrides)), folder / "out", kind=kind)
    return folder / "out"


@pytest.mark.parametrize("preset", RUNS)
@pytest.mark.sampled(4)
def test_every_preset_is_exported_as_it_is(preset: str, tmp_path: Path) -> None:
    kind = {"transformers": "hf", "timm": "timm"}[converters()[preset].library]
    folder = written(tmp_path, f"preset={preset}", *RUNS[preset], kind=kind)
    if kind == "hf":
        again(preset, folder)


def test_no_preset_is_left_out() -> None:
    assert RUNS.keys() | FIXED_BY_NAMES == {name for name, each in converters().items() if not each.partly}


@pytest.mark.parametrize("preset", ["fnet", "mamba2"])
def test_the_number_of_heads_does_not_matter_without_heads(preset: str, tmp_path: Path) -> None:
    again(preset, written(tmp_path, f"preset={preset}", *CODE, "model.heads=8"))


DELTA = "token_mixer=delta_rule,position=none,token_mixer.num_heads=4,token_mixer.key_dim=16,token_mixer.value_dim=16"
EXPERTS = ("channel_mixer.count=4", "channel_mixer.active=2")
NEXT = ("preset=qwen3_next", *CODE, *EXPERTS)
SERIES = ("preset=patchtst", "data=digit_series", "objective=classify", "head=mean_pool")
REFUSED = {
    "another width of values in some layers": (
        ("preset=mamba2", *CODE, "layers.pattern=[base,b]", "layers.kinds.b=[token_mixer.value_dim=4]"),
        r"blocks\.1\.token_mixer\..* of shape .*expected",
    ),
    "other heads in some layers": (
        (*NEXT, "layers.pattern=[recurrent,r2,recurrent,base]", f"layers.kinds.r2=[{DELTA}]"),
        r"blocks\.1\.token_mixer\..* of shape .*expected",
    ),
    "another hidden width in some layers": (
        ("preset=gpt2", *CODE, "layers.pattern=[base,b]", "layers.kinds.b=[channel_mixer.expansion=2]"),
        r"blocks\.1\.channel_mixer\..* of shape .*expected",
    ),
    "another epsilon in the head": (("preset=bert", *CODE, "norm.eps=1e-2"), r"head\.hidden_eps=1e-12, expected 0\.01"),
    "an epsilon that the features have not": (
        ("preset=wav2vec2", *RUNS["wav2vec2"], "norm.eps=1e-2"),
        r"layer_norm_eps=0\.01: expected 1e-05",
    ),
    "learned scales of scores": (
        ("preset=gemma2", *CODE, "tokenizer.scale=sqrt_dim", "token_mixer.score_scale=learned"),
        r"token_mixer\.score_scale='learned'",
    ),
    "scales of scores by length": (
        ("preset=gemma2", *CODE, "tokenizer.scale=sqrt_dim", "token_mixer.score_scale=log_n"),
        r"token_mixer\.score_scale='log_n'",
    ),
    "layers without a channel mixer": (
        ("preset=qwen3_moe", *CODE, *EXPERTS, "layers.pattern=[none,base]", "layers.kinds.none=[channel_mixer=none]"),
        r"layer 0 has no channel mixer",
    ),
    "the same beside a delta rule": (
        (*NEXT, "layers.pattern=[none,recurrent,base,base]", "layers.kinds.none=[channel_mixer=none]"),
        r"layer 0 has no channel mixer",
    ),
    "classes of a series": (
        (*SERIES, "model.depth=1", "tokenizer.size=8", "tokenizer.stride=8"),
        "the data has no values to forecast",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_class_can_hold_is_refused(name: str, tmp_path: Path) -> None:
    overrides, reason = REFUSED[name]
    with pytest.raises(UserError, match=reason):
        written(tmp_path, *overrides)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("preset", "kind", "side"), [("vit", "timm", (8, 4)), ("vit", "timm", (4, 16)), ("imagegpt", "hf", (4, 9))]
)
def test_images_that_are_not_squares_are_refused(preset: str, kind: str, side: tuple[int, int], tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 255, (40, *side), dtype=np.uint8)
    np.savez(tmp_path / "pictures.npz", x=pictures, y=np.arange(40) % 2)
    size = ("tokenizer.size=2",) if preset == "vit" else ()
    data = ("data=arrays", f"data.path={tmp_path / 'pictures.npz'}", "model.dim=16", "model.depth=1", "model.heads=2")
    with pytest.raises(UserError, match=r"images of \(1, \d, \d+\), expected"):
        written(tmp_path, f"preset={preset}", *data, *size, kind=kind)


def test_the_blank_of_an_export_is_the_last_output(tmp_path: Path) -> None:
    """The library's loss of the exported model is that of ours."""
    loaded = load(untrained(tmp_path / "run", "preset=wav2vec2", *RUNS["wav2vec2"]))
    stir(loaded.model)
    export_weights(loaded, tmp_path / "out", kind="hf")
    model, sound = again("wav2vec2", tmp_path / "out"), torch.randn(1, 600, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[0, 5, 6]])
    mean, size = sound.mean(), sound.var(correction=0)
    standard = (sound - mean) / (size + 1e-7).sqrt()  # as the library's feature extractor does
    with torch.no_grad():
        ours = loaded.model(Inputs(sound)).log_softmax(-1).transpose(0, 1)  # (N, 1, V)
        theirs = model(standard, labels=labels).loss
    blank = loaded.components.objective.blank
    assert blank == model.config.pad_token_id == 256
    expected = F.ctc_loss(ours, labels, torch.tensor([len(ours)]), torch.tensor([3]), blank=blank, reduction="sum")
    torch.testing.assert_close(theirs, expected, rtol=1e-4, atol=1e-4)


def test_a_refusal_ends_with_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = untrained(tmp_path / "run", "preset=gmlp", *IMAGES, "model.dim=16", "model.heads=2")
    assert main(["export", f"run={run}", f"to={tmp_path / 'out'}", "format=timm"]) == 2
    assert "timm cannot build gmlp_ti16_224" in capsys.readouterr().err
