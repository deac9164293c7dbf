"""More rows of `gpu_check.py`: masks and biases, decoding, CUDA graphs, cells. Each comes with its check.

lengths: forward and backward by FlexAttention of ALiBi and of packed documents, as a multiple of the time with a mask
attention: forward and backward of ALiBi, T5's bias, a window and packed documents, against plain causal flash attention
    of the same shape; the error is that of bf16 against the eager reference in float64
decoding: tokens per second from a cache; greedy ids equal those without a cache, in float32
graphs: a step of a small ViT replayed as a CUDA graph against eager steps; the gradients agree
cells: runs of a sweep that share the device against one after the other; their metrics are equal
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gpu_check
from blockyard.config import build
from blockyard.contracts import Seq

LAYERS = 4
LENGTHS = {128: 64, 256: 32, 512: 16, 1024: 8, 2048: 4}  # tokens: sequences of a batch
SHAPE = {"batch": 8, "heads": 12, "tokens": 4096, "window": 512, "documents": 8, "rounds": 20}
DRY = {"batch": 2, "heads": 2, "tokens": 64, "window": 16, "documents": 4, "rounds": 2}
MASKS = ("alibi", "t5_bias", "window", "packed")


def clock(device: torch.device, call: Callable[[], Any], rounds: int) -> float:
    """Median seconds of a call, after three that warm up."""
    seconds = []
    for number in range(rounds + 3):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        seconds += [time.perf_counter() - start] if number >= 3 else []
    return statistics.median(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _decoder(device: torch.device, choices: dict[str, str], values: dict[str, Any]) -> Any:
    data = {"_target_": "gpu_check.RandomText", "context": values.pop("context"), "batch_size": 2, "vocabulary": 256}
    fixed = {
        "data": data,
        "tokenizer": {"_target_": "gpu_check.Symbols", "vocabulary": 256},
        "trainer.precision": "32",
    }
    families = {"model": "decoder", "head": "token", "objective": "next_token", "logger": "none", **choices}
    return build.Components(gpu_check.config(Path(), families, fixed | values)).model(0).to(device).eval()


def _inputs(device: torch.device, batch: int, heads: int, tokens: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(batch, heads, tokens, 64, generator=generator) for _ in "qkv"]
    return [each.to(device, torch.bfloat16).requires_grad_() for each in drawn]


def _facts(device: torch.device, name: str, batch: int, heads: int, tokens: int, size: dict[str, int]) -> Any:
    from blockyard.ops.mask import Visibility

    index = torch.arange(tokens, device=device)
    seq = Seq(index=index, coords=index[None, :, None].float())
    if name == "packed":
        seq.segment = (index * size["documents"] // tokens).expand(batch, tokens)
    if name in ("alibi", "t5_bias"):
        model = {"model.dim": 64 * heads, "model.heads": heads, "model.depth": 1, "context": tokens}
        seq.position = _decoder(device, {"position": name}, model).position.requires_grad_(False)
    return seq, Visibility(True, size["window"] if name == "window" else None)


def lengths(device: torch.device, dry: bool) -> dict[str, float]:
    """The time of FlexAttention as a multiple of that of a mask, forward and backward, by length."""
    from blockyard.ops.attend import attend, prepare
    from blockyard.ops.kernel import attention_kernel

    size, heads = (DRY if dry else SHAPE), (2 if dry else 12)
    ratios: dict[str, float] = {}

    def step(kernel: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seq: Seq, visibility: Any) -> None:
        seq.memo.clear()  # a batch has a mask of its own, which its layers share
        with attention_kernel(kernel):
            prepare(seq, visibility, heads, 64, q)
            sum(attend(q, k, v, seq, seq, visibility) for _ in range(LAYERS)).sum().backward()

    for tokens, batch in ({64: 2} if dry else LENGTHS).items():
        for name in ("alibi", "packed"):
            facts = (*_inputs(device, batch, heads, tokens), *_facts(device, name, batch, heads, tokens, size))
            ours = "auto" if device.type == "cpu" else "flex"
            seconds = [clock(device, partial(step, kernel, *facts), size["rounds"]) for kernel in (ours, "sdpa")]
            ratios[f"{name} {tokens}"] = seconds[0] / seconds[1]
    return ratios


def masks(device: torch.device, dry: bool) -> dict[str, dict[str, float]]:
    """For each mask: its time as a multiple of plain flash attention's, and its error relative to float64's."""
    from blockyard.ops.attend import attend
    from blockyard.ops.reference import eager

    size = DRY if dry else SHAPE
    batch, heads, tokens = size["batch"], size["heads"], size["tokens"]
    torch._dynamo.config.recompile_limit = 32  # a program for each mask and length
    # One program for each length: with unknown ones torch 2.11 fails to compile FlexAttention's masks.
    attention = torch.compile(attend, dynamic=False) if device.type == "cuda" else attend

    def step(name: str) -> Callable[[], None]:
        q, k, v = _inputs(device, batch, heads, tokens)
        seq, visibility = _facts(device, name, batch, heads, tokens, size)
        return lambda: attention(q, k, v, seq, seq, visibility).sum().backward()

    plain = clock(device, step("plain"), size["rounds"])
    found = {}
    for name in MASKS:
        few, short = 1, min(tokens, 2048)  # the reference holds all scores in float64
        q, k, v = _inputs(device, few, heads, short)
        seq, visibility = _facts(device, name, few, heads, short, size)
        exact = eager(q.double(), k.double(), v.double(), seq, seq, visibility)
        ours = attention(q, k, v, seq, seq, visibility).double()
        error = ((ours - exact).norm() / exact.norm()).item()
        found[name] = {"time": clock(device, step(name), size["rounds"]) / plain, "error": error}
    return found


def decoding(device: torch.device, dry: bool) -> dict[str, float]:
    """Tokens per second at batch 1 from a cache, how often faster than without, and the share of equal greedy ids."""
    from blockyard.generate.decode import collected, decode_batch
    from blockyard.generate.stats import Stats

    prompt, new = list(range(8)), 16 if dry else 512
    shape = (
        {"model.dim": 32, "model.depth": 2, "model.heads": 2}
        if dry
        else {
            "model.dim": 768,
            "model.depth": 12,
            "model.heads": 12,
        }
    )
    model = _decoder(device, {"position": "learned"}, {**shape, "context": 8 + new})
    texts, speeds = {}, {}
    for cache in (True, False, True):  # the first one warms up
        stats = Stats()
        greedy: Callable[[torch.Tensor], int] = lambda scores: int(scores.argmax())  # noqa: E731
        steps = decode_batch(model, [prompt], [greedy], max_tokens=new, cache=cache, stats=stats)
        texts[cache] = collected(steps, 1)[0]
        speeds[cache] = stats.tokens_per_second
    same = sum(a == b for a, b in zip(texts[True], texts[False], strict=True)) / new
    return {"tokens/s": speeds[True], "times uncached": speeds[True] / speeds[False], "equal": same}


def graphs(device: torch.device, dry: bool) -> dict[str, float]:
    """How often faster a small ViT's forward and backward is as a CUDA graph, and the error of its gradients.

    On a CPU, which has no graphs, both sides are eager.
    """
    values = {"model.dim": 64, "model.depth": 4, "model.heads": 4, "tokenizer.size": 2}
    parts = build.Components(gpu_check.config(Path(), {"logger": "none"}, values))
    model = parts.model(0).to(device).train()
    images = torch.rand(32, *parts.data.spec.shape, device=device)

    def gradients(call: Callable[..., Any]) -> list[torch.Tensor]:
        model.zero_grad(set_to_none=False)
        call(images).square().mean().backward()
        return [each.grad.clone() for each in model.parameters() if each.grad is not None]

    rounds = 2 if dry else 50
    eager = clock(device, lambda: gradients(model), rounds)
    exact = gradients(model)
    graphed = torch.cuda.make_graphed_callables(model, (images,)) if device.type == "cuda" else model
    ours = gradients(graphed)
    error = max(float((a - b).norm() / (b.norm() + 1e-12)) for a, b in zip(ours, exact, strict=True))
    return {"times eager": eager / clock(device, lambda: gradients(graphed), rounds), "error": error}


def cells(outputs: Path, dry: bool) -> dict[str, float]:
    """Cells of a sweep that share the device against one after the other: how often faster, and the share whose test
    metrics are equal.
    """
    from blockyard.runs.folder import RunFolder
    from blockyard.runs.identity import run_name
    from blockyard.sweep.cells import Task
    from blockyard.sweep.executor.local import LocalExecutor

    together, seconds, metrics = (2 if dry else 4), {}, {}
    for workers in (1, together):
        folder = outputs / f"cells-{workers}"
        values = {"trainer.max_epochs": None, "trainer.max_steps": 4 if dry else 400, "trainer.eval_every": 1000}
        size = {"model.dim": 16, "model.depth": 1, "model.heads": 2} if dry else {"model.dim": 64}
        choices = {"trainer": "cpu" if dry else "gpu", "logger": "none", "callbacks": "quiet"}
        made = gpu_check.config(folder, choices, {"name": "cell", "tokenizer.size": 2, **values, **size})
        tasks = [Task(f"{run_name(made)}/s{seed}", made | {"seed": seed}) for seed in range(together)]
        start = time.perf_counter()
        gpus = {"gpus": None, "workers": workers} if dry else {"gpus": [0], "cells_per_gpu": workers}
        with LocalExecutor(threads=1, **gpus) as executor:
            for task in tasks:
                executor.submit(task)
            ended = []
            while len(ended) < len(tasks):
                ended += executor.poll(1.0)
        seconds[workers] = time.perf_counter() - start
        if wrong := [f"{each.key}: {each.reason}" for each in ended if each.code]:
            raise RuntimeError("; ".join(wrong))
        metrics[workers] = [RunFolder.open(folder / task.key).summary()["metrics"] for task in tasks]
    same = sum(a == b for a, b in zip(metrics[1], metrics[together], strict=True)) / together
    return {"cells": float(together), "times one by one": seconds[1] / seconds[together], "equal": same}
