"""Tiny decoders of text, trained in this process."""

from __future__ import annotations

from pathlib import Path

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.engine.run import train
from blockyard.runs.folder import RunFolder
from blockyard.runs.start import create_run

TEXT = (
    *("logger=none", "callbacks=quiet", "trainer=cpu", "trainer.precision=32", "trainer.log_every=5"),
    *("data=code", "data.context=16", "data.batch_size=4", "model=decoder", "head=token", "objective=next_token"),
    *("model.dim=16", "model.depth=2", "model.heads=2", "trainer.max_steps=5", "trainer.eval_every=5"),
    *("trainer.limit_val=1", "trainer.limit_test=1"),
)


def run(outputs: Path, *words: str) -> RunFolder:
    """A finished run of a decoder; later words win."""
    composed = compose([*TEXT, *words, f"outputs={outputs}"])
    problems = check(composed)
    assert not problems, [str(problem) for problem in problems]
    with create_run(composed.config, command=["test"], choices=composed.choices) as made:
        assert train(made) == 0, made.status
    return made
