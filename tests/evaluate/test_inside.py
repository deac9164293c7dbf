"""Numbers from inside a model over a split, against those of `blockyard inspect`, and runs that are judged by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from blockyard.cli import main
from blockyard.config.build import Components
from blockyard.config.compose import compose
from blockyard.config.schema import options
from blockyard.contracts import Batch
from blockyard.data.splits.order import take
from blockyard.engine.plain_trainer import unserved
from blockyard.engine.trainer import TrainerPlan
from blockyard.evaluate import inside as module
from blockyard.evaluate.inside import DIRECTIONS, inside
from blockyard.inspect.attention_weights import attention_layers
from blockyard.inspect.kinds.norms import layer_norms
from blockyard.inspect.samples import Sample
from tests.support import engine_runs
from tests.support.tiny import SHORTEST, configured

SMALL = (
    *("data.samples=32", "data.eval_samples=32", "source_tokenizer.size=4"),
    *("model.dim=16", "model.depth=2", "model.heads=2"),
)
READERS = {
    "class token": ("experiment=canvas_questions",),
    "mean": ("experiment=canvas_questions", "model.prefix.class_token=false", "head=mean_pool"),
    "last of a joined sequence": ("experiment=canvas_captions",),
    "last, across": ("experiment=canvas_captions", "model=encoder_decoder", "model.shared=false"),
}


class Asking:
    """A split every second sample of which asks for the upper left corner."""

    def __init__(self, split: Any) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        return self.split.batch(order, key)

    def region(self, order: Tensor) -> Tensor:
        region = torch.zeros(len(order), 24, 24, dtype=torch.bool)
        region[order % 2 == 0, :10, :7] = True
        return region


def built(*overrides: str) -> tuple[nn.Module, Asking, Any]:
    components = Components(compose([*overrides, *SMALL, "logger=none"]).config)
    components.data.prepare()
    return components.model(0).eval(), Asking(components.load().test), components.objective


def samples_of(split: Asking, objective: Any) -> Sequence[Sample]:
    """The split as `blockyard inspect` takes it: batches of one, without padding."""
    samples = []
    for index in range(len(split)):
        order = torch.tensor([index])
        region = split.region(order)[0]
        batch = objective.ready(take(split.split, order, None), None)
        samples.append(Sample(batch, index, region=region if region.any() else None))
    return samples


@pytest.mark.parametrize("reader", READERS)
def test_a_split_has_the_mean_of_what_inspect_shows_of_each_sample(reader: str) -> None:
    model, split, objective = built(*READERS[reader])
    values = inside(model, split, objective, ["outliers", "asked"], batch_size=5)
    layers = [layer for layer in attention_layers(model, samples_of(split, objective)) if layer.region is not None]
    assert len(layers) == 2
    expected = torch.stack([layer.region for layer in layers]).mean()
    assert values["asked"] == pytest.approx(float(expected), rel=1e-4)
    assert values["outliers"] == layer_norms(model, list(samples_of(split, objective)))[-1].outliers


def test_a_shift_of_the_patches_by_one_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, split, objective = built(*READERS["class token"])
    right = inside(model, split, objective, ["asked"], batch_size=8)["asked"]
    keys = module.source_keys

    def shifted(*arguments: Any) -> tuple[int, int, tuple[int, ...]]:
        start, count, grid = keys(*arguments)
        return start + 1, count, grid

    monkeypatch.setattr(module, "source_keys", shifted)
    assert inside(model, split, objective, ["asked"], batch_size=8)["asked"] != pytest.approx(right, rel=1e-4)


def test_tokens_of_twice_the_median_norm_stand_out() -> None:
    norms = torch.tensor([1.0, 1.0, 1.0, 2.0, 2.1, 9.0, 1.0, 1.0])
    assert module.outlier_share(norms) == 2 / 8


def test_every_measure_is_an_option_and_has_a_direction() -> None:
    assert DIRECTIONS.keys() == set(get_args(get_args(options(TrainerPlan)["inspect"].annotation)[0]))


def test_a_run_measures_at_its_end(tmp_path: Path) -> None:
    summary = engine_runs.run(tmp_path, "trainer.inspect=[outliers]", base=SHORTEST).summary()
    assert 0 <= summary["metrics"]["test/inspect_outliers"] <= 1
    assert summary["directions"]["test/inspect_outliers"] == "min"


def test_a_trainer_of_ones_own_is_told_that_it_measures_nothing() -> None:
    (sentence,) = unserved(Components(configured("experiment=vit_digits", "trainer.inspect=[outliers]")[0]))
    assert "trainer.inspect" in sentence


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["experiment=vit_digits", "trainer.inspect=[asked]"], "does not implement `AsksForPart`"),
        # As many latents as tokens.
        (["experiment=vit_digits", "model=perceiver", "trainer.inspect=[outliers]"], "do not run over its tokens"),
        (
            ["experiment=canvas_questions", *SMALL, "token_mixer=lstm", "trainer.inspect=[outliers,asked]"],
            "does not attend to the patches of a source",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_first_step(
    overrides: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *overrides, "logger=none", "trainer=cpu", f"outputs={tmp_path}"]) == 2
    message = capsys.readouterr().err
    assert reason in message
    assert "trainer.inspect=[" in message
    assert not list(tmp_path.glob("*/s0/metrics.csv"))
