"""What a learner is set to besides its components, and the step that it is in."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blockyard.weights.parts import NEVER, Thaw


@dataclass(frozen=True)
class Settings:
    """Training settings in addition to the components.

    total: steps in the whole run; clip: largest gradient norm, or None
    half: whether gradients are scaled for fp16; sharded: whether weights are spread over processes
    compile: whether each block is compiled; checkpoint: whether it is computed again in the backward pass
    context: whether every sequence is cut among the processes; timeout: seconds that they then wait for each other
    thaw: when frozen parts are trained
    """

    total: int
    clip: float | None = None
    half: bool = False
    sharded: bool = False
    compile: bool = False
    checkpoint: bool = False
    context: bool = False
    timeout: float = 300.0
    thaw: Thaw = NEVER


@dataclass
class StepState:
    """The step in progress. A plain object, because setting an attribute of a torch module costs a microsecond.

    number: of the step, from 0; loss: of the last batch; norm: of its gradients, before clipping
    lr: learning rate of the first parameter group in the last step
    """

    number: int = 0
    loss: Tensor | None = None
    norm: Tensor | None = None
    lr: float = 0.0
