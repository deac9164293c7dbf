"""Objective: the target of a batch, the loss and the metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from blockyard.contracts.baselines import Baselines
from blockyard.contracts.batch import Batch, Target
from blockyard.contracts.option_types import ChoiceOptions
from blockyard.contracts.specs import DataSpec, TokenSpec
from blockyard.contracts.splits import Split, Splits

if TYPE_CHECKING:
    import torchmetrics


def source_as_input(batch: Batch) -> Batch:
    """Return the batch of a model that reads the source alone: the source as inputs, the inputs as target.

    target: of the data if it has one, or else the inputs, with padding ignored
    """
    if batch.source is None:
        raise ValueError("the model reads the source, and the batch has none")
    target = batch.target
    if target is None:
        target = batch.inputs
        if batch.lengths is not None:
            padding = torch.arange(target.shape[1], device=target.device) >= batch.lengths[:, None]  # (B, N)
            target = target.masked_fill(
                padding.reshape(*padding.shape, *[1] * (target.ndim - 2)),
                float("nan") if target.is_floating_point() else Batch.ignore,
            )
    return replace(
        batch, inputs=batch.source, lengths=batch.source_lengths, target=target, source=None, source_lengths=None
    )


def ignored(target: Target, dummy: Tensor) -> Target:
    """Return the target with the first tensor's samples `dummy` (B,) ignored; other tensors stay as they are."""
    if not isinstance(target, Tensor):
        return target._replace(**{target._fields[0]: ignored(target[0], dummy)})
    if not target.is_floating_point() and target.dtype not in (torch.int16, torch.int32, torch.int64):
        raise ValueError(f"targets of dtype {target.dtype} have no value for a sample that does not count; use int64")
    value = float("nan") if target.is_floating_point() else Batch.ignore
    return target.masked_fill(dummy.reshape(-1, *[1] * (target.ndim - 1)), value)


@dataclass(frozen=True)
class Distillation:
    """A trained model with predictions that are targets of a loss too.

    teacher: a run, or a model of a library; sha256: of its config and weights, None if they are not known yet
    temperature: of both models' predictions; weight: the share of the loss that compares them
    """

    teacher: str
    sha256: str | None
    temperature: float
    weight: float


