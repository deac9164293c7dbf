"""`blockyard inspect attention` over sound: the times of tokens, the alignment, hertz, and the pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.contracts import Batch, Context, DataSpec, Tokenizer
from blockyard.inspect.figures.sound_figure import RANGE, spectrogram
from blockyard.inspect.sound import Label, Sound, alignment, token_edges
from blockyard.objective.ctc import CTC
from blockyard.report.arms import attention_maps
from blockyard.tokenizer.log_mel import LogMel
from blockyard.tokenizer.waveform import Waveform
from blockyard.weight_init import initialise
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, steps

SAMPLES = 3000
DATA = DataSpec("audio", (SAMPLES,), rate=8000)


@pytest.mark.parametrize(
    "tokenizer",
    [Waveform(norm="none", standardize=False, channels=4), LogMel(mels=8), LogMel(mels=8, subsample=2)],
    ids=["waveform", "log_mel", "log_mel 2"],
)
def test_a_token_stands_for_the_middle_of_what_it_hears(tokenizer: Tokenizer) -> None:
    """Against the samples with a gradient; the first one of a Hann window has a weight of zero."""
    tokens = tokenizer.spec(DATA)
    ctx = Context(8, 1, 1, False, tokens, DATA, 4)
    embedder = initialise(tokenizer.embedder(ctx), 0)
    sound = (0.1 * torch.randn(1, SAMPLES, generator=torch.Generator().manual_seed(0))).requires_grad_()
    x = embedder(sound)[0][0]  # (N, D)
    edges = token_edges(tokens.shrink, len(x))
    inner = range(2, len(x) - 2)  # those whose windows lie within the sound
    assert len(inner) > 2
    for token in inner:
        (gradient,) = torch.autograd.grad(x[token].square().sum(), sound, retain_graph=True)
        heard = gradient[0].nonzero()[:, 0]
        middle = float(heard[0] + heard[-1] + 1) / 2
        assert float(edges[token] + edges[token + 1]) / 2 == pytest.approx(middle, abs=1)


def test_the_alignment_is_that_of_the_best_path() -> None:
    path = [3, 1, 1, 3, 1, 0, 3]  # 3 is the blank
    task = CTC()
    task._blank = 3
    logits = torch.nn.functional.one_hot(torch.tensor([[*path, 2, 2]]), 4).float()
    loaded: Any = SimpleNamespace(
        objective=task,
        model=type(
            "Model",
            (),
            {
                "__call__": lambda self, _: logits,
                "ctx": SimpleNamespace(tokens=SimpleNamespace(start=None, end=None, mask=None)),
            },
        )(),
        data=SimpleNamespace(token_name=lambda _: None),
        tokenizer=SimpleNamespace(token_name=lambda token_id: "abc"[token_id]),
    )
    labels = alignment(loaded, Batch(torch.zeros(1, 5)), len(path))
    assert labels == [Label("b", 1, 2), Label("b", 4, 4), Label("a", 5, 5)]
    assert alignment(replace_objective(loaded), Batch(torch.zeros(1, 5)), 7) is None


def replace_objective(loaded: Any) -> Any:
    return SimpleNamespace(**{**vars(loaded), "objective": None})


def test_a_tone_lies_at_its_frequency() -> None:
    time = torch.arange(4000) / 8000
    sound = Sound(torch.sin(2 * torch.pi * 1200 * time), 8000, torch.tensor([0.0, 0.5]))
    table = spectrogram(sound)  # (101, times), 40 Hz each
    assert table.argmax(0).unique().tolist() == [30]
    assert float(table.max()) == 0
    assert float(table.min()) >= -RANGE
    short = spectrogram(replace(sound, samples=sound.samples[:10]))
    assert short.shape == (101, 1)


SMALL = (
    "data.samples=24",
    "data.eval_samples=8",
    *ON_CPU,
    *ONE_BATCH,
    *ONE_LAYER,
    *steps(2, None),
    "data.batch_size=4",
)


def check_written_picture(folder: Path) -> None:
    """`eval write=true` draws the first recordings of the test split, which the page finds; a small file."""
    assert main(["eval", f"run={folder}", "write=true"]) == 0
    picture = folder / attention_maps.FILES["spectrograms"]
    with Image.open(picture) as image:
        assert image.width > 600
        assert image.height > 300
        assert len(image.convert("RGB").getcolors(256) or ()) > 20
    assert picture.stat().st_size < 200_000


@pytest.mark.full
@pytest.mark.parametrize("stem", ["waveform", "log_mel"])
def test_the_command_of_ctc(stem: str, tmp_path: Path) -> None:
    overrides = ("experiment=tones_ctc", f"source_tokenizer={stem}", "trainer.max_epochs=null", f"outputs={tmp_path}")
    assert main(["train", *overrides, *SMALL]) == 0
    (folder,) = tmp_path.glob("*/s0")
    assert main(["inspect", f"run={folder}", "attention", "samples=2", "log=false"]) == 0
    numbers = read_json(folder / "inspect" / "attention.json")
    assert numbers["pictures"] == ["attention_maps.png", "attention_sound.png", "attention_entropy.png"]
    edges = torch.tensor(numbers["sound"]["edges"])
    assert len(edges) == len(numbers["layers"][0]["keys"]) + 1
    step = 0.02 if stem == "waveform" else 0.04
    check_written_picture(folder)
    assert_close(edges.diff(), torch.full((len(edges) - 1,), step), atol=1e-4, rtol=0)
    assert numbers["sound"]["rate"] == 8000


@pytest.mark.full
def test_the_command_of_an_encoder_decoder(tmp_path: Path) -> None:
    overrides = ("experiment=tones_ctc", "model=encoder_decoder", "model.shared=false", "objective=translate")
    assert main(["train", *overrides, "trainer.max_epochs=null", f"outputs={tmp_path}", *SMALL]) == 0
    (folder,) = tmp_path.glob("*/s0")
    assert main(["inspect", f"run={folder}", "attention", "samples=1", "log=false"]) == 0
    numbers = read_json(folder / "inspect" / "attention.json")
    assert {"attention_sound.png", "attention_heard.png", "attention_tokens.png"} <= set(numbers["pictures"])
    assert numbers["sound"]["alignment"] == []
    check_written_picture(folder)
