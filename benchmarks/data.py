"""Data on the disk against data in memory: start, resident memory and throughput of two billion token ids.

    python benchmarks/data.py tokens [--ids 2000000000] [--rounds 5] [--folder FOLDER]

Writes a sparse file of that many ids (uint16; it takes no room) and a small one of 2 million. A start is a whole
`blockyard train` of one step, large and small alternating. Throughput is that of batches alone, and of training steps,
alternating in one process with batches of 2 million ids held in memory (`blockyard.data.splits.texts.Windows`); memory
is that of the process while it reads on. All times are CPU seconds of one thread, which other processes disturb less
than a clock.
The answer is a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MODEL = ("model=decoder", "head=token", "objective=next_token", "tokenizer=ids", "trainer=cpu", "logger=none")
SMALL = 2_000_000
CONTEXT, BATCH = 128, 32


def write_ids(path: Path, count: int) -> Path:
    """A sparse file of `count` ids, all zero but the last thousand."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / "train.bin").open("wb") as file:
        file.truncate(2 * count)
        file.seek(2 * count - 2000)
        file.write(bytes(range(1, 126)) * 16)
    return path


def first_step(folder: Path) -> float:
    """CPU seconds of a whole run of one step, with an evaluation of one batch."""
    with tempfile.TemporaryDirectory() as outputs:
        options = ("callbacks=quiet", "trainer.max_steps=1", "trainer.limit_val=1", "trainer.limit_test=1")
        data = ("data=tokens", f"data.path={folder}", "data.vocabulary=50304", "data.dtype=uint16")
        overrides = [*MODEL, *options, *data, f"outputs={outputs}", "model.dim=32", "model.depth=1"]
        before = os.times()
        command = [sys.executable, "-m", "blockyard", "train", *overrides]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system


def resident() -> float:
    """Megabytes of this process in memory, pages of files included."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def by_turns(rounds: int, measured: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """The value of each function, in alternating order, after one call of each that is not counted."""
    for function in measured.values():
        function()
    values: dict[str, list[float]] = {name: [] for name in measured}
    for turn in range(rounds):
        for name in list(measured)[:: 1 if turn % 2 else -1]:
            values[name].append(measured[name]())
    return values


def loader_rates(large: Path, rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Batches a CPU second from the disk and from memory, alternating, and the memory after each round."""
    import torch

    from blockyard.data.splits.order import epoch_key, step_indices
    from blockyard.data.splits.texts import Windows
    from blockyard.data.tokens import Tokens
    from blockyard.tokenizer.ids import Ids

    disk = Tokens(path=str(large), vocabulary=50_304, dtype="uint16", context=CONTEXT).load(Ids()).train
    memory = Windows(torch.zeros(SMALL, dtype=torch.int32), None, CONTEXT, 1.0)
    step = {"disk": 0, "memory": 0}
    torch.set_num_threads(1)

    def rate(name: str, split: object, count: int, keyed: bool) -> float:
        start = time.process_time()
        for _ in range(500):
            step[name] += 1
            steps = count // BATCH
            epoch, number = divmod(step[name], steps)
            order = step_indices(0, epoch, number, num_samples=count, batch_size=BATCH, keyed=keyed)
            split.batch(order, epoch_key(0, epoch))  # type: ignore[attr-defined]
        return 500 / (time.process_time() - start)

    kept: list[float] = []

    def from_disk() -> float:
        value = rate("disk", disk, len(disk), disk.keyed)
        kept.append(resident())
        return value

    rates = by_turns(rounds, {"disk": from_disk, "memory": lambda: rate("memory", memory, len(memory), False)})
    return rates, kept[1:]  # the first call of each is not counted


def training_rates(large: Path, rounds: int) -> dict[str, list[float]]:
    """Steps a CPU second of a decoder of four blocks of width 128 that reads disk and memory alternately."""
    import torch

    from blockyard.config.build import Components
    from blockyard.config.compose import compose
    from blockyard.data.splits.order import epoch_key, step_indices
    from blockyard.data.splits.texts import Windows

    overrides = [*MODEL, "data=tokens", f"data.path={large}", "data.vocabulary=256", f"data.context={CONTEXT}"]
    components = Components(compose([*overrides, "model.dim=128", "model.heads=4", "data.dtype=uint16"]).config)
    disk = components.load().train
    memory = Windows(torch.zeros(SMALL, dtype=torch.int32), None, CONTEXT, 1.0)
    model = components.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.set_num_threads(1)

    def rate(split: object, count: int, keyed: bool) -> float:
        start = time.process_time()
        for number in range(10):
            order = step_indices(0, 0, number, num_samples=count, batch_size=BATCH, keyed=keyed)
            batch = components.objective.prepare(split.batch(order, epoch_key(0, 0)))  # type: ignore[attr-defined]
            loss = components.objective.loss(model(batch), batch.target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return 10 / (time.process_time() - start)

    return by_turns(
        rounds,
        {
            "disk": lambda: rate(disk, len(disk), disk.keyed),  # type: ignore[attr-defined]
            "memory": lambda: rate(memory, len(memory), False),
        },
    )


def ratio(values: dict[str, list[float]]) -> str:
    """The median ratio of the rounds, with the least and the greatest."""
    each = [disk / memory for disk, memory in zip(values["disk"], values["memory"], strict=True)]
    return f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


def tokens(ids: int, rounds: int, folder: Path) -> None:
    """Print the table."""
    large, small = write_ids(folder / "large", ids), write_ids(folder / "small", SMALL)
    starts = by_turns(rounds, {"large": lambda: first_step(large), "small": lambda: first_step(small)})
    more = [a - b for a, b in zip(starts["large"], starts["small"], strict=True)]
    rates, memory = loader_rates(large, rounds)
    print(f"| {ids:,} token ids, {rounds} alternating rounds | |\n|---|---|")
    print(f"| CPU seconds of `blockyard train` of one step | {statistics.median(starts['large']):.1f} |")
    spans = f"{statistics.median(more):.2f} ({min(more):.2f} to {max(more):.2f})"
    print(f"| CPU seconds more than of {SMALL:,} ids | {spans} |")
    print(f"| resident memory after each round of 16,000 sequences, MiB | {', '.join(f'{m:.0f}' for m in memory)} |")
    print(f"| batches a CPU second, over those from memory | {ratio(rates)} |")
    print(f"| training steps a CPU second, over those from memory | {ratio(training_rates(large, rounds))} |")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tokens"])
    parser.add_argument("--ids", type=int, default=2_000_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        tokens(arguments.ids, arguments.rounds, arguments.folder or Path(scratch))


if __name__ == "__main__":
    main()
