"""Masked contrast: candidates of the same recording, the loss of transformers and of a formula, baselines, learning."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import reasons
from blockyard.config.compose import compose
from blockyard.contracts import Batch
from blockyard.data.splits.order import take
from blockyard.objective._contrast_metrics import distractors
from blockyard.objective.masked_contrast import HiddenContrast, MaskedContrast
from tests.support.tolerances import float32

WORDS = (
    *("data=dial_tones", "data.samples=24", "data.eval_samples=8", "tokenizer=char", "objective=masked_contrast"),
    *("head=token", "model=encoder", "position=rope", "model.dim=16", "model.depth=1", "logger=none"),
    *("objective.negatives=12", "objective.span=4"),
)


@pytest.fixture(scope="module", params=["log_mel", pytest.param("waveform", marks=pytest.mark.full)])
def plan(request: pytest.FixtureRequest) -> Any:
    composed = compose([*WORDS, f"source_tokenizer={request.param}"])
    assert reasons(composed) == []
    plan: Any = Components(composed.config)
    plan.splits = plan.load()
    return plan


def ready(plan: Any, order: torch.Tensor, key: int | None = None) -> Batch:
    batch: Batch = plan.objective.ready(take(plan.splits.test, order, None), key)
    return batch


def test_candidates_are_hidden_tokens_of_the_same_recording(plan: Any) -> None:
    batch = ready(plan, torch.arange(8))
    target: Any = batch.target
    assert batch.hidden is not None
    assert_close(target.truth != Batch.ignore, batch.hidden)
    for row, token in batch.hidden.nonzero().tolist():
        chosen = target.negatives[row, token]
        assert batch.hidden[row, chosen].all()
        assert token not in chosen.tolist()
    for sample in range(8):  # and do not depend on the batch
        alone: Any = ready(plan, torch.tensor([sample])).target
        count = alone.truth.shape[1]
        assert_close(target.truth[sample, :count], alone.truth[0])
        real = alone.truth[0] == 0
        assert_close(target.negatives[sample, :count][real], alone.negatives[0][real])
        assert_close(target.frames[sample, :count][real], alone.frames[0][real])
    assert not torch.equal(ready(plan, torch.arange(8), 3).hidden, batch.hidden)  # type: ignore[arg-type]


def test_distractors_are_equally_likely() -> None:
    hidden = torch.tensor([[True, False, True, True, False, True]])
    draws = torch.rand(1, 6, 30_000, generator=torch.Generator().manual_seed(0))
    chosen = distractors(hidden, draws)
    for token, others in ((0, (2, 3, 5)), (3, (0, 2, 5)), (5, (0, 2, 3))):
        share = chosen[0, token].bincount(minlength=6) / 30_000
        assert_close(share[list(others)], torch.full((3,), 1 / 3), atol=0.01, rtol=0)
        assert share.sum() - share[list(others)].sum() == 0


def random_case(equal: bool = False) -> tuple[torch.Tensor, HiddenContrast]:
    generator = torch.Generator().manual_seed(1)
    prediction, frames = torch.randn(2, 3, 7, 5, generator=generator)
    hidden = torch.tensor([[1, 1, 1, 0, 0, 1, 1], [0, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]]).bool()
    if equal:
        frames[0, 1] = frames[0, 0]
    negatives = distractors(hidden, torch.rand(3, 7, 4, generator=generator))
    truth = torch.zeros(3, 7, dtype=torch.int64).masked_fill(~hidden, Batch.ignore)
    return prediction, HiddenContrast(truth, negatives, frames)


@pytest.mark.parametrize("equal", [False, True])
def test_the_loss_is_that_of_the_formula(equal: bool) -> None:
    """Equation 3 of the paper, by loops; equal frames are no distractors."""
    prediction, target = random_case(equal)
    losses = []
    for row, token in (target.truth == 0).nonzero().tolist():
        true = target.frames[row, token]

        def similarity(frame: torch.Tensor, row: int = row, token: int = token) -> float:
            c = prediction[row, token]
            return float((c * frame).sum() / (c.norm() * frame.norm())) / 0.2

        others = [target.frames[row, n] for n in target.negatives[row, token].tolist()]
        others = [other for other in others if not torch.equal(other, true)]
        below = sum(math.exp(similarity(other)) for other in [true, *others])
        losses.append(math.log(below) - similarity(true))
    task = MaskedContrast(temperature=0.2)
    assert float(task.loss(prediction, target)) == pytest.approx(
        sum(losses) / len(losses), rel=float32(terms=64)["rtol"]
    )
    metrics = task.metrics()
    for metric in metrics.values():
        metric.update(prediction, target)
    assert float(metrics["loss"].compute()) == pytest.approx(sum(losses) / len(losses), rel=float32(terms=64)["rtol"])


def test_the_loss_is_that_of_transformers() -> None:
    models = pytest.importorskip("transformers.models.wav2vec2.modeling_wav2vec2")
    prediction, target = random_case()
    negatives = torch.stack([target.frames[row][target.negatives[row]] for row in range(3)]).permute(2, 0, 1, 3)
    logits = models.Wav2Vec2ForPreTraining.compute_contrastive_logits(target.frames[None], negatives, prediction, 0.1)
    logits = logits.transpose(0, 2).reshape(-1, logits.size(0))  # tokens first, as it does
    theirs = F.cross_entropy(logits, target.truth.T.flatten(), ignore_index=Batch.ignore)
    assert_close(MaskedContrast(temperature=0.1).loss(prediction, target), theirs)


def test_baselines(plan: Any) -> None:
    baselines = plan.objective.baselines(plan.splits.test)
    assert baselines["uniform"]["loss"] == pytest.approx(math.log(13), rel=0.02)  # less where frames are equal
    assert baselines["uniform"]["accuracy"] == pytest.approx(1 / 13, rel=0.05)
    assert baselines["nearest"]["accuracy"] > 1.5 / 13
    perfect: Any = ready(plan, torch.arange(8)).target
    accuracy = plan.objective.metrics()["accuracy"]
    accuracy.update(perfect.frames, perfect)
    assert float(accuracy.compute()) > 0.99


def test_a_prediction_without_a_preference_is_right_by_chance(plan: Any) -> None:
    """A wholly hidden recording has no nearest neighbour, and a collapsed model predicts one vector."""
    batch: Any = ready(plan, torch.arange(8))
    accuracy = plan.objective.metrics()["accuracy"]
    accuracy.update(torch.zeros_like(batch.target.frames), batch.target)
    assert float(accuracy.compute()) == pytest.approx(1 / 13, rel=1e-3)


def test_a_recording_with_one_hidden_token_does_not_count() -> None:
    hidden = torch.tensor([[False, True, False]])
    assert distractors(hidden, torch.rand(1, 3, 5)).shape == (1, 3, 5)
    task = MaskedContrast(span=1, rate=0.1)
    counts = task.spans(torch.rand(1, 3), torch.tensor([3])).sum()
    assert counts == 1


def test_steps_lower_the_loss(plan: Any) -> None:
    model, batch = plan.model(0).train(), ready(plan, torch.arange(8))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(60):
        loss = plan.objective.loss(model(batch), batch.target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3
