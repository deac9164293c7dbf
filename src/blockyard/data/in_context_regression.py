"""In-context regression: pairs of a vector and a number, and a last vector. Its number follows from the pairs.

Source: Garg et al. 2022, What Can Transformers Learn In-Context? A Case Study of Simple Function Classes
    (arXiv 2208.01066), section 3
Reference: torch.linalg.lstsq of the pairs, which stands beside every run

    step      0 ... n - 1    n                 every sample has a weight vector w of its own
    channels  x_i and y_i    x_n and 0         y_i = (w x_i + noise e_i) / sqrt(1 + noise^2)
    target                   y_n

Vectors and weights are normal, w / sqrt(dim) so that y has a variance of 1. With fewer pairs than `dim` the answer is
not determined; least squares of minimal norm is then the best linear guess, and 0 the best that ignores the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import (
    BatchSize,
    DataSpec,
    Length,
    NonNegative,
    Samples,
    Seed,
    SimpleModel,
    Splits,
    Tokenizer,
    Width,
)
from blockyard.data.files.digest import sha256
from blockyard.data.splits.columns import ColumnSplit
from blockyard.data.splits.hash import normal
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.order import mix
from blockyard.data.splits.synthetic import SampleRandom


class RegressionSplit(ColumnSplit):
    """One split. inputs: (n, examples + 1, dim + 1) float32; target: (n, 1) float32, of a variance of 1."""

    inputs: Tensor
    mean, std = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)

    def baselines(self) -> Iterator[SimpleModel]:
        """Yield least squares of each sample's own pairs."""

        def fit() -> Callable[[Tensor], Tensor]:
            return lambda order: least_squares(self.inputs[order])

        yield SimpleModel("least_squares", fit)


@dataclass(kw_only=True, eq=False)
class InContextRegression(LoadedData):
    """Series of pairs; a token is a step with tokenizer=series_patch, size=1, stride=1 and normalise=none.

    Options:
        dim: numbers of a vector
        examples: pairs of each sample; twice as many as `dim` determine the answer well
        noise: standard deviation of the noise on each number, beside a signal of 1
        samples: training samples, each with weights of its own
        eval_samples: samples of the validation split, and of the test split
        data_seed: seed of the samples; independent of the run's seed
    """

    dim: Width = 4
    examples: Length = 16
    noise: NonNegative = 0.0
    samples: Samples = 20_000
    eval_samples: Samples = 1_000
    data_seed: Seed = 0
    batch_size: BatchSize = 64
    eval_batch_size: BatchSize = 512

    @property
    def spec(self) -> DataSpec:
        """Series of one length with one number each."""
        return DataSpec("series", (self.examples + 1, self.dim + 1), target="values", values=(1,))

    def bytes_in_memory(self) -> int:
        """Return the size of all samples in float32."""
        return (self.samples + 2 * self.eval_samples) * (self.examples + 1) * (self.dim + 1) * 4

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Generate the splits. Each sample is a function of the seed and its number."""
        counts = self.sizes_of(self.samples, self.eval_samples)
        parts = [self._generate(part, count) for part, count in enumerate(counts)]
        self._fingerprint = sha256(tensor for part in parts for tensor in part)
        return Splits(*(RegressionSplit(*part) for part in parts))

    def _generate(self, part: int, count: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a split."""
        random = SampleRandom(mix(type(self).__name__, self.data_seed, part), torch.arange(count))
        steps = self.examples + 1
        dim = self.dim

        def normals(stream: str, *shape: int) -> Tensor:
            draws = random.uniform(stream, 2 * math.prod(shape))  # a normal number takes two uniform ones
            return normal(draws.view(count, *shape, 2))

        x = normals("vectors", steps, dim)  # (n, steps, dim)
        w = normals("weights", dim) / dim**0.5  # (n, dim)
        y = (x @ w[:, :, None])[:, :, 0]  # (n, steps)
        y = (y + self.noise * normals("noise", steps)) / (1 + self.noise**2) ** 0.5
        shown = torch.cat([y[:, :-1], torch.zeros_like(y[:, :1])], 1)
        return torch.cat([x, shown[:, :, None]], 2).float(), y[:, -1:].float()


def least_squares(inputs: Tensor) -> Tensor:
    """Return the predictions (B, 1) of least squares of minimal norm, from inputs (B, examples + 1, dim + 1)."""
    pairs = inputs.double()
    x = pairs[:, :-1, :-1]  # (B, examples, dim)
    y = pairs[:, :-1, -1:]  # (B, examples, 1)
    query = pairs[:, -1:, :-1]  # (B, 1, dim)
    return (query @ (torch.linalg.pinv(x) @ y))[:, 0].to(inputs.dtype)
