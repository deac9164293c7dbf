"""Decoding: ours, eager and compiled, against `generate` of transformers' GPT-2 of the same shape, and uncached.

    python benchmarks/decode.py [--rounds 5] [--new 32 256] [--batches 1 16] [--threads 1]

All sides run in one process and alternate: greedy, a prompt of 32 token ids, freshly initialised weights. The time is
that of the tokens after the first, so that neither side pays for reading the prompt; the first round, which also
compiles, is left out. The compiled step has to give the tokens of the eager one. transformers is timed with its default
cache, which grows, and with its static one; each ratio is to the faster of the two in that round. `--new` takes up to
2,048; the loop without a cache runs up to 1,024. Prints a Markdown table. Needs transformers and a C++ compiler.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

PROMPT = 32
UNCACHED = 1_024  # new tokens up to which the loop without a cache is timed
SHAPE = {"dim": 384, "depth": 6, "heads": 6, "context": 2_112, "vocabulary": 257}
Times = list[float]  # seconds at which each token came


def our_model() -> Any:
    from blockyard.config import build
    from blockyard.config.compose import compose

    shape = [f"model.{name}={SHAPE[name]}" for name in ("dim", "depth", "heads")]
    overrides = ["experiment=gpt_code", "tokenizer=byte", "position=learned", "norm=layer", "channel_mixer=mlp"]
    composed = compose([*overrides, *shape, f"data.context={SHAPE['context']}", "trainer=cpu", "logger=none"])
    assert not composed.issues, composed.issues
    return build.Components(composed.config).model(0).eval()


def their_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=SHAPE["vocabulary"],
        n_positions=SHAPE["context"],
        n_embd=SHAPE["dim"],
        n_layer=SHAPE["depth"],
        n_head=SHAPE["heads"],
        activation_function="gelu_pytorch_tanh",  # its default is the same function in several calls
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).eval()


def ours(model: Any, prompts: list[list[int]], new: int, tokens: list[int] | None = None, **how: bool) -> Times:
    """The times of our tokens, which are added to `tokens`; how: arguments of `decode_batch`."""
    from blockyard.generate.decode import decode_batch
    from blockyard.generate.stepper import Stats

    times, settings = [], {"cache": True, **how}
    greedy: Callable[[Any], int] = lambda scores: int(scores.argmax())  # noqa: E731
    for step in decode_batch(model, prompts, [greedy] * len(prompts), max_tokens=new, stats=Stats(), **settings):
        times.append(time.perf_counter())
        if tokens is not None:
            tokens.extend(token_id for _, token_id in step)
    return times


def theirs(model: Any, prompts: list[list[int]], new: int, **how: str) -> Times:
    import torch
    from transformers import LogitsProcessor

    times: Times = []

    class Clock(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            times.append(time.perf_counter())
            return scores

    token_ids = torch.tensor(prompts)
    settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0, **how}
    with torch.inference_mode():
        model.generate(token_ids, attention_mask=torch.ones_like(token_ids), logits_processor=[Clock()], **settings)
    return times


def speed(times: Times, sequences: int) -> float:
    """Tokens per second after the first."""
    return sequences * (len(times) - 1) / (times[-1] - times[0])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    mine, other = our_model(), their_model()
    sizes = " and ".join(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M" for model in (mine, other))
    print(f"{sizes} parameters, fp32, {options.threads} thread{'s' * (options.threads != 1)}; tokens per second\n")
    print(
        "| batch | new tokens | eager | compiled | transformers | its static cache | eager's ratio | compiled's ratio |"
        " uncached | cached to it, eager and compiled |"
        "\n|---|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    for batch in options.batches:
        prompts = [[(7 * row + n) % 256 for n in range(PROMPT)] for row in range(batch)]
        eager_tokens: list[int] = []
        compiled_tokens: list[int] = []
        ours(mine, prompts, min(options.new), eager_tokens)
        ours(mine, prompts, min(options.new), compiled_tokens, compiled=True)
        assert eager_tokens == compiled_tokens, "the compiled step gives other tokens"
        for new in options.new:
            rounds = [one_round(mine, other, prompts, new) for _ in range(options.rounds + 1)][1:]
            eager, compiled, growing, static = (statistics.median(side) for side in zip(*rounds, strict=True))
            ratios = ([each[n] / max(each[2:]) for each in rounds] for n in (0, 1))
            cells = [f"{batch}", f"{new}", *(f"{each:.1f}" for each in (eager, compiled, growing, static))]
            cells += [f"{statistics.median(side):.2f} ({min(side):.2f} to {max(side):.2f})" for side in ratios]
            if batch == 1 and new <= UNCACHED:
                # A loop without a cache grows with the square of the length, so it runs once.
                uncached = speed(ours(mine, prompts, new, cache=False), batch)
                cells += [f"{uncached:.1f}", f"{eager / uncached:.1f}, {compiled / uncached:.1f}"]
            else:
                cells += ["", ""]
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


def one_round(mine: Any, other: Any, prompts: list[list[int]], new: int) -> tuple[float, float, float, float]:
    """Tokens per second of our eager and compiled step, and of transformers with a growing and a static cache."""
    batch = len(prompts)
    return (
        speed(ours(mine, prompts, new), batch),
        speed(ours(mine, prompts, new, compiled=True), batch),
        speed(theirs(other, prompts, new), batch),
        speed(theirs(other, prompts, new, cache_implementation="static"), batch),
    )


if __name__ == "__main__":
    sys.exit(main())
