"""A run on tokens of images is inspected on the image that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockyard.cli import main
from blockyard.inspect.options import Options
from blockyard.inspect.samples import load_samples
from blockyard.runs.load import load
from tests.support import engine_runs
from tests.support.tiny import DRAWS


@pytest.mark.full
def test_samples_are_images_and_attention_is_drawn_on_them(tmp_path: Path) -> None:
    run_folder = engine_runs.run(tmp_path, "tokenizer.order=snake", base=DRAWS)
    loaded = load(run_folder.path)
    (sample,) = load_samples(loaded, Options(sample=3, samples=1))
    assert sample.image is not None
    split = loaded.data.load(loaded.tokenizer).validation
    pixels = split.images.batch(torch.tensor([3]), None).inputs[0, 0].float()  # type: ignore[attr-defined]
    torch.testing.assert_close(sample.image, (pixels - pixels.min()) / (pixels.max() - pixels.min()))
    assert main(["inspect", f"run={run_folder.path}", "attention", "samples=1", "log=false"]) == 0
    assert (run_folder.path / "inspect" / "attention_maps.png").is_file()
