"""The actions that are due after a step: a function of the step, the intervals and the way the training ends."""

from __future__ import annotations

import pytest

from blockyard.engine.callbacks.loop import Due, Intervals, due_after

INTERVALS = Intervals(seed=0, micro_batches=1, log_every=5, evaluate_every=20)


def actions(due: Due) -> list[str]:
    return [name for name, value in vars(due).items() if value]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, []),
        (5, ["log"]),
        (7, ["save"]),
        (35, ["log", "save"]),
        (40, ["log", "evaluate", "save"]),
        (99, ["log", "evaluate", "save", "final"]),
    ],
)
def test_at_intervals_and_at_the_last_step(step: int, expected: list[str]) -> None:
    assert actions(due_after(step, 99, INTERVALS, 7)) == expected


def test_without_an_interval_of_its_own_a_checkpoint_is_saved_with_each_evaluation() -> None:
    steps = [step for step in range(1, 100) if due_after(step, 99, INTERVALS, None).save]
    assert steps == [20, 40, 60, 80, 99]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, ["save", "leave"]),
        (5, ["log", "save", "leave"]),
        (40, ["log", "save", "leave"]),
        (99, ["log", "evaluate", "save", "final"]),
    ],
)
def test_a_signal_saves_and_leaves_before_any_evaluation_but_the_last(step: int, expected: list[str]) -> None:
    assert actions(due_after(step, 99, INTERVALS, None, interrupted=True)) == expected


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize(("step", "stopping"), [(99, False), (8, True)])
def test_lightning_callbacks_may_change_the_weights_after_the_last_step(
    step: int, stopping: bool, interrupted: bool
) -> None:
    """It is logged, and evaluated and saved later."""
    due = due_after(step, 99, INTERVALS, 4, stopping=stopping, interrupted=interrupted, evaluates_later=True)
    assert actions(due) == ["log", "final"]


def test_a_training_that_is_stopped_ends_as_at_its_last_step() -> None:
    assert due_after(8, 99, INTERVALS, None, stopping=True) == due_after(99, 99, INTERVALS, None)
