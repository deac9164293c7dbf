"""The clock of a run: seconds spent training, and the mean seconds of a step between two rows of the log."""

from __future__ import annotations

import time

from blockyard.engine.callbacks.base import RunState, StateDict
from blockyard.engine.system.process import process_start

_WINDOWS = 200  # saved in a checkpoint


class Stopwatch:
    """Adds the time spent training to `state.seconds`; evaluation and saving are left out.

    first_step_seconds: from the start of this process to the end of the first step
    windows: mean seconds of a step, one for each stretch between two rows of the log
    """

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.first_step_seconds: float | None = None
        self.windows: list[float] = []
        self._clock = 0.0
        self._window = (0.0, 0)  # seconds and step at its start

    def start(self) -> None:
        """Begin with the first step of this process."""
        self._clock = time.perf_counter()
        self._window = (self.state.seconds, self.state.step)

    def step(self) -> None:
        """Note the first step."""
        if self.first_step_seconds is None:
            self.first_step_seconds = time.time() - process_start()

    def pause(self) -> None:
        """Add the time since the last `resume`."""
        now = time.perf_counter()
        if self._clock:  # nothing is counted before `start`
            self.state.seconds += now - self._clock
        self._clock = now

    def resume(self) -> None:
        """Leave out the time since the last `pause`."""
        self._clock = time.perf_counter()

    def add(self, seconds: float) -> None:
        """Add time that was spent for this run while the clock was paused."""
        self.state.seconds += seconds

    def tick(self) -> None:
        """Add the time since the last `resume` where the run ends by time, which a step then depends on."""
        if self.state.max_seconds is not None:
            self.pause()

    def expected_total(self, step: int) -> int:
        """Return the steps of the run as they are known now, before step `step`."""
        self.tick()
        return self.state.expected_total(step)

    def lap(self) -> float:
        """Close the stretch since the last row of the log; return the seconds spent training, rounded."""
        self.pause()
        steps = self.state.step - self._window[1]
        if steps:
            self.windows.append((self.state.seconds - self._window[0]) / steps)
        self._window = (self.state.seconds, self.state.step)
        return round(self.state.seconds, 3)

    def state_dict(self) -> StateDict:
        """Return the times so far."""
        return {"seconds": self.state.seconds, "windows": self.windows[-_WINDOWS:], "first": self.first_step_seconds}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the times."""
        self.state.seconds = state_dict["seconds"]
        self.windows = list(state_dict["windows"])
        self.first_step_seconds = state_dict["first"]