class TorchMetric(ABC):  # noqa: B024 - classes are recognised, none is derived from it
    """Any class that derives from `torchmetrics.Metric`. It is known by its name, as importing torchmetrics is slow."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return any(f"{base.__module__}.{base.__name__}" == "torchmetrics.metric.Metric" for base in other.__mro__)


class Objective(ABC):
    """The task of a model: its target, its loss and its metrics."""

    needs_causal: ClassVar[bool | None] = None  # True, False, or None where either will do
    takes: ClassVar[str]  # "token", "sequence", "mixture" or "contrast": what the head must give
    target: ClassVar[str | None] = None  # what the data must provide; None where it is made here
    modality: ClassVar[str | tuple[str, ...] | None] = None  # the only one that it takes, or those, or None
    patches: ClassVar[bool] = False  # it predicts the values of patches: `TokenSpec.patch`
    predicts_next: ClassVar[bool] = False  # it predicts the id of the token that follows each one
    reads_start: ClassVar[bool] = False  # it predicts real values that follow a start token of the tokenizer's
    fills_gaps: ClassVar[bool] = False  # it predicts hidden tokens, at any share of them, and so can write text
    needs_source: ClassVar[bool] = False  # it predicts one sequence from another
    source_modality: ClassVar[str | None] = None  # the only one of a source that it takes, or None
    # What the model reads: the data's own sequence ("row"), beside a source if the model takes one; or the source as
    # its only sequence ("source"). The data's own sequence is then the target.
    reads: ClassVar[Literal["row", "source"]] = "row"
    own_position: bool = False  # it predicts tokens at their own positions; see `needs_strict`
    mixes: bool = False  # training batches go through `mix`
    distillation: Distillation | None = None  # a teacher, with whose predictions `distilled` compares
    causal: bool = False  # whether the model is, set where both are built

    @classmethod
    def needs_strict(cls, options: ChoiceOptions) -> bool:
        """Return whether, under these options, it predicts tokens at their own positions, unread by the model."""
        return False

    @abstractmethod
    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return V, the width of the head. data, tokens: of the data's own sequence, whatever the model reads."""

    @property
    def takes_projection(self) -> bool:
        """Return whether `loss` takes an `ops.projection.Projection` in place of logits too; False by default."""
        return False

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens of the data's own sequence: the tokenizer's, and additional ones of this objective.

        Called again when the tokenizer has learned its vocabulary, and before any `prepare`.
        """
        return tokens

    def check_outputs(self, outputs: int) -> None:  # noqa: B027 - most objectives work with any
        """Raise ValueError if the options do not fit the width of the head. outputs: from `Objective.outputs`"""

    def source_tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens of a source that is the model's only input, as this objective changes them.

        Called like `tokens`, if `reads` is "source".
        """
        return tokens

    def learn(self, train: Split) -> None:  # noqa: B027 - most objectives need nothing
        """Learn the making of targets from the training split; deterministic. Called when the split is loaded."""

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch for the model and the loss. Everything random in it is a hash of (key, sample).

        Targets that do not count hold `Batch.ignore` (integers) or NaN (floats).
        key: in training a number that depends on (seed, epoch, step) alone, the same in every process
            and for every micro-batch of a step; None draws the same for a sample every time, so that
            evaluation gives the same values whenever and however it is run
        """
        return batch

    def mix(self, batch: Batch, partner: Batch, key: int) -> Batch:
        """Return a prepared training batch, or a part of one, mixed with other samples of the same batch.

        partner: as many samples, prepared, one for each; key: as in `prepare`, the same for all parts of a batch
        """
        return batch

    def ready(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the prepared batch, in which every target of a dummy sample (index -1) is ignored.

        Training and evaluation call this, and objectives override `prepare`. Raises ValueError for a dummy with a
        target that has no value for "ignored".
        """
        prepared = self.prepare(source_as_input(batch) if self.reads == "source" else batch, key)
        if batch.sample is None or prepared.target is None:
            return prepared
        dummy = batch.sample < 0  # (B,)
        if dummy.device.type == "cpu" and not bool(dummy.any()):  # elsewhere, asking would wait for the device
            return prepared
        return replace(prepared, target=ignored(prepared.target, dummy))

    def count(self, batch: Batch) -> int:
        """Return the number of targets that count in a prepared batch, the weight of a micro-batch."""
        assert batch.target is not None
        return int(_counted(batch.target).sum())

    def any_target(self, target: Any) -> Tensor:
        """Return whether any target of a prepared batch counts, a bool scalar on its device."""
        return _counted(target).any()

    def remarks(self, splits: Splits) -> Iterator[str]:
        """Yield remarks for the user on the splits before training, a sentence each; none by default.

        Called when the model is built. Raises ValueError if nothing can be learned from them.
        """
        return iter(())

    @abstractmethod
    def loss(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the mean loss, a scalar, in nats for a likelihood.

        prediction: (B, V) or (B, N, V); target: `batch.target` from `prepare`: a tensor, or a named tuple of tensors
            that only this objective reads
        """

    def distilled(self, loss: Tensor, prediction: Any, teacher: Tensor, target: Any) -> Tensor:
        """Return the training loss beside a teacher, if `distillation` names one.

        loss: of (prediction, target), from `loss`; teacher: the teacher's prediction for the same batch
        """
        raise NotImplementedError(f"{type(self).__name__} has no teacher")

    @abstractmethod
    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return new metrics for one pass over a split, updated with (prediction, target).

        `split` may have facts that a metric needs, such as `bytes_per_token` of a text.
        """

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return rules and simple models, with the metrics that each reaches over `split`; none by default.

        train: the training split; without it, models that must be fitted on it are left out
        """
        return Baselines()

    @abstractmethod
    def best(self) -> tuple[str, str]:
        """Return the validation metric that selects a checkpoint, and "min" or "max"."""

    def directions(self, split: Split | None = None) -> dict[str, str]:
        """Return the better direction of each metric, "min" or "max", from its class' `higher_is_better`.

        A metric that declares none is left out; the metric of `best` is always there.
        """
        declared = {name: metric.higher_is_better for name, metric in self.metrics(split).items()}
        directions = {name: "max" if better else "min" for name, better in declared.items() if better is not None}
        name, mode = self.best()
        return {**directions, name: mode}


def _counted(target: Any) -> Tensor:
    """Return a bool for each target that counts; the first tensor of a named tuple decides."""
    return Batch.counted(target if isinstance(target, Tensor) else target[0])


def any_split(**facts: Any) -> Any:
    """Return a stand-in for a split, with `facts` and every fact on which metrics depend, to ask for their names."""
    lost = {"reconstruction_mse": 0.0, "reconstruction_lsd": 0.0}
    return SimpleNamespace(**{"bytes_per_token": 1.0, "units": ("dim", "code"), **lost, **facts})


@runtime_checkable
class Forecaster(Protocol):
    """An objective for models that continue series."""

    def forecast(self, model: nn.Module, history: Tensor, horizon: int) -> Tensor:
        """Return the steps (B, horizon, C) that follow a history (B, steps, C), both in the units of the inputs."""


@runtime_checkable
class Transcriber(Protocol):
    """An objective for models that write the text of a source in one forward pass, without a decoder."""

    def transcribe(self, prediction: Tensor, tokens: Tensor, beam: int | None = None) -> list[list[int]]:
        """Return token ids. prediction: (B, N, V); tokens: (B,), of each source; beam: of a search, or None"""


@runtime_checkable
class DrawsValues(Protocol):
    """An objective for models that write images as tokens of real values."""

    def draw(self, prediction: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
        """Return the next token (V,) int64, drawn from the prediction of one token."""


def writes_from_source(spec: DataSpec, objective: Objective) -> bool:
    """Return whether a model over such data writes the target of a source: token by token, or all at once."""
    of_source = spec.joined or (spec.source is not None and objective.needs_source)
    return of_source or isinstance(objective, Transcriber)
