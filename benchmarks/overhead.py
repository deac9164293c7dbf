"""Our training step against a bare PyTorch loop: the same module, data, optimizer and schedule.

Both sides run in one process and alternate step by step, on a model whose step takes about 2 ms and
one that takes 20 ms or more. A round's value is the median of its steps, the ratio the median of the rounds.
What we add to the bare loop: Lightning, data by number, a random stream per step, the NaN guard, logging,
the progress line. Both sides clip gradients by norm.

    python benchmarks/overhead.py [--rounds 5]

Needs blockyard and nothing else. The answer is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

#: steps at the start that are not counted
WARM_UP = 20

SIZES: dict[str, tuple[tuple[str, ...], int]] = {
    "2 ms": (("model.dim=32", "model.depth=1", "model.heads=2", "data.batch_size=16"), 400),
    "20 ms": (("model.dim=96", "model.depth=4", "model.heads=4", "data.batch_size=128"), 80),
    # nanoGPT's small CPU setting, on the embedded text
    "small GPT": (
        ("experiment=gpt_code", "norm=layer", "channel_mixer=mlp", "data.context=64", "data.batch_size=12"),
        150,
    ),
}


def compose_run(outputs: Path, overrides: tuple[str, ...], steps: int) -> Any:
    from blockyard.config.compose import compose
    from blockyard.runs.start import create_run

    fixed = ("trainer=cpu", "logger=none", "trainer.precision=32", "trainer.limit_val=1", "trainer.limit_test=1")
    length = (f"trainer.max_steps={steps}", "trainer.max_epochs=null", "trainer.eval_every=1000000", "force=true")
    composed = compose([*fixed, *length, *overrides, f"outputs={outputs}"])
    assert not composed.issues, composed.issues
    return create_run(composed.config, command=["benchmark"], choices=composed.choices)


def bare_loop(config: dict[str, Any], steps: int) -> Iterator[float]:
    """The shortest loop that learns the same: yields the seconds of each of its steps."""
    import torch

    from blockyard.config import build
    from blockyard.data.splits.order import epoch_key, step_indices, steps_per_epoch

    components = build.Components(config)
    train = components.data.load(components.tokenizer).train
    model, objective, schedule = components.model(0), components.objective, components.schedule
    optimizer = components.optimizer.build(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    each = steps_per_epoch(len(train), components.data.batch_size)
    for number in range(steps):
        start = time.perf_counter()
        epoch, step = divmod(number, each)
        order = step_indices(0, epoch, step, num_samples=len(train), batch_size=components.data.batch_size)
        batch = objective.prepare(train.batch(order, epoch_key(0, epoch)))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule.factor(number, steps)
        loss = objective.loss(model(batch.inputs, batch.lengths, batch.segment), batch.target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield time.perf_counter() - start


def one_run(outputs: Path, overrides: tuple[str, ...], steps: int) -> tuple[float, float]:
    """Median seconds of a step of ours and of the bare loop, which takes one step before each of ours.

    Step for step, because a neighbour on the machine slows either by a half for seconds at a time: taken run
    by run, one side may get all of it.
    """
    from blockyard.engine.callbacks import loop
    from blockyard.engine.run import train

    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    resumed: list[float] = []
    original = loop.LoopCallback.on_train_batch_start

    def between(self: Any, *arguments: Any) -> None:
        if resumed:
            seconds["ours"].append(time.perf_counter() - resumed.pop())
        seconds["bare"].append(next(theirs))
        resumed.append(time.perf_counter())
        original(self, *arguments)

    watched = mock.patch.object(loop.LoopCallback, "on_train_batch_start", between)
    with watched, compose_run(outputs, overrides, steps) as folder, contextlib.redirect_stderr(io.StringIO()):
        theirs = bare_loop(folder.config, steps)
        assert train(folder) == 0
    return statistics.median(seconds["ours"][WARM_UP:]), statistics.median(seconds["bare"][WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    lines = ["| step | bare loop, ms | blockyard, ms | ratio | ratio of each round |", "|---|---|---|---|---|"]
    for name, (overrides, steps) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            rows = [one_run(Path(folder), overrides, steps) for _ in range(rounds)]
        mine, theirs = (statistics.median(side) for side in zip(*rows, strict=True))
        ratios = sorted(ours / bare for ours, bare in rows)
        each = " ".join(f"{ratio:.3f}" for ratio in ratios)
        middle = statistics.median(ratios)
        lines.append(f"| {name} | {theirs * 1e3:.2f} | {mine * 1e3:.2f} | {middle:.3f} | {each} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
