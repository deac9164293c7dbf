"""Masked patches: the squared error of values that are hidden from the model or covered by noise.

Source: Xie et al. 2022, SimMIM (arXiv 2111.09886), sections 3.2 to 3.4; He et al. 2022, Masked Autoencoders Are
    Scalable Vision Learners (arXiv 2111.06377), section 3, for normalise=patch; for series Nie et al. 2023, PatchTST
    (arXiv 2211.14730), section 3.2; for noise Vincent et al. 2010, Stacked Denoising Autoencoders (JMLR 11), section 3
Reference: transformers ViTMAEForPreTraining.forward_loss
Equation: mean over the values v of hidden patches of (prediction_v - v)^2; with normalise=patch v is
    (v - mean) / sqrt(variance + 1e-6) of its patch, with the unbiased variance

    image     a b c d      a share `rate` of the patches of each sample, at least one, chosen anew in each step
    model     a . . d      reads the mask token there, and neither value nor features of the hidden patches
    target    . b c .

The hidden patches and the noise are hashes of the step's key and the sample's index; in evaluation they are fixed for
each sample. In contrast to the masked autoencoder, the encoder reads the mask tokens, as in SimMIM and BERT.

Baselines that need no training are computed beside every run: `mean` predicts the mean of the training split, which is
zero in standardized data; `average` the mean of every value over the evaluated split itself, unseen by models;
`visible` the mean of the values that the model may read; with noise, `input` its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from blockyard.contracts import Baselines, Batch, DataSpec, NonNegative, Objective, Split, TokenSpec
from blockyard.data.splits.hash import normal, uniform
from blockyard.data.splits.order import take
from blockyard.objective._baselines import BATCH, MAX_RULED_SAMPLES, chosen, rules
from blockyard.objective._patches import cut, erase, floats, join, mean_squared, patch_size

if TYPE_CHECKING:
    import torchmetrics

Share = Annotated[float, Ge(0), Lt(1)]


class Restore(Objective):
    """Predicts the values of hidden patches from the others, or values under noise; requires a bidirectional model.

    Options:
        rate: share of hidden patches of a sample
        noise: standard deviation of normal noise on all inputs, with rate=0
        normalise: patch takes the mean and standard deviation of each patch out of the target
    """

    needs_causal = False
    takes = "token"
    modality = ("image", "series")
    patches = True

    def __init__(
        self, *, rate: Share = 0.6, noise: NonNegative = 0.0, normalise: Literal["patch", "none"] = "none"
    ) -> None:
        if (rate > 0) == (noise > 0):
            raise ValueError(
                f"objective.rate={rate} and objective.noise={noise}: either patches are hidden or noise is added; use "
                "rate=0 with noise=0.5, or rate=0.6 with noise=0"
            )
        self.rate = rate
        self.noise = noise
        self.normalise = normalise
        self._tokens: TokenSpec | None = None

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens, hideable, and with predictions in the units of the inputs or of each patch."""
        self._tokens = replace(tokens, hides=self.rate > 0, rescaled=self.normalise == "none")
        return self._tokens

    @property
    def layout(self) -> TokenSpec:
        """The tokens with predicted values."""
        assert self._tokens is not None, "tokens() comes before prepare()"
        return self._tokens

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per value of a patch. Raises ValueError for tokens without values of their own."""
        values = patch_size("restore", data, tokens)
        if self.normalise == "patch" and values == 1:
            raise ValueError("objective.normalise=patch needs patches of several values; use normalise=none")
        return values

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch without the values of hidden patches, `hidden` (B, N), and its target (B, N, V).

        The target is NaN for visible patches and missing values.
        """
        inputs = floats(batch.inputs)
        target = self._normalised(cut(inputs, self.layout))  # (B, N, V)
        sample = batch.numbers()
        key = 0 if key is None else key
        if not self.rate:
            draws = uniform(key, sample, 2 * inputs[0].numel()).T.reshape(*inputs.shape, 2)
            noisy = inputs + self.noise * normal(draws).to(inputs.dtype)
            return replace(batch, inputs=noisy, target=target)
        hidden = self._select(uniform(key, sample, target.shape[1]).T)
        target = target.masked_fill(~hidden[..., None], float("nan"))
        return replace(batch, inputs=erase(inputs, hidden, self.layout), target=target, hidden=hidden)

    def _select(self, scores: Tensor) -> Tensor:
        """Return a mask of the tokens with the lowest scores (B, N): an exact share `rate` of each sample."""
        # All samples then weigh alike in the loss.
        count = max(1, round(self.rate * scores.shape[1]))
        return scores.argsort(1).argsort(1) < count

    def _normalised(self, values: Tensor) -> Tensor:
        """Return the values (B, N, V), with normalise=patch without the mean and size of their patch."""
        if self.normalise == "none":
            return values
        mean, size = _moments(values)
        return (values - mean) / size

    def restored(self, prediction: Tensor, batch: Batch, inputs: Tensor) -> Tensor:
        """Return a prediction of a prepared batch in the shape of its inputs. Visible values stay.

        inputs: the inputs before `prepare`; they give the moments of each patch with normalise=patch
        """
        values = cut(floats(inputs), self.layout)
        if self.normalise == "patch":
            mean, size = _moments(values)
            prediction = prediction * size + mean
        if batch.hidden is not None:
            prediction = prediction.where(batch.hidden[..., None], values)
        return join(prediction, floats(inputs), self.layout)

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the mean squared error over known values. prediction: (B, N, V); target: (B, N, V) with NaN."""
        return mean_squared(prediction, target)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return mean squared error and, in the units of the inputs, peak signal-to-noise ratio in decibels."""
        from blockyard.objective._errors import MeanSquared, PeakSignalToNoise

        mse = MeanSquared()
        if self.normalise == "patch":
            return {"mse": mse}
        return {"mse": mse, "psnr": PeakSignalToNoise()}

    def best(self) -> tuple[str, str]:
        """Return the lowest squared error as the best one."""
        return "mse", "min"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return rules that need no training, with the patches and the noise of an evaluation."""
        average = cache(lambda: _average(split, self))

        def predict(batch: Batch) -> Iterator[tuple[str, Tensor]]:
            yield from simple_predictions(batch, self)
            if self.normalise == "none":
                yield "average", average().expand(len(batch), -1, -1)

        first = self.ready(take(split, torch.zeros(1, dtype=torch.long), None))
        return Baselines(rules(split, self, [name for name, _ in predict(first)], predict))


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and size of each patch of values (B, N, V), both (B, N, 1), without missing values."""
    mean = values.nanmean(2, keepdim=True)
    count = (~values.isnan()).sum(2, keepdim=True)
    variance = (values - mean).square().nansum(2, keepdim=True) / (count - 1).clamp_min(1)
    return mean, (variance + 1e-6).sqrt()


def simple_predictions(batch: Batch, objective: Restore) -> Iterator[tuple[str, Tensor]]:
    """Yield names and predictions (B, N, V) of the rules that read only a prepared batch."""
    assert isinstance(batch.target, Tensor)
    yield "mean", torch.zeros_like(batch.target)
    if objective.normalise == "patch":
        return  # the mean of each hidden patch is taken out of its target
    visible = cut(batch.inputs, objective.layout)  # (B, N, V)
    if batch.hidden is None:
        yield "input", visible
        return
    visible = visible.masked_fill(batch.hidden[..., None], float("nan"))
    yield "visible", visible.nanmean((1, 2), keepdim=True).nan_to_num().expand_as(batch.target)


def _average(split: Split, objective: Restore) -> Tensor:
    """Return the mean of every value (N, V) over the samples of a split that have it."""
    total = torch.zeros(())
    count = torch.zeros(())
    for order in chosen(split, MAX_RULED_SAMPLES).split(BATCH):
        values = cut(floats(split.batch(order, None).inputs), objective.layout).double()  # (B, N, V)
        total = total + values.nansum(0)
        count = count + (~values.isnan()).sum(0)
    return (total / count.clamp_min(1)).float()
