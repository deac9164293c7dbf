"""Seconds of a training step with one CPU thread and with all of them, against the FLOPs of the step.

`trainer.threads=auto` gives a run one thread more for every `engine.setup_model.FLOPS_PER_THREAD` FLOPs of a batch;
this table is what that number was read from. Both sides run in one process and alternate. A cell of the table is
the fastest step of all rounds, because on a shared machine anything above it measures the neighbours.

    python benchmarks/threads.py [--rounds 20]

Needs blockyard and nothing else. The answer is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from blockyard.config.build import Components
from blockyard.config.compose import compose
from blockyard.engine import cost_card

TEXT = ("experiment=gpt_code", "data.context=64", "data.batch_size=12", "model.heads=4")
SIZES: dict[str, tuple[str, ...]] = {
    "ViT 32x1, batch 16": ("model.dim=32", "model.depth=1", "model.heads=2", "data.batch_size=16"),
    "ViT 32x2, batch 64": ("model.dim=32", "model.depth=2", "model.heads=2", "data.batch_size=64"),
    "ViT 64x4, batch 64": ("model.dim=64", "model.depth=4", "model.heads=4", "data.batch_size=64"),
    "ViT 96x4, batch 128": ("model.dim=96", "model.depth=4", "model.heads=4", "data.batch_size=128"),
    "GPT 64x2, 12x64 tokens": (*TEXT, "model.dim=64", "model.depth=2"),
    "GPT 128x4, 12x64 tokens": (*TEXT, "model.dim=128", "model.depth=4"),
    "GPT 256x4, 12x64 tokens": (*TEXT, "model.dim=256", "model.depth=4"),
}


def measure(overrides: tuple[str, ...], rounds: int, counts: tuple[int, int]) -> tuple[int, list[float]]:
    """FLOPs of a step, and the fastest step in seconds with each number of threads."""
    plan = Components(compose([*overrides, "logger=none"]).config)
    train = plan.data.load(plan.tokenizer).train
    batch = plan.objective.prepare(train.batch(torch.arange(plan.data.batch_size), None))
    model = plan.model(0).train()
    sample = cost_card.two_samples(train, plan.data)
    flops = cost_card.flops_per_sample(model, plan.objective, sample)["training"] * plan.data.batch_size
    optimizer = plan.optimizer.build(model)
    fastest = [float("inf")] * len(counts)
    for number in range(rounds):
        for index, count in enumerate(counts):
            torch.set_num_threads(count)
            for _ in range(5):  # the first steps after a change of the thread pool are slower
                start = time.perf_counter()
                plan.objective.loss(model(batch), batch.target).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if number:
                    fastest[index] = min(fastest[index], time.perf_counter() - start)
    return flops, fastest


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    counts = (1, torch.get_num_threads())
    heads = f"| model | GFLOPs a batch | 1 thread, ms | {counts[1]} threads, ms | ratio |\n"
    sys.stdout.write(f"{heads}|---|---|---|---|---|\n")
    for name, overrides in SIZES.items():
        flops, (one, many) = measure(overrides, rounds, counts)
        line = f"| {name} | {flops / 1e9:.3f} | {one * 1e3:.2f} | {many * 1e3:.2f} | {many / one:.2f} |"
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
