"""Threads that take turns: one at a time, each with its own random generators and streams."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from blockyard.engine.stacked.runs import Turns


def test_threads_run_one_after_another_until_they_pass_on() -> None:
    turns, seen = Turns(), []

    def run(name: str, count: int) -> Callable[[], None]:
        def visit() -> None:
            for _ in range(count):
                seen.append(name)
                turns.pass_on()

        return visit

    turns.run([run("a", 2), run("b", 1), run("c", 3)])
    assert seen == ["a", "b", "c", "a", "c", "c"]
    assert turns.alive == 0


def draws() -> tuple[float, float, float]:
    """A number of each generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_each_thread_draws_as_if_it_were_alone() -> None:
    turns, drawn = Turns(), {}

    def seed(number: int) -> None:
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)

    def run(number: int) -> Callable[[], None]:
        def draw() -> None:
            seed(number)
            values = []
            for _ in range(3):
                values.append(draws())
                turns.pass_on()
            drawn[number] = values

        return draw

    seed(7)
    turns.run([run(1), run(2)])
    after = draws()
    for number in (1, 2):
        seed(number)
        assert drawn[number] == [draws() for _ in range(3)]
    seed(7)
    assert after == draws()


def test_each_thread_keeps_its_streams(capfd: pytest.CaptureFixture[str], tmp_path) -> None:
    turns = Turns()

    def run(name: str) -> Callable[[], None]:
        def write() -> None:
            before = os.dup(1)
            with (tmp_path / name).open("w") as stream:
                os.dup2(stream.fileno(), 1)
                for number in range(2):
                    os.write(1, f"{name}{number} ".encode())
                    turns.pass_on()
            os.dup2(before, 1)
            os.close(before)

        return write

    streams = sys.stdout, sys.stderr
    turns.run([run("a"), run("b")])
    os.write(1, b"after")
    assert (tmp_path / "a").read_text() == "a0 a1 "
    assert (tmp_path / "b").read_text() == "b0 b1 "
    assert capfd.readouterr().out == "after"
    assert (sys.stdout, sys.stderr) == streams


def test_an_error_is_raised_after_the_others_have_ended() -> None:
    turns, ended = Turns(), []

    def fail() -> None:
        raise OSError("a full disk")

    def go_on() -> None:
        turns.pass_on()
        ended.append(True)

    with pytest.raises(OSError, match="a full disk"):
        turns.run([fail, go_on, go_on])
    assert ended == [True, True]
