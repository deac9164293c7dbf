"""`blockyard inspect restore`: what is drawn is what the model reads, makes and should have made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.inspect.kinds.restore import restorations
from blockyard.inspect.options import Options
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load
from tests.support import engine_runs
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, SHORTEST, steps
from tests.support.tolerances import float32

RESTORE = (*ON_CPU, *ONE_LAYER, *steps(2, None), *ONE_BATCH, "head=token", "objective=restore")
DIGITS = (*RESTORE, "data=digits", "tokenizer.size=2")
PATCHES = ("tokenizer.size=8", "tokenizer.stride=8", "tokenizer.pad_end=false")
CO2 = (*RESTORE, "data=co2", "tokenizer=series_patch", *PATCHES, "position=learned", "model=encoder")
TASKS = {
    "image": DIGITS,
    "series": CO2,
    "patch": (*DIGITS, "objective.normalise=patch"),
    "noise": (*DIGITS, "objective.rate=0", "objective.noise=0.5"),
}


@pytest.fixture(scope="module", params=TASKS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return engine_runs.run(tmp_path_factory.mktemp(request.param), base=TASKS[request.param])


def test_what_is_drawn_is_what_the_model_makes(run: RunFolder) -> None:
    loaded = load(run)
    samples = restorations(loaded, Options(sample=1, samples=2))
    assert [sample.index for sample in samples] == [1, 2]
    raw = loaded.data.load(loaded.tokenizer).validation.batch(torch.tensor([1, 2]), None)
    for sample, true in zip(samples, raw.inputs, strict=True):
        assert torch.equal(sample.true.nan_to_num(), true.nan_to_num())
        shown = ~sample.hidden
        if loaded.config["objective"]["rate"]:
            assert torch.equal(sample.input[shown].nan_to_num(), true[shown].nan_to_num())
            assert torch.equal(sample.output[shown].nan_to_num(), true[shown].nan_to_num())
            assert 0.5 < sample.hidden.float().mean() < 0.7
        if loaded.config["objective"]["normalise"] == "none":
            where = sample.hidden if sample.hidden.any() else torch.ones_like(sample.hidden)
            error = (sample.output - true)[where].square().nanmean()
            assert_close(float(error), sample.mse, **float32(terms=64))


@pytest.mark.parametrize(
    "run",
    [name if name in ("image", "series") else pytest.param(name, marks=pytest.mark.full) for name in TASKS],
    indirect=True,
)
@pytest.mark.sampled(3)
def test_the_figure_and_the_numbers(run: RunFolder) -> None:
    assert main(["inspect", f"run={run.path}", "restore", "samples=9", "log=false"]) == 0
    numbers = read_json(run.path / "inspect" / "restore.json")
    assert len(numbers["samples"]) == 9
    assert numbers["pictures"] == ["restore.png", "restore_2.png"]
    for name in numbers["pictures"]:
        with Image.open(run.path / "inspect" / name) as figure:
            figure.load()
            assert min(figure.size) > 100


def test_runs_that_restore_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = engine_runs.run(tmp_path, base=SHORTEST)
    assert main(["inspect", f"run={other.path}", "restore"]) == 2
    assert "was not trained to restore its input; use a run of objective=restore" in capsys.readouterr().err
    assert main(["inspect", f"run={other.path}", "restore", "layers=0"]) == 2
    assert (
        "layers=0: an option of attention, circuits, experts, masking, memory, mixing and positions, not of restore"
        in capsys.readouterr().err
    )
