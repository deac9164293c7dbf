"""The next patch: targets, causality, simple predictions, and series continued patch by patch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, DataSpec, Forecaster
from blockyard.objective.next_patch import NextPatch
from blockyard.tokenizer._series import standardize
from blockyard.tokenizer.patch import Patch
from blockyard.tokenizer.series_patch import SeriesPatch
from tests.support.helpers import stir
from tests.support.tiny import configured
from tests.support.tolerances import float32

TINY = ("model.dim=16", "model.depth=1", "model.heads=2", "logger=none", "trainer=cpu")
CO2 = ("experiment=co2_next", *TINY)
DIGITS = ("data=digits", "tokenizer=patch", "tokenizer.size=2", "head=token", "objective=next_patch", "model=decoder")
STEPS, SIZE, CHANNELS, HORIZON = 14, 4, 2, 6


def objective(horizon: int = HORIZON, season: int | None = None) -> NextPatch:
    task = NextPatch(season=season)
    data = DataSpec("series", (STEPS, CHANNELS), target="values", values=(horizon, CHANNELS))
    task.outputs(data, task.tokens(SeriesPatch(size=SIZE, stride=SIZE, pad_end=False, normalise="first").spec(data)))
    return task


def windows(size: int = 3) -> Batch:
    x = torch.randn(size, STEPS + HORIZON, CHANNELS, generator=torch.Generator().manual_seed(0))
    return Batch(x[:, :STEPS], x[:, STEPS:])


def test_each_target_follows_its_patch() -> None:
    raw = windows()
    whole = torch.cat([raw.inputs, raw.target], 1)  # type: ignore[list-item]
    batch = objective().ready(raw)
    assert batch.inputs is raw.inputs
    for token in range(3):  # the first two steps fit no patch
        start = 2 + SIZE * (token + 1)
        assert_close(batch.target[:, token], whole[:, start : start + SIZE].flatten(1))
    short = objective(horizon=SIZE - 1).ready(raw)
    assert short.target[:, -1].isnan().all()
    assert_close(short.target[:, :-1], batch.target[:, :-1])


def test_of_images_the_last_patch_has_no_target() -> None:
    task = NextPatch()
    data = DataSpec("image", (1, 4, 4), target="class", classes=10)
    task.outputs(data, task.tokens(Patch(size=2).spec(data)))
    x = torch.randn(2, 1, 4, 4)
    batch = task.ready(Batch(x, torch.tensor([1, 2])))
    assert_close(batch.target[:, 0], x[:, :, :2, 2:].flatten(1))
    assert_close(batch.target[:, 1], x[:, :, 2:, :2].flatten(1))
    assert batch.target[:, 3].isnan().all()
    assert task.count(batch) == 2 * 3 * 4


@torch.no_grad()
def sees_ahead(model: nn.Module, size: int, x: Tensor) -> bool:
    """Whether a prediction changes with values of a later patch; asserts that it does with those of its own."""
    before, tokens = model(x), x.shape[1] // size
    for token in range(1, tokens):
        changed = x.clone()
        changed[:, token * size :] += 1 + torch.rand(changed[:, token * size :].shape)
        after = model(changed)
        assert not torch.allclose(after[:, token], before[:, token])
        if not torch.equal(after[:, :token], before[:, :token]):
            return True
    return False


def decoder(*overrides: str) -> nn.Module:
    return stir(Components(configured(*CO2, *overrides)[0]).model(0)).double().eval()


@pytest.mark.parametrize("normalise", ["none", "first"])
def test_predictions_know_nothing_of_later_patches(normalise: str) -> None:
    x = torch.randn(2, 156, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0, :20] = torch.nan
    assert not sees_ahead(decoder(f"tokenizer.normalise={normalise}"), 13, x)


def test_a_scale_of_the_whole_history_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: histories are normalised by all of their steps."""
    model = decoder()
    monkeypatch.setattr(
        "blockyard.tokenizer.series_patch.standardize", lambda x, how, first: standardize(x, "instance", first)
    )
    x = torch.randn(2, 156, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert sees_ahead(model, 13, x)


@pytest.mark.parametrize("season", [2, 3, 4, 5, 8, 9])
def test_simple_predictions_are_their_formulas(season: int) -> None:
    task, raw = objective(season=season), windows()
    raw.inputs[0, 7, 1] = torch.nan
    history = raw.inputs.clone()
    history[0, 7, 1] = history[0, 6, 1]
    predictions = dict(task.simple_predictions(task.ready(raw)))
    for sample in range(3):
        for token in range(3):
            end = 2 + SIZE * (token + 1)  # steps that a prediction may know
            for step in range(SIZE):
                for channel in range(CHANNELS):
                    earlier = end + step
                    while earlier >= end:
                        earlier -= season
                    last = history[sample, end - 1, channel]
                    place = step * CHANNELS + channel
                    assert_close(predictions["repeat"][sample, token, place], last)
                    expected = history[sample, earlier, channel] if earlier >= 0 else last
                    assert_close(predictions["seasonal"][sample, token, place], expected)
    assert not predictions["mean"].any()
    error = (predictions["repeat"] - task.ready(raw).target).square().nanmean()

    class Windows:
        def __len__(self) -> int:
            return 3

        def batch(self, order: Tensor, key: int | None) -> Batch:
            return Batch(raw.inputs[order], raw.target[order])  # type: ignore[index]

    assert task.baselines(Windows())["repeat"]["mse"] == pytest.approx(
        float(error), rel=float32(terms=predictions["repeat"].numel())["rtol"]
    )


def test_a_series_is_continued_patch_by_patch() -> None:
    task, model = objective(), Counts()
    assert isinstance(task, Forecaster)
    history = torch.arange(STEPS).float()[None, :, None].expand(1, -1, CHANNELS)
    predicted = task.forecast(model, history, 10)
    assert_close(predicted[0, :, 0], torch.arange(STEPS, STEPS + 10).float())
    assert model.calls == 3  # patches of 4 steps


class Counts(nn.Module):
    """Goes on counting from the last step of a history."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        assert inputs.shape[1] == STEPS
        self.calls += 1
        patch = inputs[:, -1:, :] + 1 + torch.arange(SIZE)[None, :, None]  # (B, size, C)
        return patch.flatten(1)[:, None].expand(-1, 3, -1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((*CO2, "model=encoder"), "objective=next_patch needs a causal model"),
        ((*CO2, "tokenizer.normalise=instance"), "depend on them: tokenizer.normalise=first"),
        ((*CO2, "tokenizer.normalise=last"), "depend on them: tokenizer.normalise=first"),
        ((*CO2, "tokenizer.pad_end=true"), "share theirs: tokenizer.stride=SIZE"),
        ((*DIGITS, "tokenizer=conv_patch"), "vectors of tokenizer=conv_patch depend on them"),
        ((*DIGITS, "objective.season=4"), "objective.season=4 is for series"),
        ((*DIGITS, "tokenizer.size=8"), "needs sequences of several patches"),
    ],
)
def test_what_has_no_next_patch_is_refused(overrides: tuple[str, ...], message: str) -> None:
    issues = check(compose([*overrides, "logger=none"]))
    assert any(message in str(issue) for issue in issues), [str(issue) for issue in issues]


def test_patches_of_images_are_predicted_too() -> None:
    parts = Components(configured(*DIGITS, *TINY)[0])
    parts.tokens()
    batch = parts.objective.prepare(parts.data.load(parts.tokenizer).train.batch(torch.arange(4), None))
    model = parts.model(0)
    loss = parts.objective.loss(model(batch), batch.target)
    loss.backward()
    assert loss.isfinite()
