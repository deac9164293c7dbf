"""Patch density: the likelihood of patches of gray levels under mixtures of densities, given the patches before.

Source: Tschannen et al. 2024, GIVT: Generative Infinite-Vocabulary Transformers (arXiv 2312.02116), section 3.2; for
    uniform dequantisation Ho et al. 2019, Flow++ (arXiv 1902.00275), section 3.1; for probabilities of levels
    Salimans et al. 2017, PixelCNN++ (arXiv 1701.05517), section 2.1
Reference: torch.distributions.MixtureSameFamily
Equation: -1/V log p(x_n + u | x_1 .. x_{n-1}), mean over all patches, with x of L levels 0 .. L - 1 and
    u uniform in [0, 1): an upper bound on the bits that the levels need under the same model; with dequantise=none
    -1/V log P(x_n | x_1 .. x_{n-1}), the mass from x to x + 1, which is exact

    sequence   S a b c      patches as the tokenizer orders them, behind a start token
    inputs     S a b        levels
    target     a b c        levels plus u, or plus 1/2

u is a hash of the step's key and the sample's index; in evaluation it is fixed for each sample. Baselines that need no
training are computed beside every run: `uniform` gives all levels one probability, `independent` the frequencies of
each value of each patch alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Baselines, Batch, DataSpec, Objective, Split, TokenSpec
from blockyard.data.splits.hash import uniform
from blockyard.objective._baselines import of_image_tokens
from blockyard.objective._patches import patch_size

if TYPE_CHECKING:
    import torchmetrics

Kind: TypeAlias = Literal["normal", "logistic"]
OPEN = 1e6  # an edge so far away that nothing is beyond it; infinity has no gradient


class PatchDensity(Objective):
    """Predicts a density over each patch from the patches before it; requires a causal model and head=mixture.

    Options:
        density: the form of each component: normal, or logistic with heavier tails
        dequantise: uniform adds noise that makes levels continuous, as a density needs; none takes the probability
            of each level instead, from the distribution function
    """

    needs_causal = True
    takes = "mixture"
    modality = "image"
    patches = True
    reads_start = True

    def __init__(self, *, density: Kind = "logistic", dequantise: Literal["uniform", "none"] = "uniform") -> None:
        self.density: Kind = density
        self.dequantise = dequantise
        self._levels = self._values = 0

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return V, the values of a patch. Raises ValueError for tokens without values of their own, or levels."""
        values = patch_size("patch_density", data, tokens)
        if data.levels is None or not tokens.ahead:
            raise ValueError("objective=patch_density reads gray levels behind a start token: tokenizer=patch_values")
        self._levels, self._values = data.levels, values
        return values

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch of levels (B, N + 1, V) as inputs (B, N, V) and a target (B, N, V) float32, from 0 to L."""
        levels = batch.inputs[:, 1:]
        shift = torch.full((), 0.5, device=levels.device)
        if self.dequantise == "uniform":
            sample = batch.numbers()
            # Single precision rounds the largest draws to 1, and a level plus 1 is the next level.
            draws = uniform(0 if key is None else key, sample, levels[0].numel()).T.float().clamp_max(1 - 2**-12)
            shift = draws.reshape(levels.shape)
        return replace(batch, inputs=batch.inputs[:, :-1], target=levels + shift)

    def nats(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return minus the log likelihood of each patch (B, N), zero for a target of NaN.

        prediction: (B, N, K (1 + 2 V)); target: (B, N, V)
        """
        counted = Batch.counted(target).all(-1)  # (B, N)
        target = target.nan_to_num().float()
        mixture = mixture_of(prediction, self._values)
        size = 2 / self._levels  # size of a level in the units of the head, from -1 to 1
        if self.dequantise == "uniform":
            # A density in the units of the head, times the size of a level for each value, is one of levels.
            log = log_density(mixture, target * size - 1, self.density) + self._values * math.log(size)
        else:
            level = target.floor()
            low = torch.where(level <= 0, -OPEN, level * size - 1)
            high = torch.where(level >= self._levels - 1, OPEN, (level + 1) * size - 1)
            log = log_mass(mixture, low, high, self.density)
        return -log.masked_fill(~counted, 0.0)

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the mean nats of known values. prediction: (B, N, K (1 + 2 V)); target: (B, N, V) with NaN."""
        return self.nats(prediction, target).sum() / Batch.counted(target).sum()

    def draw(self, prediction: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
        """Return the levels (V,) int64 of a patch drawn from its prediction (K (1 + 2 V),).

        temperature: divides the log weights and multiplies the scales; 0 is the mean of the heaviest component
        """
        x = draw(mixture_of(prediction, self._values), self.density, temperature, generator)  # (V,), from -1 to 1
        return ((x + 1) * self._levels / 2).floor().clamp(0, self._levels - 1).long()

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss in nats, and bits, for each value of a pixel."""
        from blockyard.objective._metrics import Bits, MeanNats

        loss = MeanNats(self.nats)
        return {"loss": loss, "bits_per_dim": Bits(loss)}

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return rules that need no training."""
        return of_image_tokens(split, self)

    def best(self) -> tuple[str, str]:
        """Return the lowest loss as the best one."""
        return "loss", "min"


class MixtureDensity(NamedTuple):
    """A mixture of K densities over V values, independent of each other within a component.

    log p(x) = log sum_k pi_k prod_v f((x_v - mean_kv) / scale_kv) / scale_kv, f the standard normal or logistic density

    log_weight: (..., K), normalized
    mean, log_scale: (..., K, V)
    """

    log_weight: Tensor
    mean: Tensor
    log_scale: Tensor


def mixture_of(prediction: Tensor, values: int) -> MixtureDensity:
    """Return the mixture of a prediction of head=mixture: (..., K (1 + 2 V)), component by component."""
    parts = prediction.float().unflatten(-1, (-1, 1 + 2 * values))  # (..., K, 1 + 2 V)
    logit, mean, log_scale = parts.split([1, values, values], -1)
    return MixtureDensity(logit[..., 0].log_softmax(-1), mean, log_scale)


def log_density(mixture: MixtureDensity, x: Tensor, kind: Kind) -> Tensor:
    """Return the log density (...) of values x (..., V)."""
    z = (x[..., None, :] - mixture.mean) * (-mixture.log_scale).exp()  # (..., K, V)
    log_f = F.logsigmoid(z) + F.logsigmoid(-z)  # logistic
    if kind == "normal":
        log_f = -0.5 * (z.square() + math.log(2 * math.pi))
    return torch.logsumexp(mixture.log_weight + (log_f - mixture.log_scale).sum(-1), -1)  # (...)


def log_mass(mixture: MixtureDensity, low: Tensor, high: Tensor, kind: Kind) -> Tensor:
    """Return the log probability (...) of a bin for each value, from `low` to `high` (..., V); +-OPEN is an open end.

    Source: Salimans et al. 2017, PixelCNN++ (arXiv 1701.05517), section 2.1
    """
    inverse = (-mixture.log_scale).exp()  # (..., K, V)
    a, b = ((edge[..., None, :] - mixture.mean) * inverse for edge in (low, high))
    if kind == "normal":
        # By symmetry a bin of the upper tail is one of the lower tail: there differences of masses are exact.
        a, b = torch.where(a + b > 0, -b, a), torch.where(a + b > 0, -a, b)
        top = torch.special.log_ndtr(b)
        masses = top + _log_one_minus(torch.special.log_ndtr(a) - top)
    else:
        # sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - e^(a - b))
        masses = F.logsigmoid(b) + F.logsigmoid(-a) + _log_one_minus((low - high)[..., None, :] * inverse)
    return torch.logsumexp(mixture.log_weight + masses.sum(-1), -1)  # (...)


def _log_one_minus(x: Tensor) -> Tensor:
    """Return log(1 - exp(x)) of x < 0."""
    # A difference that rounding has made zero counts as a millionth, so that the result is finite.
    return torch.log(-torch.expm1(x.clamp_max(-1e-6)))


def draw(mixture: MixtureDensity, kind: Kind, temperature: float, generator: torch.Generator) -> Tensor:
    """Return values (V,) drawn from one mixture, (K,) and (K, V).

    temperature: divides the log weights and multiplies the scales; 0 is the mean of the heaviest component
    """
    log_weight, mean, log_scale = (part.cpu() for part in mixture)
    if temperature == 0:
        return mean[log_weight.argmax()]
    chosen = torch.multinomial((log_weight / temperature).softmax(-1), 1, generator=generator)[0]
    if kind == "normal":
        noise = torch.randn(mean.shape[1], generator=generator)
    else:
        noise = torch.rand(mean.shape[1], generator=generator).clamp(1e-6, 1 - 1e-6).logit()
    return mean[chosen] + temperature * log_scale[chosen].exp() * noise
