"""Masked units: frames where tokens begin, centres of the training split, hidden spans, and what the model reads."""

from __future__ import annotations

import pytest
import torch
from sklearn.cluster import KMeans
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import reasons
from blockyard.config.compose import compose
from blockyard.contracts import Batch
from blockyard.data.splits.order import take
from blockyard.objective.masked_units import MaskedUnits
from tests.support.every import every

WORDS = (
    *("data=dial_tones", "data.samples=40", "data.eval_samples=8", "tokenizer=char", "objective=masked_units"),
    *("head=token", "model=encoder", "position=rope", "model.dim=16", "model.depth=1", "logger=none"),
)


@pytest.fixture(scope="module", params=["log_mel", "waveform"])
def plan(request: pytest.FixtureRequest) -> Components:
    composed = compose([*WORDS, f"source_tokenizer={request.param}", "objective.units=8", "objective.span=4"])
    assert reasons(composed) == []
    plan = Components(composed.config)
    plan.splits = plan.load()  # type: ignore[attr-defined]
    return plan


def batch_of(plan: Components, key: int | None = None) -> tuple[Batch, Batch]:
    raw = take(plan.splits.test, torch.arange(8), None)  # type: ignore[attr-defined]
    return raw, plan.objective.ready(raw, key)


def test_hidden_tokens_are_spans_of_real_ones_and_the_model_reads_none_of_them(plan: Components) -> None:
    raw, ready = batch_of(plan)
    assert ready.hidden is not None
    assert isinstance(ready.target, torch.Tensor)
    tokens = plan.context().tokens.tokens_of(raw.source_lengths)
    real = torch.arange(ready.hidden.shape[1]) < tokens[:, None]
    assert ready.hidden.any(1).all()
    assert not (ready.hidden & ~real).any()
    assert 0.25 < ready.hidden.sum() / real.sum() < 0.55
    assert_close((ready.target != Batch.ignore), ready.hidden)
    complete = []
    for row, count in zip(ready.hidden.tolist(), tokens.tolist(), strict=True):
        runs = "".join("x" if hidden else " " for hidden in row[:count]).split()
        cut = row[count - 1]  # the last run may be cut by the end
        complete += runs[:-1] if cut else runs
    assert every(len(run) >= 4 for run in complete)
    model = plan.model(0).eval()
    prediction = model(ready)
    assert prediction.shape == (*ready.hidden.shape, 8)
    model.mask_token.vector.data[:, ::2] += 1  # a norm takes a constant out
    assert (model(ready) - prediction).abs().max() > 1e-4
    assert torch.equal(batch_of(plan)[1].hidden, ready.hidden)  # type: ignore[arg-type]
    assert not torch.equal(batch_of(plan, 5)[1].hidden, ready.hidden)  # type: ignore[arg-type]


def test_units_of_a_recording_do_not_depend_on_its_batch(plan: Components) -> None:
    _, whole = batch_of(plan)
    for sample in range(8):
        order = torch.tensor([sample])
        alone = plan.objective.ready(take(plan.splits.test, order, None))  # type: ignore[attr-defined]
        count = alone.target.shape[1]  # type: ignore[union-attr]
        assert_close(whole.target[sample, :count], alone.target[0])  # type: ignore[index]


def test_centres_are_as_good_as_those_of_scikit_learn(plan: Components) -> None:
    objective = plan.objective
    assert isinstance(objective, MaskedUnits)
    assert objective._centres is not None
    train = plan.splits.train  # type: ignore[attr-defined]
    points = objective._frames_of(train, torch.arange(40))
    ours = torch.cdist(points, objective._centres).amin(1).square().sum()
    theirs = KMeans(8, n_init=3, random_state=0).fit(points.numpy()).inertia_
    assert float(ours) < 1.15 * theirs
    again = MaskedUnits(units=8, span=4)
    again.outputs(plan.data.spec, plan.tokens())
    again.source_tokens(plan.context().tokens)
    again.learn(train)
    assert_close(again._centres, objective._centres)


def test_the_frequency_of_units_is_the_baseline(plan: Components) -> None:
    baselines = plan.objective.baselines(plan.splits.test)["frequency"]  # type: ignore[attr-defined]
    assert 1 < baselines["loss"] < 2.3
    assert 1 / 8 < baselines["accuracy"] < 0.7


def test_a_source_of_another_kind_is_refused() -> None:
    overrides = [*WORDS, "data=translation", "data.samples=40"]
    overrides = [override for override in overrides if not override.startswith("data.eval_samples")]
    issues = reasons(compose(overrides))
    assert any(
        "objective=masked_units is for sources of audio; those of data=translation are texts" in each for each in issues
    )
