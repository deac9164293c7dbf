"""The interface of a callback. Its hooks run when metrics are logged or evaluated; `on_step` alone at every step.

A callback that needs more of a step is a `pytorch_lightning.Callback`; both kinds are named in `conf/callbacks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from blockyard.contracts import Split, StepOrder
    from blockyard.engine.growth import Growth
    from blockyard.engine.module import Learner

_UNTIMED = 1_000  # steps that a run of so many seconds is taken to have before its first one, for the warm-up
# What a callback saves of itself with a run and restores, as torch calls it: plain data, under names of its own.
StateDict = dict[str, Any]


@dataclass
class RunState:
    """A run in progress, as callbacks see it.

    step: steps done; total: steps planned, the most where `max_seconds` may end the run before
    steps_per_epoch: steps in an epoch
    batch_size: samples in a step, over all processes; tokens: of one sample; growth: where the first steps have fewer
    planned: the samples that each step takes of the parts of a mixture, or None
    log_every: steps between two rows of training metrics
    modality: of the data; monitor: the validation metric that selects the best weights, and "min" or "max"
    main: whether this process writes files; validation: the split itself, for callbacks that look at samples
    stop: set it to a reason to end the run early, after this step
    pause: set it to a reason to leave the run here, saved and unfinished, for another process to resume
    seconds: spent training so far, without evaluation and saving; max_seconds: after which the run ends, or None
    best: validation metrics of the best weights so far
    flops_per_sample: FLOPs of training on one sample, where a callback asks for them and the peak is known
    peak_flops: peak of all devices of the run together, in FLOP/s, where it is known
    """

    learner: Learner
    name: str
    checkpoints: Path
    total: int
    steps_per_epoch: int
    batch_size: int
    tokens: int
    modality: str
    monitor: tuple[str, str]
    main: bool = True
    validation: Split | None = None
    step: int = 0
    start_step: int = 0
    seconds: float = 0.0
    max_seconds: float | None = None
    stop: str | None = None
    pause: str | None = None
    best: dict[str, float] = field(default_factory=dict)
    growth: Growth | None = None
    planned: StepOrder | None = None
    log_every: int = 1
    flops_per_sample: int | None = None
    peak_flops: float | None = None

    @property
    def seen(self) -> tuple[int, int]:
        """The samples and the tokens of all steps so far."""
        if self.growth is not None:
            return self.growth.seen(self.step)
        samples = self.step * self.batch_size
        return samples, samples * self.tokens

    @property
    def out_of_time(self) -> bool:
        """Return whether the run has trained for `max_seconds`."""
        return self.max_seconds is not None and self.seconds >= self.max_seconds

    @property
    def complete(self) -> bool:
        """Return whether the run has trained as long as it was to: all its steps, or all its seconds."""
        return self.step >= self.total or self.out_of_time

    @property
    def last_step(self) -> int:
        """The number of the last step; the most that it may be where the time is not over."""
        return self.step if self.complete else self.total

    @property
    def finished(self) -> bool:
        """Return whether training is over: the run is complete, or a stated reason ended it.

        Nothing else makes a run done.
        """
        return self.complete or bool(self.stop)

    def expected_total(self, step: int) -> int:
        """Return the steps of the run as they are known before step `step`; more than `step`, unless `total` is less.

        With `max_seconds` they are those at the mean pace so far, so that `step` over this number is the share of the
        seconds that is over. Before the first step no pace is known.
        """
        if self.max_seconds is None:
            return self.total
        expected = _UNTIMED
        if self.seconds:
            expected = round(step * self.max_seconds / self.seconds)
        return min(self.total, max(expected, step + 1))


class RunCallback:
    """Base class of the callbacks. Every hook does nothing unless it is overridden.

    priority: callbacks of a lower one are called first
    incidental: options that are not part of a run's identity; "*" for a callback that only observes
    averages: it keeps other weights of the model. `in_place` puts them into it; they are evaluated and tested too,
        and their metrics end in @ and the callback's name. Its state has them as "average"
    selects: the best step is selected by the metric of these weights
    """

    incidental: ClassVar[frozenset[str]] = frozenset()
    priority: ClassVar[int] = 0
    averages: ClassVar[bool] = False
    selects: bool = False

    def model_problems(self, model: nn.Module, trainer: Any) -> list[str]:
        """Return the problems of this callback with a built model, on the meta device, and with the trainer's options.

        One sentence each; a run with such a problem is refused before it starts. trainer: the component of that name
        """
        return []

    def on_run_start(self, state: RunState) -> None:
        """Called before the first step, also of a resumed run."""

    def on_step(self, state: RunState) -> None:
        """Called after every step. It costs nothing where it is not overridden."""

    def in_place(self) -> AbstractContextManager[None]:
        """Put the other weights into the model for a while."""
        return nullcontext()

    def metrics(self, state: RunState) -> Mapping[str, float | Tensor]:
        """Return more columns for the metrics about to be logged: numbers, or scalars on a device."""
        return {}

    def on_log(self, state: RunState, values: dict[str, float]) -> None:
        """Called after the training metrics of `state.step` were logged."""

    def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
        """Called with the validation metrics of `state.step`; their names have the prefix val/."""

    def on_run_end(self, state: RunState) -> None:
        """Called after the last step, also after an error."""

    def state_dict(self) -> StateDict:
        """Return the state that a resumed run needs, as plain data."""
        return {}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the state that `state_dict` returned."""
