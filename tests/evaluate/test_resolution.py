"""A classifier on the same images in other sizes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from blockyard.cli import main
from blockyard.contracts import Batch, Standardized
from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate
from blockyard.evaluate.resolution import ResizedSplit, _First, evaluate_resolutions
from blockyard.runs.folder import RunFolder
from tests.support import engine_runs
from tests.support.engine_runs import run
from tests.support.tiny import steps

pytestmark = pytest.mark.xdist_group("resolution")  # its run is made once

WHOLE = (*steps(40, 40), "trainer.limit_test=null", "data.shift=0")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("image"), *WHOLE, "position=learned")


def test_every_size_is_what_a_loop_over_resized_images_gives(image: RunFolder) -> None:
    result, loaded = evaluate_resolutions(image.path, [0.5, 2])
    assert [(size.factor, size.pixels) for size in result.sizes] == [(0.5, (4, 4)), (1, (8, 8)), (2, (16, 16))]
    test = loaded.data.load(loaded.tokenizer).test
    batch = test.batch(torch.arange(len(test)), None)
    for size in result.sizes:
        images = batch.inputs
        if size.factor != 1:
            images = F.interpolate(images, size.pixels, mode="bilinear", antialias=True, align_corners=False)
        with torch.no_grad():
            guess = loaded.model(images).argmax(1)
        assert size.metrics["accuracy"] == pytest.approx(float((guess == batch.target).float().mean()))
    plain = evaluate(image.path)
    assert result.sizes[1].metrics["accuracy"] == pytest.approx(plain["test/accuracy"])
    assert len({size.metrics["loss"] for size in result.sizes}) == 3


def test_the_verb_prints_a_table_and_saves_it(image: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", f"run={image.path}", "resolution=[0.5,0.75,2]"]) == 0
    out = capsys.readouterr().out
    assert "8 x 8" in out
    assert "16 x 16" in out
    saved = json.loads((image.path / "resolution-test.json").read_text())
    assert [size["factor"] for size in saved["sizes"]] == [0.5, 0.75, 1.0, 2.0]
    assert saved["samples"] == image.summary()["data"]["test"]
    with Image.open(image.path / "resolution-test.png") as picture:
        assert picture.width > picture.height > 200
    for arguments, message in (
        (["resolution=[0]"], "numbers above 0"),
        (["resolution=[100]"], "up to 16"),
        (["resolution=[2]", "write=true"], "exclude each other"),
    ):
        assert main(["eval", f"run={image.path}", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_sizes_that_a_model_cannot_read_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = run(tmp_path / "fixed", *steps(2, 2), "token_mixer=token_mlp", "position=none")
    assert main(["eval", f"run={fixed.path}", "resolution=[2]"]) == 2
    captured = capsys.readouterr()
    assert "refused: " in captured.out
    assert "can read none of these sizes" in captured.err
    result, _ = evaluate_resolutions(fixed.path, [0.6])  # 5 pixels, which patches of 4 do not divide
    assert result.sizes[0].refused is not None
    assert "cannot be cut into squares of side 4" in result.sizes[0].refused
    text = engine_runs.text_run(tmp_path / "text", "tokenizer=char")
    with pytest.raises(UserError, match="reads texts; resolution needs a run with one prediction for each image"):
        evaluate_resolutions(text.path, [2])


def test_a_split_of_another_size_keeps_the_units_of_its_targets() -> None:
    """Metrics of a regression are in the units of the data at every size."""
    images = torch.zeros(4, 1, 8, 8)
    split = SimpleNamespace(
        batch=lambda order, key: Batch(images[order], torch.zeros(len(order))), mean=torch.tensor([3.0]), std=2.0
    )
    for other in (ResizedSplit(split, (4, 4)), _First(split, 2), _First(ResizedSplit(split, (4, 4)), 2)):  # type: ignore[arg-type]
        assert isinstance(other, Standardized)
        assert (other.mean, other.std) == (split.mean, 2.0)
        assert not hasattr(other, "nothing")
    assert copy.copy(ResizedSplit(split, (4, 4))).std == 2.0  # type: ignore[arg-type]
