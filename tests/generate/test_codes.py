"""Images that an encoder-decoder draws from captions: the same however they are drawn, judged, written, refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import blockyard
from blockyard.cli import main
from blockyard.contracts import Batch
from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate_written
from blockyard.generate.codes import generate_outputs
from blockyard.generate.images import generate_images
from blockyard.runs.folder import RunFolder
from tests.support import engine_runs
from tests.support.tiny import DRAWS, DRAWS_CAPTIONS

pytestmark = pytest.mark.xdist_group("generate_codes")  # its runs are made once

CAPTIONS = ["a red 3 left of a blue 7", "a green 0 above a red 0", "a blue 1 left of a blue 1"]


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return engine_runs.run(tmp_path_factory.mktemp("drawing"), base=DRAWS_CAPTIONS)


@pytest.mark.full
def test_several_captions_are_what_each_is_alone(drawing: RunFolder) -> None:
    loaded = blockyard.load(drawing.path)
    result = generate_outputs(loaded, CAPTIONS, 2, seed=5)
    assert [len(row) for row in result.outputs] == [2, 2, 2]
    again = generate_outputs(loaded, CAPTIONS, 2, seed=5, cache=False)
    alone = [generate_outputs(loaded, [text], 2, seed=5 + 2 * index) for index, text in enumerate(CAPTIONS)]
    for index, row in enumerate(result.outputs):
        for number, image in enumerate(row):
            assert image.shape == (3, 24, 24)
            assert torch.equal(image, again.outputs[index][number])
            assert torch.equal(image, alone[index].outputs[0][number])
    assert not torch.equal(result.outputs[0][0], result.outputs[0][1])
    assert result.readings is not None
    assert [len(row) for row in result.readings] == [2, 2, 2]


def test_greedy_codes_are_the_most_likely_ones_after_each_other(drawing: RunFolder) -> None:
    """Against whole passes over what was written so far, without a cache and without the loop of `generate`."""
    loaded = blockyard.load(drawing.path)
    split = loaded.components.load().test
    encoded = loaded.components.source_tokenizer.encode(CAPTIONS[0])
    written: list[int] = []
    with torch.inference_mode():
        for _ in range(loaded.model.ctx.tokens.max_len):
            inputs = torch.tensor([[16, *written]])
            written.append(int(loaded.model(Batch(inputs, source=torch.tensor([encoded])))[0, -1].argmax()))
    image = loaded.tokenizer.decode(torch.tensor([written]))[0]
    result = generate_outputs(loaded, CAPTIONS[:1], temperature=0)
    assert torch.equal(result.outputs[0][0], image)
    assert result.readings == [split.read([image])]


def test_the_source_is_read(drawing: RunFolder) -> None:
    loaded = blockyard.load(drawing.path)
    source = torch.tensor([loaded.components.source_tokenizer.encode(text) for text in CAPTIONS[::2]])
    scores = loaded.model(Batch(torch.full((2, 1), 16), source=source))
    assert scores.shape == (2, 1, 16)
    assert not torch.allclose(scores[0], scores[1])


def test_eval_writes_judges_and_draws(drawing: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", f"run={drawing.path}", "write=true"]) == 0
    printed = capsys.readouterr()
    head, *samples = map(json.loads, (drawing.path / "written-test.jsonl").read_text().splitlines())
    assert set(head["scores"]) == {
        *("exact", "digits", "exact@truth", "digits@truth", "exact@codes", "digits@codes"),
    }
    assert head["scores"]["digits@truth"] > 0.95 > head["scores"]["digits"]
    assert len(samples) == 24
    metrics = drawing.summary()["metrics"]
    assert metrics["test/written_digits"] == head["scores"]["digits"]
    assert drawing.summary()["directions"]["test/written_digits"] == "max"
    assert "test/written_digits@truth" in printed.out
    assert str(drawing.path / "drawn-test.png") in printed.err
    with Image.open(drawing.path / "drawn-test.png") as picture:
        assert picture.width > 500
    written, loaded = evaluate_written(drawing.path)
    assert [text for *_, text in written.texts] == [row["written"] for row in samples]
    alone = generate_outputs(loaded, [written.texts[3][0]], seed=3)
    assert torch.equal(alone.outputs[0][0], written.outputs[3][1])
    with pytest.raises(UserError, match=r"length_penalty=0\.5 has no effect: .* has no end token"):
        evaluate_written(drawing.path, beam=2, length_penalty=0.5)
    beam, _ = evaluate_written(drawing.path, beam=2)
    assert "test/written_digits@beam2" in beam.metrics()
    assert "test/written_digits@truth" in beam.metrics()


def test_the_verb_draws_a_row_for_each_source(
    drawing: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "captions.txt"
    file.write_text("\n".join(CAPTIONS) + "\n")
    out = tmp_path / "drawn.png"
    assert main(["generate", f"run={drawing.path}", f"sources={file}", "images=2", f"out={out}"]) == 0
    *readings, path = capsys.readouterr().out.splitlines()
    assert [line.split(": read as ")[0] for line in readings] == CAPTIONS
    assert path == str(out)
    with Image.open(out) as picture:
        assert picture.mode == "RGB"
        scale = 3  # three times 24 pixels are 64 at least
        assert picture.size == ((2 * 24 + 2) * scale, (3 * 24 + 4) * scale)
    assert main(["generate", f"run={drawing.path}", f"source={CAPTIONS[0]}"]) == 0
    assert (drawing.path / "samples.png").is_file()


def test_predict_draws_texts_and_the_lines_of_a_file(
    drawing: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "captions.txt"
    file.write_text("\n".join(CAPTIONS[1:]) + "\n")
    out = tmp_path / "drawn.png"
    assert main(["predict", f"run={drawing.path}", CAPTIONS[0], str(file), f"out={out}"]) == 0
    printed = capsys.readouterr().out
    result = generate_outputs(drawing, CAPTIONS)
    assert result.readings is not None
    for caption, (reading,) in zip(CAPTIONS, result.readings, strict=True):
        assert any(caption in line and reading in line for line in printed.splitlines())
    assert printed.splitlines()[-1] == str(out)
    with Image.open(out) as picture:
        pixels = torch.from_numpy(np.asarray(picture).astype(int))
    shown = pixels[::3, ::3].movedim(-1, 0)[:, :24]  # three times as large
    assert torch.equal(shown, (result.outputs[0][0].float() * 255 / 16).round().long())
    assert main(["predict", f"run={drawing.path}", CAPTIONS[0], "out=drawn.csv"]) == 2
    assert "draws images, which are written as .png" in capsys.readouterr().err


@pytest.mark.full
def test_what_does_not_fit_is_refused(drawing: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = engine_runs.run(tmp_path, base=DRAWS)
    source = f"source={CAPTIONS[0]}"
    for run, arguments, message in (
        (drawing, ["images=2"], "draws what a source asks for; it needs one"),
        (drawing, ["prompt=a"], "is a model of images; generate needs a model of text"),
        (drawing, [source, "max_tokens=3"], "max_tokens= has no effect with source= of canvas_drawings"),
        (drawing, [source, "class=3"], "class= has no effect with source= of canvas_drawings"),
        (drawing, [source, "prompt=a"], "prompt= has no effect with source="),
        (drawing, ["source="], "a source is empty"),
        (drawing, [source, "out=drawn.jpg"], "expected the name of a PNG file"),
        (drawing, [source, "device=tpu"], "device=tpu: expected cpu"),
        (drawing, [source, "temperature=-1"], "temperature=-1"),
        (plain, [source, "images=2"], "source= has no effect with images="),
    ):
        assert main(["generate", f"run={run.path}", *arguments]) == 2, arguments
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert message in error, arguments
    assert generate_images(plain.path, 1).images.shape == (1, 1, 8, 8)
