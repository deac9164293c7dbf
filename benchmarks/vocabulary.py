"""Time and memory of a language model's loss, by chunks of tokens and from all logits.

A step is the forward and the backward pass of the last layer and of its cross entropy over the outputs of the blocks.
Each side runs in a process of its own for its peak memory, above that of the inputs and the weights; times are of both
sides in one process, alternating.

    python benchmarks/vocabulary.py [--tokens 2048] [--dim 384] [--rounds 7]

Needs blockyard and Linux. The answer is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from blockyard.objective._cross_entropy import chunked_cross_entropy, cross_entropy
from blockyard.ops.projection import LOGITS, Projection

VOCABULARIES = (512, 50_257)


def inputs(tokens: int, dim: int, vocabulary: int) -> tuple[Projection, Tensor]:
    """What the last layer reads, its weights, and targets."""
    torch.manual_seed(0)
    x, weight = torch.randn(tokens, dim, requires_grad=True), torch.randn(vocabulary, dim) * 0.02
    return Projection(x, weight.requires_grad_()), torch.randint(vocabulary, (tokens,))


def step(projection: Projection, target: Tensor, chunked: bool) -> float:
    """One forward and backward pass; its loss."""
    projection.x.grad = projection.weight.grad = None
    loss = chunked_cross_entropy(projection, target) if chunked else cross_entropy(projection.logits(), target)
    loss.backward()
    return loss.item()


def resident(field: str) -> float:
    """MiB of this process: VmRSS now, VmHWM at most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def peak(size: tuple[int, int, int], chunked: bool, out: Connection) -> None:
    """Send the MiB that a second step takes at most above what is there before it, gradients included."""
    torch.set_num_threads(1)
    projection, target = inputs(*size)
    before = resident("VmRSS")
    step(projection, target, chunked)
    projection.x.grad = projection.weight.grad = None
    Path("/proc/self/clear_refs").write_text("5")
    step(projection, target, chunked)
    out.send(resident("VmHWM") - before)


def memory(size: tuple[int, int, int], chunked: bool) -> float:
    """`peak` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=peak, args=(size, chunked, send))
    process.start()
    mebibytes: float = receive.recv()
    process.join()
    return mebibytes


def seconds(size: tuple[int, int, int], rounds: int) -> tuple[float, float]:
    """Median seconds of a step from all logits and by chunks, in that order; the first round is not counted."""
    projection, target = inputs(*size)
    times: tuple[list[float], list[float]] = ([], [])
    losses = [0.0, 0.0]
    for _ in range(rounds + 1):
        for chunked in (False, True):
            start = time.perf_counter()
            losses[chunked] = step(projection, target, chunked)
            times[chunked].append(time.perf_counter() - start)
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0.0)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    print("| vocabulary | all logits, ms | by chunks, ms | ratio | all logits, MiB | by chunks, MiB | ratio | taken |")
    print("|---|---|---|---|---|---|---|---|")
    for vocabulary in VOCABULARIES:
        size = (options.tokens, options.dim, vocabulary)
        plain, chunked = seconds(size, options.rounds)
        plain_memory, chunked_memory = memory(size, chunked=False), memory(size, chunked=True)
        taken = "by chunks" if options.tokens * vocabulary >= LOGITS else "all logits"
        print(
            f"| {vocabulary:,} | {plain * 1e3:.0f} | {chunked * 1e3:.0f} | {chunked / plain:.2f} | "
            f"{plain_memory:.0f} | {chunked_memory:.0f} | {chunked_memory / plain_memory:.2f} | {taken} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
