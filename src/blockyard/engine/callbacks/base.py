"""What a callback is here: it is called at the rhythm of logging and evaluation, never every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from blockyard.contracts import Split
    from blockyard.engine.module import Learner


@dataclass
class RunState:
    """A run in progress, as watchers see it.

    step: updates done; total: updates planned; steps_per_epoch: updates in an epoch
    batch_size: samples an update sees, over all processes; tokens: of one sample
    modality: of the data; monitor: the validation metric that chooses, and "min" or "max"
    main: whether this process is the one that writes; validation: the part itself, to look at samples
    stop: why training should end early; set it to end the run after this step
    leave: why to leave the run here, saved and not done, for somebody to go on with; not part of its state
    seconds: spent training so far, evaluation and saving left out
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
    stop: str | None = None
    leave: str | None = None
    best: dict[str, float] = field(default_factory=dict)


class RunCallback:
    """Base of the callbacks. Every hook does nothing unless overridden."""

    incidental: ClassVar[frozenset[str]] = frozenset()
    turn: ClassVar[int] = 0  # lower goes first

    def begin(self, live: RunState) -> None:
        """Before the first step, of a resumed run too."""

    def measure(self, live: RunState) -> dict[str, Any]:
        """More columns for the metrics that are about to be logged, numbers or scalars on a device."""
        return {}

    def logged(self, live: RunState, values: dict[str, float]) -> None:
        """Training metrics of `live.step` were logged."""

    def evaluated(self, live: RunState, values: dict[str, float]) -> None:
        """The validation metrics of `live.step`, with the prefix val/."""

    def end(self, live: RunState) -> None:
        """After the last step, whether it went well or not."""

    def state(self) -> dict[str, Any]:
        """What must survive a resume, as plain data."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
