"""nanoGPT's small CPU setting on tiny Shakespeare: our command against a bare loop, in one run.

    python benchmarks/shakespeare.py FOLDER/input.txt [ROUNDS]

Ours is `blockyard train experiment=gpt_shakespeare`: start, 2,000 updates, evaluation of the whole
validation part, test, checkpoints, summary. The bare loop is plain PyTorch over the GPT-2 of `transformers`
in the same sizes (4 layers, 4 heads, width 128, context 64, batch 12, AdamW, cosine, clipping), with
nanoGPT's evaluation of 20 batches every 250 updates. Both are processes of their own: `whole` is from the
first word of the command to its end, `training` what the updates took (the bare loop's evaluation is in
it). The sides alternate, ROUNDS times (3); the table has the medians, and the ratio of each round. Needs
the `dev` extra. Prints a Markdown table.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

UPDATES, CONTEXT, BATCH = 2000, 64, 12


def ours(text: Path) -> tuple[float, float, float]:
    """Wall seconds of the whole command, those of its training, and its validation loss."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "experiment=gpt_shakespeare", f"data.path={text.resolve()}", f"outputs={folder}"]
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "blockyard", *words], check=True, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        (summary,) = Path(folder).glob("*/s0/summary.json")
        found = json.loads(summary.read_text())
        return seconds, found["seconds"], found["metrics"]["val/loss"]


def bare_process(text: Path) -> tuple[float, float, float]:
    """The same of the bare loop."""
    began = time.perf_counter()
    command = [sys.executable, __file__, str(text), "--bare"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - began
    training, loss = json.loads(said.splitlines()[-1])
    return seconds, training, loss


def bare(text: Path) -> tuple[float, float]:
    """Wall seconds of the training loop, and its last validation loss over 20 batches."""
    import torch
    from torch.nn import functional
    from transformers import GPT2Config, GPT2LMHeadModel

    content = text.read_text(encoding="utf-8")
    symbols = {symbol: number for number, symbol in enumerate(sorted(set(content)))}
    stream = torch.tensor([symbols[symbol] for symbol in content])
    cut = int(0.9 * len(stream))
    torch.manual_seed(0)

    def draw(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(part) - CONTEXT, (BATCH,)).tolist()
        rows = torch.stack([part[start : start + CONTEXT + 1] for start in starts])  # (B, N + 1)
        return rows[:, :-1], rows[:, 1:]

    def loss_of(part: torch.Tensor) -> torch.Tensor:
        inputs, target = draw(part)
        return functional.cross_entropy(model(inputs).logits.flatten(0, 1), target.flatten())

    sizes = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": CONTEXT, "vocab_size": len(symbols)}
    # The default activation is the same function in several calls.
    fair = {"activation_function": "gelu_pytorch_tanh", "use_cache": False}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropout, **fair))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    began, loss = time.perf_counter(), math.inf
    for update in range(UPDATES):
        share = min(1.0, (update + 1) / 100) * (0.55 + 0.45 * math.cos(math.pi * update / UPDATES))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * share
        optimizer.zero_grad(set_to_none=True)
        loss_of(stream[:cut]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (update + 1) % 250 == 0:
            with torch.no_grad():
                loss = sum(loss_of(stream[cut:]).item() for _ in range(20)) / 20
    return time.perf_counter() - began, loss


def main() -> None:
    words = sys.argv[1:]
    if not words or not Path(words[0]).is_file() or len(words) > 2:
        sys.exit(__doc__)
    text = Path(words[0])
    if words[1:] == ["--bare"]:
        sys.stdout.write(f"{json.dumps(bare(text))}\n")
        return
    os.environ.setdefault("WANDB_MODE", "offline")
    rounds = [(ours(text), bare_process(text)) for _ in range(int(*words[1:] or ["3"]))]
    names = "`blockyard train experiment=gpt_shakespeare`", "bare loop, transformers' GPT-2"
    sys.stdout.write("| | whole, s | training, s | validation loss, nats |\n|---|---|---|---|\n")
    for name, measured in zip(names, zip(*rounds, strict=True), strict=True):
        whole, training, loss = (median(values) for values in zip(*measured, strict=True))
        sys.stdout.write(f"| {name} | {whole:.1f} | {training:.1f} | {loss:.3f} |\n")
    whole, training = (sorted(own[k] / other[k] for own, other in rounds) for k in (0, 1))
    spread = "{:.2f} ({:.2f} to {:.2f})".format
    cells = (spread(median(ratios), ratios[0], ratios[-1]) for ratios in (whole, training))
    sys.stdout.write(f"| ratio | {' | '.join(cells)} | |\n")


if __name__ == "__main__":
    main()
