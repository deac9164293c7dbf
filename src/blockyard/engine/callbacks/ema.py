"""An exponential moving average (EMA) of the weights, evaluated and saved beside the trained ones.

Source: Polyak and Juditsky 1992, Acceleration of Stochastic Approximation by Averaging; Tarvainen and Valpola 2017,
    Mean teachers (arXiv 1703.01780), section 2, the exponential form
Reference: torch.optim.swa_utils.get_ema_multi_avg_fn; timm.utils.ModelEmaV3; for the warm-up
    tf.train.ExponentialMovingAverage(num_updates=...)
Equation: a <- d a + (1 - d) w after each step t, d = decay, with a warm-up min(decay, (1 + t) / (10 + t))

Metrics of the average end in `@` and the callback's name: val/accuracy@ema. Every checkpoint holds both; `eval`,
`predict`, `generate`, `inspect` and `blockyard.load` take the average with which=best@ema.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Rate
from blockyard.engine.callbacks.base import RunCallback, RunState, StateDict
from blockyard.errors import UserError


class EMA(RunCallback):
    """Averages weights, and statistics such as those of batch norms, after every step.

    Options:
        decay: share of the average that stays at each step
        warmup: let the decay grow from 2/11, so that early weights are forgotten sooner
        select: by whose metric the best step is selected: that of the raw weights or that of their average
    """

    averages = True
    priority = -1  # before those that compare metrics

    def __init__(self, *, decay: Rate = 0.999, warmup: bool = True, select: Literal["raw", "average"] = "raw") -> None:
        self.decay = decay
        self.warmup = warmup
        self.selects = select == "average"
        self._model: nn.Module | None = None
        self._average: dict[str, Tensor] = {}  # by the names of `averaged`
        self._saved: dict[str, Tensor] = {}  # of a checkpoint, by the names of the model's state

    def model_problems(self, model: nn.Module, trainer: Any) -> list[str]:
        """Every process must have all weights."""
        if not trainer.sharded:
            return []
        return ["trainer.strategy=fsdp leaves no process all the weights that are averaged; use ddp"]

    def on_run_start(self, state: RunState) -> None:
        """Begin with the weights as they are, or with the average of the checkpoint. Raises UserError under FSDP."""
        for problem in self.model_problems(state.learner.model, state.learner.settings):
            raise UserError(f"callbacks=ema: {problem}")
        self._model = state.learner.model
        tensors = averaged(self._model)
        self._average = {
            name: self._saved.get(name, tensor).detach().to(tensor, copy=True) for name, tensor in tensors.items()
        }
        self._saved = {}

    def on_step(self, state: RunState) -> None:
        """Move the average towards the weights."""
        assert self._model is not None
        decay = self.decay
        if self.warmup:  # the first weights, which are random, are forgotten soon
            decay = min(decay, (1 + state.step) / (10 + state.step))
        current = averaged(self._model)
        with torch.no_grad():
            torch._foreach_lerp_(list(self._average.values()), list(current.values()), 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While inside, the model has the average, and the average is in the model's weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def state_dict(self) -> StateDict:
        """Return the average as a complete state of the model."""
        if self._model is None:
            return {"average": self._saved}
        names = {id(tensor): name for name, tensor in averaged(self._model).items()}
        average = {}
        # With the parameters themselves, because a tied one has two names.
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            if id(tensor) in names:
                average[name] = self._average[names[id(tensor)]]
            else:
                average[name] = tensor.detach()
        return {"average": average}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the average."""
        self._saved = dict(state_dict["average"])

    def _exchange(self) -> None:
        assert self._model is not None
        # In place: the optimizer and compiled blocks hold the parameters themselves.
        with torch.no_grad():
            for name, tensor in averaged(self._model).items():
                raw = tensor.clone()
                tensor.copy_(self._average[name])
                self._average[name].copy_(raw)


def averaged(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model that are averaged, by name: each parameter once, and the saved float buffers."""
    saved = model.state_dict(keep_vars=True).keys()
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for name, buffer in model.named_buffers():
        if name in saved and buffer.is_floating_point():
            tensors[name] = buffer
    return tensors
