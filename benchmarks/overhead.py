"""Our training step against a bare PyTorch loop: the same module, data, optimizer and schedule.

Both sides run in one process, by turns, on a model whose step takes about 2 ms and one that takes
20 ms or more. What we add to the bare loop: Lightning, data by number, a random stream per step,
the NaN guard, logging, the progress line. Both sides clip gradients by norm.

    python benchmarks/overhead.py [--rounds 5]

Needs blockyard and nothing else. The answer is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES: dict[str, tuple[tuple[str, ...], int]] = {
    "2 ms": (("model.dim=32", "model.depth=1", "model.heads=2", "data.batch_size=16"), 400),
    "20 ms": (("model.dim=96", "model.depth=4", "model.heads=4", "data.batch_size=128"), 80),
    # nanoGPT's small CPU setting, on the embedded text
    "small GPT": (
        ("experiment=gpt_code", "norm=layer", "channel_mixer=mlp", "data.context=64", "data.batch_size=12"),
        150,
    ),
}


def compose_run(outputs: Path, words: tuple[str, ...], steps: int) -> Any:
    from blockyard.compose import compose
    from blockyard.runs.folder import RunFolder

    fixed = ("trainer=cpu", "logger=none", "trainer.precision=32", "trainer.limit_val=1", "trainer.limit_test=1")
    length = (f"trainer.max_steps={steps}", "trainer.max_epochs=null", "trainer.eval_every=1000000", "force=true")
    composed = compose([*fixed, *length, *words, f"outputs={outputs}"])
    assert not composed.issues, composed.issues
    return RunFolder.create(composed.config, command=["benchmark"], choices=composed.choices)


def ours(outputs: Path, words: tuple[str, ...], steps: int) -> float:
    """Median seconds of a step, first to last batch of a run, evaluation and saving left out."""
    from blockyard.engine.callbacks import rhythm
    from blockyard.engine.fit import train

    marks: list[float] = []
    original = rhythm.Rhythm.on_train_batch_start

    def mark(self: Any, *arguments: Any) -> None:
        marks.append(time.perf_counter())
        original(self, *arguments)

    rhythm.Rhythm.on_train_batch_start = mark  # type: ignore[method-assign]
    try:
        with compose_run(outputs, words, steps) as folder, contextlib.redirect_stderr(io.StringIO()):
            assert train(folder) == 0
    finally:
        rhythm.Rhythm.on_train_batch_start = original  # type: ignore[method-assign]
    return _median_step(marks)


def bare(outputs: Path, words: tuple[str, ...], steps: int) -> float:
    """Median seconds of a step of the shortest loop that learns the same."""
    import torch

    from blockyard import assemble
    from blockyard.data._order import epoch_key, step_indices, steps_per_epoch

    with compose_run(outputs, words, steps) as folder:
        config = folder.config
    plan = assemble.plan(config)
    train = plan.data.load(plan.tokenizer).train
    model, objective, schedule = plan.model(0), plan.objective, plan.schedule
    optimizer = plan.optimizer.build(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    each = steps_per_epoch(len(train), plan.data.batch_size)
    marks = []
    for update in range(steps):
        marks.append(time.perf_counter())
        epoch, step = divmod(update, each)
        order = step_indices(0, epoch, step, num_samples=len(train), batch_size=plan.data.batch_size)
        batch = objective.prepare(train.batch(order, epoch_key(0, epoch)))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule.factor(update, steps)
        loss = objective.loss(model(batch.inputs, batch.lengths, batch.segment), batch.target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return _median_step(marks)


def _median_step(marks: list[float]) -> float:
    steps = [after - before for before, after in itertools.pairwise(marks[20:])]
    return statistics.median(steps)


def compare(words: tuple[str, ...], steps: int, rounds: int) -> tuple[float, float]:
    """Medians of both sides over alternations, the first of which is thrown away."""
    found: dict[str, list[float]] = {"ours": [], "bare": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds + 1):
            pair = {"bare": bare(Path(folder), words, steps), "ours": ours(Path(folder), words, steps)}
            for side, seconds in pair.items():
                if turn:
                    found[side].append(seconds)
    return statistics.median(found["ours"]), statistics.median(found["bare"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    lines = ["| step | bare loop, ms | blockyard, ms | ratio |", "|---|---|---|---|"]
    for name, (words, steps) in SIZES.items():
        mine, theirs = compare(words, steps, rounds)
        lines.append(f"| {name} | {theirs * 1e3:.2f} | {mine * 1e3:.2f} | {mine / theirs:.3f} |")
    import sys

    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
