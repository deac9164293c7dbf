"""What packing would bring: many small cells in one training step, against each cell in a step of its own.

    python benchmarks/packed.py [--cells 8] [--tokens 1024 128] [--rounds 6] [--device cpu] [--dry]

A decoder in plain torch, as small as a model of an ablation, trained by AdamW. A packed step holds the weights of all
cells stacked, (cells, in, out): products are batched over cells, attention has the cells in its batch, and one step of
the optimizer updates all. Before anything is timed, packed cells must end where lone ones do, to rounding. What is
measured on a CPU is processor time of one thread, of lone and packed steps in turn, which other processes change
little: the least over rounds. Cells an hour are those of two cores: a cell of so many steps, and its start. With
`--device cuda` it is the time that passes, batches lie on the GPU, and cells an hour are those of one process.

Needs only torch. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

VOCABULARY, CONTEXT, DEPTH, HEADS = 96, 64, 3, 4
WIDTHS = (16, 56, 176)  # about 10,000, 100,000 and a million parameters
STEPS = 500  # of a cell
WORKERS = {"cpu": 2, "cuda": 1}  # processes that train side by side
BURST = 20  # steps from one look at the clock to the next, on a GPU
# Seconds from one cell to the next beside its steps, by benchmarks/warm_workers.py.
STARTS = {"warm workers": 0.8, "a process each": 7.0}

Weights = dict[str, Tensor]


def weights(width: int, seeds: range, device: str = "cpu") -> Weights:
    """The weights of one cell a seed, stacked: (cells, in, out)."""
    shapes = {"table": (VOCABULARY, width), "head": (width, VOCABULARY)}
    for layer in range(DEPTH):
        shapes |= {f"{layer}.qkv": (width, 3 * width), f"{layer}.out": (width, width)}
        shapes |= {f"{layer}.up": (width, 4 * width), f"{layer}.down": (4 * width, width)}
        shapes |= {f"{layer}.norm1": (1, width), f"{layer}.norm2": (1, width)}
    stacked = {}
    for number, (name, shape) in enumerate(shapes.items()):
        draws = [torch.Generator().manual_seed(1000 * seed + number) for seed in seeds]
        drawn = torch.stack([torch.randn(*shape, generator=draw) * 0.05 for draw in draws])
        drawn = (drawn if "norm" not in name else torch.ones_like(drawn)).to(device)
        stacked[name] = drawn.requires_grad_()
    return stacked


def packed_logits(w: Weights, ids: Tensor) -> Tensor:
    """Logits (cells, B N, V) of ids (cells, B, N), each cell by its own weights."""
    cells, batch, length = ids.shape
    width = w["table"].shape[-1]
    flat = ids.reshape(cells, -1, 1).expand(-1, -1, width)  # (cells, B N, D)
    x = w["table"].gather(1, flat)
    for layer in range(DEPTH):
        y = F.rms_norm(x, (width,)) * w[f"{layer}.norm1"]
        qkv = torch.bmm(y, w[f"{layer}.qkv"]).reshape(cells * batch, length, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (cells B, H, N, K) each
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = torch.baddbmm(x, mixed.reshape(cells, batch * length, width), w[f"{layer}.out"])
        y = F.rms_norm(x, (width,)) * w[f"{layer}.norm2"]
        x = torch.baddbmm(x, F.gelu(torch.bmm(y, w[f"{layer}.up"])), w[f"{layer}.down"])
    return torch.bmm(x, w["head"])


def lone_logits(w: Weights, ids: Tensor) -> Tensor:
    """The same of one cell, whose weights have no axis of cells: logits (B N, V) of ids (B, N)."""
    batch, length = ids.shape
    width = w["table"].shape[-1]
    x = F.embedding(ids, w["table"]).reshape(batch * length, width)
    for layer in range(DEPTH):
        y = F.rms_norm(x, (width,)) * w[f"{layer}.norm1"]
        q, k, v = (y @ w[f"{layer}.qkv"]).reshape(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = torch.addmm(x, mixed.reshape(batch * length, width), w[f"{layer}.out"])
        y = F.rms_norm(x, (width,)) * w[f"{layer}.norm2"]
        x = torch.addmm(x, F.gelu(y @ w[f"{layer}.up"]), w[f"{layer}.down"])
    return x @ w["head"]


def data(seed: int, step: int, batch: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, N) of a step of the cell of this seed."""
    draw = torch.Generator().manual_seed(10_000 * seed + step)
    ids = torch.randint(VOCABULARY, (batch, CONTEXT + 1), generator=draw)
    return ids[:, :-1], ids[:, 1:]


