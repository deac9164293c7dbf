"""The length of a run: the limit that ends its training, and the steps until then where they are known before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blockyard.engine import cost_card
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.setup_data import DataSetup, RunSetup
from blockyard.engine.setup_model import BuiltModel
from blockyard.engine.trainer import UNLIMITED, TrainerPlan


@dataclass(frozen=True)
class StepBudget:
    """The limits of a run.

    limits: the options that count steps, each with the steps after which it ends the run
    step_flops: training FLOPs of a step, counted where an option is a number of FLOPs
    """

    options: TrainerPlan
    limits: Mapping[str, int]
    step_flops: int | None = None

    @property
    def total(self) -> int:
        """The most steps of the run; `UNLIMITED` where time alone ends it."""
        return min(self.limits.values(), default=UNLIMITED)

    @property
    def remark(self) -> str | None:
        """A sentence where `max_epochs` ends the run before another limit that was set; None otherwise."""
        epochs = self.options.max_epochs
        others = [name for name, steps in self.limits.items() if steps > self.total]
        if epochs is None or not others or self.limits["max_epochs"] > self.total:
            return None
        return (
            f"trainer.max_epochs={epochs} ends this run after {self.total} steps, before "
            f"{' and '.join(map(self._option, others))}; trainer.max_epochs=null takes all of them"
        )

    def ended_by(self, state: RunState) -> str:
        """Return why a finished run ended: the reason of a callback, or the limit that it reached."""
        if state.stop is not None:
            return state.stop
        if state.out_of_time:
            return self._option("max_seconds")
        return self._option(min(self.limits, key=lambda name: self.limits[name]))

    def _option(self, name: str) -> str:
        value = getattr(self.options, name)
        return f"trainer.{name}={value:g}" if isinstance(value, float) else f"trainer.{name}={value}"


def step_budget(run: RunSetup, data: DataSetup, model: BuiltModel) -> StepBudget:
    """Return the limits of a run. Raises UserError where the FLOPs are less than those of a step."""
    step_flops = None
    if run.options.max_flops is not None:
        step_flops = count_step_flops(run, data, model)
    return StepBudget(run.options, run.options.step_limits(data.layout.steps_per_epoch, step_flops), step_flops)


def count_step_flops(run: RunSetup, data: DataSetup, model: BuiltModel) -> int:
    """Return the training FLOPs of a step, counted as in the summary of a run."""
    sample = cost_card.two_samples(data.splits.train, run.components.data)
    flops = cost_card.flops_per_sample(
        model.model, run.components.objective, sample, model.teacher, compiled=run.options.compile
    )
    return flops["training"] * data.layout.batch_size
