"""Hidden patches: which, what counts, and the error of simple predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torchmetrics.image import PeakSignalNoiseRatio
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, DataSpec
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.order import eval_indices, take
from blockyard.evaluate.loop import evaluate
from blockyard.objective._errors import PeakSignalToNoise
from blockyard.objective._patches import cut, join
from blockyard.objective.restore import Restore
from blockyard.tokenizer.patch import Patch
from blockyard.tokenizer.series_patch import SeriesPatch
from tests.components.objective.restoring import CO2, DIGITS, TASK, components, stirred
from tests.support.tolerances import float32

IMAGE, SERIES = DataSpec("image", (2, 4, 6)), DataSpec("series", (14, 3))
MEAN = float32(terms=64 * 64)["rtol"]  # of the values of the images in a batch


def objective(data: DataSpec = IMAGE, **options: object) -> Restore:
    task = Restore(**options)  # type: ignore[arg-type]
    tokenizer = Patch(size=2) if data is IMAGE else SeriesPatch(size=4, stride=4, pad_end=False)
    task.outputs(data, task.tokens(tokenizer.spec(data)))
    return task


def inputs(data: DataSpec = IMAGE, size: int = 8) -> Tensor:
    return torch.randn(size, *data.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("data", [IMAGE, SERIES])
def test_patches_are_cut_where_the_tokens_are(data: DataSpec) -> None:
    tokens, x = objective(data).layout, inputs(data)
    values = cut(x, tokens)
    if data is IMAGE:
        for token in range(6):
            row, col = divmod(token, 3)
            square = x[:, :, 2 * row : 2 * row + 2, 2 * col : 2 * col + 2]
            assert_close(values[:, token], square.flatten(1))
    else:
        for token in range(3):  # the first two steps fit no patch
            assert_close(values[:, token], x[:, 2 + 4 * token : 6 + 4 * token].flatten(1))
    assert torch.equal(join(values, x, tokens), x)


@pytest.mark.parametrize("data", [IMAGE, SERIES])
@pytest.mark.parametrize("rate", [0.01, 0.34, 0.6, 0.99])
def test_a_share_of_the_patches_is_hidden(data: DataSpec, rate: float) -> None:
    task, x = objective(data, rate=rate), inputs(data, 500)
    batch = task.prepare(Batch(x), 3)
    assert batch.hidden is not None
    assert isinstance(batch.target, Tensor)
    count = max(1, round(rate * batch.hidden.shape[1]))
    assert batch.hidden.sum(1).eq(count).all()
    true, seen = cut(x, task.layout), cut(batch.inputs, task.layout)
    assert_close(batch.target[batch.hidden], true[batch.hidden])
    assert batch.target[~batch.hidden].isnan().all()
    assert_close(seen[~batch.hidden], true[~batch.hidden])
    erased = seen[batch.hidden]
    assert erased.isnan().all() if data is SERIES else erased.eq(0).all()
    share = batch.hidden.float().mean(0)
    assert_close(share, torch.full_like(share, count / len(share)), rtol=0, atol=0.1)


def drawn(task: Restore, order: Tensor, key: int | None) -> Tensor:
    x = inputs(size=40)
    hidden = task.prepare(Batch(x[order], sample=order), key).hidden
    assert hidden is not None
    return hidden


def test_the_selection_is_a_hash_of_key_and_sample() -> None:
    task, order = objective(), torch.arange(40)
    whole = drawn(task, order, 7)
    shuffled = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drawn(task, shuffled, 7), whole[shuffled])
    assert torch.equal(drawn(task, order[5:7], 7), whole[5:7])
    assert not torch.equal(drawn(task, order, 8), whole)
    assert torch.equal(drawn(task, order, None), drawn(task, order, None))
    assert len(whole.unique(dim=0)) > 10


class PerBatch(Restore):
    """Planted: draws by the index in the batch."""

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        return super().prepare(replace(batch, sample=None), key)


def test_the_planted_selection_per_batch_is_caught() -> None:
    task = PerBatch()
    task.tokens(Patch(size=2).spec(IMAGE))
    assert not torch.equal(drawn(task, torch.arange(40)[5:7], 7), drawn(task, torch.arange(40), 7)[5:7])


def test_noise_is_normal_and_its_target_the_clean_input() -> None:
    task, x = objective(rate=0, noise=0.5), inputs(size=2000)
    batch = task.prepare(Batch(x), 1)
    assert batch.hidden is None
    assert_close(batch.target, cut(x, task.layout))
    noise = (batch.inputs - x).flatten() / 0.5
    for power, moment in enumerate((0.0, 1.0, 0.0, 3.0), start=1):
        assert noise.pow(power).mean().item() == pytest.approx(moment, abs=0.05)
    assert torch.equal(task.prepare(Batch(x[5:6], sample=torch.tensor([5])), 1).inputs, batch.inputs[5:6])
    assert not torch.equal(task.prepare(Batch(x), 2).inputs, batch.inputs)


def test_missing_values_are_neither_predicted_nor_counted() -> None:
    for normalise in ("none", "patch"):
        task, x = objective(SERIES, normalise=normalise), inputs(SERIES)
        x[:, 5, 1] = x[:, 9, 0] = torch.nan
        batch = task.ready(Batch(x, sample=torch.arange(8)), 1)
        assert batch.hidden is not None
        assert task.count(batch) == int((~cut(x, task.layout)[batch.hidden].isnan()).sum())
        prediction = torch.zeros_like(batch.target, requires_grad=True)
        loss = task.loss(prediction, batch.target)
        loss.backward()
        assert loss.isfinite()
        assert prediction.grad is not None
        assert prediction.grad[batch.target.isnan()].eq(0).all()
        assert_close(loss.detach(), batch.target.square().nanmean())


@pytest.mark.parametrize("norm_pix_loss", [False, True])
def test_the_loss_is_that_of_masked_autoencoders_in_transformers(norm_pix_loss: bool) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    decoder = {f"decoder_{name}": value for name, value in sizes.items()}
    images = {"image_size": 8, "patch_size": 2, "num_channels": 3, "norm_pix_loss": norm_pix_loss}
    theirs = ViTMAEForPreTraining(ViTMAEConfig(**sizes, **decoder, **images, mask_ratio=0.75)).double().eval()
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    output = theirs(pixel_values=x, noise=torch.rand(4, 16, generator=torch.Generator().manual_seed(1)))
    task = Restore(rate=0.75, normalise="patch" if norm_pix_loss else "none")
    task.tokens(Patch(size=2).spec(DataSpec("image", (3, 8, 8))))
    hidden = output.mask.bool()
    target = task._normalised(cut(x, task.layout)).masked_fill(~hidden[..., None], torch.nan)
    logits = output.logits.unflatten(2, (2, 2, 3)).movedim(4, 2).flatten(2)  # they have channels last
    assert_close(task.loss(logits, target), output.loss)
    assert hidden.sum(1).eq(12).all()


def test_psnr_is_that_of_torchmetrics() -> None:
    values = [torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(seed)) + seed for seed in range(3)]
    low, high = float(torch.stack(values).min()), float(torch.stack(values).max())
    ours, theirs = PeakSignalToNoise(), PeakSignalNoiseRatio(data_range=high - low)
    for x in values:
        noisy = x + 0.1 * torch.randn_like(x)
        theirs.update(noisy, x)
        for part in range(2):  # all values, in two updates with gaps
            where = torch.arange(6) % 2 == part
            ours.update(noisy, x.masked_fill(where, torch.nan))
    assert_close(ours.compute(), theirs.compute())


def test_simple_predictions_have_the_errors_of_their_formulas() -> None:
    parts = components(*DIGITS)
    split = parts.data.load(parts.tokenizer).validation
    parts.tokens()
    task = parts.objective
    assert isinstance(task, Restore)
    baselines = task.baselines(split)
    x = split.batch(torch.arange(len(split)), None).inputs
    values = cut(x, task.layout)
    hidden = uniform(0, torch.arange(len(split)), 16).T.argsort(1).argsort(1) < 10
    visible = torch.stack([each[~where].mean() for each, where in zip(values, hidden, strict=True)])
    expected = {"mean": torch.zeros(()), "average": values.mean(0), "visible": visible[:, None, None]}
    assert baselines.keys() == expected.keys()
    for name, prediction in expected.items():
        error = (values - prediction).square()[hidden].mean()
        assert baselines[name]["mse"] == pytest.approx(float(error), rel=MEAN)
    noisy = objective(rate=0, noise=0.5)
    noisy.tokens(parts.tokenizer.spec(parts.data.spec))
    assert noisy.baselines(split)["input"]["mse"] == pytest.approx(0.25, rel=0.05)


def test_two_processes_evaluate_as_one() -> None:
    parts = components(*DIGITS, "data.train_size=64")
    split = parts.data.load(parts.tokenizer).validation
    model, task = stirred(parts).float(), parts.objective
    parts.tokens()
    one = evaluate(model, split, task, batch_size=64)
    metrics = [task.metrics() for _ in range(2)]
    for step in range(-(-len(split) // 64)):
        for rank in range(2):
            order = eval_indices(step, num_samples=len(split), batch_size=64, rank=rank, world=2)
            batch = task.ready(take(split, order, None))
            with torch.no_grad():
                prediction = model(batch)
            for metric in metrics[rank].values():
                metric.update(prediction, batch.target)
    totals = [sum(part["mse"].total for part in metrics), sum(part["mse"].count for part in metrics)]
    assert float(totals[0] / totals[1]) == pytest.approx(one["mse"], rel=MEAN)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((*DIGITS, "model=decoder"), "objective=restore needs a bidirectional model"),
        ((*DIGITS, "head=mean_pool"), "needs one prediction per token"),
        ((*TASK, "data=digits", "tokenizer=timm"), "the tokens of tokenizer=timm share theirs"),
        ((*CO2, "tokenizer.pad_end=true"), "share theirs: tokenizer.stride=SIZE tokenizer.pad_end=false"),
        ((*CO2, "tokenizer.stride=4"), "share theirs: tokenizer.stride=SIZE"),
        (
            (*TASK, "data=co2", "tokenizer=series_channel", "position=none"),
            "the tokens of tokenizer=series_channel share theirs",
        ),
        ((*TASK, "data=code", "tokenizer=byte"), "objective=restore is for images and series"),
        ((*DIGITS, "objective.rate=0"), "either patches are hidden or noise is added"),
        ((*DIGITS, "objective.noise=1"), "either patches are hidden or noise is added"),
        ((*DIGITS, "objective.rate=1"), "objective.rate"),
        ((*TASK, "data=digits", "tokenizer=pixel", "objective.normalise=patch"), "needs patches of several values"),
    ],
)
def test_what_cannot_be_restored_is_refused(overrides: tuple[str, ...], message: str) -> None:
    issues = check(compose(overrides))
    assert any(message in str(issue) for issue in issues), [str(issue) for issue in issues]


@pytest.mark.parametrize("normalise", ["none", "patch"])
def test_true_predictions_restore_the_inputs(normalise: str) -> None:
    task, x = objective(normalise=normalise), inputs()
    batch, true = task.prepare(Batch(x), 3), cut(x, task.layout)
    if normalise == "patch":
        true = (true - true.mean(2, keepdim=True)) / (true.var(2, keepdim=True) + 1e-6).sqrt()
    assert not torch.equal(batch.inputs, x)
    assert_close(task.restored(true, batch, x), x)
