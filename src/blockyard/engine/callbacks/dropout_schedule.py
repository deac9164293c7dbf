"""Dropout and stochastic depth whose rates change during training.

Source: Liu et al. 2023, Dropout Reduces Underfitting (arXiv 2303.01500), early and late dropout; Morerio et al. 2017,
    Curriculum Dropout (arXiv 1703.06229), rates that grow
Reference: `drop_schedule` of the authors of the first (github.com/facebookresearch/dropout)
Equation: p_t = f(t) p, p of the config, f from `start` at step `begin` to `end` at step `until`

Early dropout is start=1 end=0 until=0.2; late dropout start=0 end=1 begin=0.2 until=0.2. The rates are those of every
torch dropout layer, and attributes `dropout` and `drop_path` of other modules that are numbers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from blockyard.contracts import CountOrZero
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.errors import UserError
from blockyard.schedule._warmup import check_length, progress, to_steps

Share = Annotated[float, Ge(0), Le(1)]
Point = CountOrZero | Share


class DropoutSchedule(RunCallback):
    """Multiplies every rate by a factor of the step.

    Options:
        start: factor up to step `begin`
        end: factor from step `until`
        begin: where the factor begins to change, in steps (an int) or as a share of the run (a float below 1)
        until: where it ends to change, likewise; 1.0 is the end of the run
        shape: linear between the two, or step, which goes from `start` to `end` at `until`
    """

    def __init__(
        self,
        *,
        start: Share = 1.0,
        end: Share = 0.0,
        begin: Point = 0,
        until: Point = 0.2,
        shape: Literal["linear", "step"] = "linear",
    ) -> None:
        check_length("callbacks.dropout_schedule.begin", begin)
        if not (isinstance(until, float) and until == 1.0):
            check_length("callbacks.dropout_schedule.until", until)
        if type(begin) is type(until) and begin > until:
            raise ValueError(f"callbacks.dropout_schedule.begin={begin} comes after until={until}; lower begin")
        self.start, self.end, self.begin, self.until, self.shape = start, end, begin, until, shape
        self._rates: list[tuple[nn.Module, str, float]] = []

    def factor(self, step: int, total: int) -> float:
        """Return the factor on every rate in step `step` (from 0) of `total`."""
        begin, until = to_steps(self.begin, total), to_steps(self.until, total)
        if self.shape == "step":
            if step < until:
                return self.start
            return self.end
        return self.start + (self.end - self.start) * progress(step, begin, max(begin, until))

    def model_problems(self, model: nn.Module, trainer: Any) -> list[str]:
        """Return a problem if the model has no rate to change, or compiled blocks would get a new one at each step."""
        problems = []
        if self.shape == "linear" and trainer.compile:
            problems.append(
                "shape=linear with trainer.compile=true would compile the blocks anew for each rate; use shape=step or "
                "trainer.compile=false"
            )
        if not rates(model):
            problems.append(
                "nothing to change: every dropout rate of the model is 0; set one, such as model.dropout=0.1, "
                "channel_mixer.dropout=0.1 or block.drop_path=0.1"
            )
        return problems

    def on_run_start(self, state: RunState) -> None:
        """Find the rates and set them for the next step. Raises UserError for the problems of `model_problems`."""
        if not self._rates:
            for problem in self.model_problems(state.learner.model, state.learner.settings):
                raise UserError(f"callbacks=dropout_schedule: {problem}")
            self._rates = rates(state.learner.model)
        self._set(state)

    def on_step(self, state: RunState) -> None:
        """Set the rates of the next step."""
        self._set(state)

    def metrics(self, state: RunState) -> dict[str, float]:
        """Return the factor of the last step."""
        last = max(state.step - 1, 0)
        return {"dropout_factor": self.factor(last, state.expected_total(last))}

    def _set(self, state: RunState) -> None:
        factor = self.factor(state.step, state.expected_total(state.step))
        for module, name, rate in self._rates:
            setattr(module, name, factor * rate)


def rates(model: nn.Module) -> list[tuple[nn.Module, str, float]]:
    """Return every dropout rate above 0 of a model: its module, the name of the attribute, and its value."""
    dropouts = []
    for module in model.modules():
        names = ("p",) if isinstance(module, _DropoutNd) else ("dropout", "drop_path")
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, float) and value > 0:
                dropouts.append((module, name, value))
    return dropouts