def stacked_data(seeds: range, step: int, batch: int, device: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets (cells, B, N) of a step of one cell a seed."""
    pairs = [data(seed, step, batch) for seed in seeds]
    ids, targets = (torch.stack(list(both)).to(device) for both in zip(*pairs, strict=True))
    return ids, targets


def packed(width: int, batch: int, seeds: range, device: str = "cpu") -> tuple[Callable[[int], None], Weights]:
    """A step of all cells, and their weights."""
    w = weights(width, seeds, device)
    optimizer = torch.optim.AdamW(list(w.values()), lr=1e-3, fused=True)
    batches = partial(stacked_data, seeds, batch=batch, device=device)
    batches = cache(batches) if device == "cuda" else batches

    def step(number: int) -> None:
        ids, targets = batches(number)
        logits = packed_logits(w, ids)
        # The sum over cells of their means: the gradient of each cell is that of its own loss.
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) * len(seeds)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step, w


def lone(width: int, batch: int, seed: int, device: str = "cpu") -> tuple[Callable[[int], None], Weights]:
    """A step of one cell, and its weights."""
    own = range(seed, seed + 1)
    w = {name: stacked[0].detach().requires_grad_() for name, stacked in weights(width, own, device).items()}
    optimizer = torch.optim.AdamW(list(w.values()), lr=1e-3, fused=True)
    batches = partial(stacked_data, own, batch=batch, device=device)
    batches = cache(batches) if device == "cuda" else batches

    def step(number: int) -> None:
        ids, targets = (both[0] for both in batches(number))
        loss = F.cross_entropy(lone_logits(w, ids), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step, w


def largest_gap(width: int, batch: int, cells: int, steps: int, device: str = "cpu") -> float:
    """The largest difference of a weight between packed and lone cells after some steps, as a share of the largest."""
    step, together = packed(width, batch, range(cells), device)
    for number in range(steps):
        step(number)
    worst = 0.0
    for seed in range(cells):
        step, alone = lone(width, batch, seed, device)
        for number in range(steps):
            step(number)
        for name, value in alone.items():
            gap = (together[name][seed] - value).detach().abs().max() / value.detach().abs().max()
            worst = max(worst, float(gap))
    return worst


def seconds(width: int, batch: int, cells: int, rounds: int, device: str = "cpu") -> tuple[float, float]:
    """Seconds of a step for one cell: alone, and as one of so many that are packed."""
    alone, together = lone(width, batch, 0, device)[0], packed(width, batch, range(cells), device)[0]
    repeats = (BURST, BURST) if device == "cuda" else (cells, 1)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for took, step, count, trained in ((times[0], alone, repeats[0], 1), (times[1], together, repeats[1], cells)):
            before = clock(device)
            for _ in range(count):
                step(number)
            if number >= 2:  # the first steps allocate
                took.append((clock(device) - before) / (count * trained))
    return min(times[0]), min(times[1])


def clock(device: str) -> float:
    """Seconds of this process's work on a CPU; on a GPU, of time, once its work is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=8, help="cells of a packed step")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 128], help="tokens of a batch of one cell")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", choices=list(WORKERS), default="cpu")
    parser.add_argument("--dry", action="store_true", help="one small size, to test the script")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    widths, tokens, rounds = (WIDTHS[:1], [CONTEXT], 1) if args.dry else (WIDTHS, args.tokens, args.rounds)
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("packed: there is no GPU here\n")
        return 2
    device, workers = args.device, WORKERS[args.device]
    gap = largest_gap(WIDTHS[0], 2, args.cells, 3, device)
    if gap > 1e-4:
        sys.stderr.write(f"packed cells differ from lone ones by {gap:.2g} of the largest weight\n")
        return 1
    where = "a GPU, one process" if device == "cuda" else f"{workers} cores"
    sys.stdout.write(f"{args.cells} cells a packed step; one thread; cells an hour of {STEPS} steps on {where}\n\n")
    sys.stdout.write("| parameters | tokens a batch | step alone | packed, a cell | ratio | a process each, cells/h | ")
    sys.stdout.write("warm workers, cells/h | packed, cells/h |\n|---|---|---|---|---|---|---|---|\n")
    for width in widths:
        count = sum(value[0].numel() for value in weights(width, range(1)).values())
        for batch in (each // CONTEXT for each in tokens):
            alone, together = seconds(width, batch, args.cells, rounds, device)
            hourly = [3600 * workers / (STEPS * alone + STARTS[way]) for way in ("a process each", "warm workers")]
            hourly.append(3600 * workers / (STEPS * together + STARTS["warm workers"] / args.cells))
            sys.stdout.write(
                f"| {count:,} | {batch * CONTEXT:,} | {1e3 * alone:.2f} ms | {1e3 * together:.2f} ms | "
                f"{alone / together:.2f} | {' | '.join(f'{each:,.0f}' for each in hourly)} |\n"
            )
    equal = f"to {gap:.1g} of the largest weight" if gap else "to the bit"
    sys.stdout.write(f"\npacked cells end where lone ones do, {equal}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
