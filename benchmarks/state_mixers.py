"""The chunked forms of mixers with a state against the torch forms of transformers: equal inputs, in the same rounds.

    python benchmarks/state_mixers.py [--rounds 9] [--tokens 256 1024] [--only mLSTM Mamba-2]

A side is forward and backward pass of the state alone, without projections: in float32, on one thread, of 4 sequences
with 4 heads of 32 channels, for Mamba 128 inner channels with 16 states each. Sides alternate, and their order is
turned after every round. Times are CPU time, which another process on the machine changes little. Ratios are theirs to
ours, above 1 where ours takes less time: the median over rounds, with the least and the largest. The answer is a
Markdown table on standard output. Needs transformers, without fla, causal-conv1d and mamba-ssm, whose kernels would
replace its torch forms.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Seq
from blockyard.ops.fast_weights import chunked
from blockyard.token_mixer._recurrent import blocked_scan, causal_states
from blockyard.token_mixer.mlstm import stabilisers

BATCH, HEADS, WIDTH, INNER, STATES = 4, 4, 32, 128, 16
Side = Callable[[], Tensor]


def turned(x: Tensor) -> Tensor:
    """(B, N, H, K) -> (B, H, N, K)."""
    return x.transpose(1, 2)


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Random inputs of these shapes, with gradients."""
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def delta_rule(tokens: int, channels: int, theirs: Callable[..., tuple[Tensor, Tensor | None]]) -> tuple[Side, Side]:
    """The delta rule with a decay for each head, or for each of `channels`."""
    q, k, v = leaves(*[(BATCH, tokens, HEADS, WIDTH)] * 3)
    steps, logits = leaves((BATCH, tokens, HEADS, channels), (BATCH, tokens, HEADS))

    def parts() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), -F.softplus(steps), logits.sigmoid()

    def ours() -> Tensor:
        a, b, log, beta = parts()
        parts_of_heads = (turned(part) for part in (a * WIDTH**-0.5, b, v, log, beta[..., None]))
        return turned(chunked(*parts_of_heads, chunk=32)[0])

    def library() -> Tensor:
        a, b, log, beta = parts()
        return theirs(a, b, v, log if channels > 1 else log[..., 0], beta)[0]

    return ours, library


def gated_delta_rule(tokens: int) -> tuple[Side, Side]:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    return delta_rule(tokens, 1, torch_chunk_gated_delta_rule)


def kimi_delta_attention(tokens: int) -> tuple[Side, Side]:
    from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention

    return delta_rule(tokens, WIDTH, chunk_kimi_delta_attention)


def mamba2(tokens: int) -> tuple[Side, Side]:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    x, b, c = leaves(*[(BATCH, tokens, HEADS, WIDTH)] * 3)
    (steps,) = leaves((BATCH, tokens, HEADS))
    rate = -torch.rand(HEADS)

    def ours() -> Tensor:
        step = F.softplus(steps)[..., None]
        return turned(chunked(*map(turned, (c, b, step * x, rate[:, None] * step)), chunk=32)[0])

    def library() -> Tensor:
        return mamba2_chunk_scan(x, F.softplus(steps), rate, b, c, chunk_size=64)

    return ours, library


def mlstm(tokens: int) -> tuple[Side, Side]:
    from transformers.models.xlstm.modeling_xlstm import mlstm_chunkwise_native_autograd

    q, k, v = leaves(*[(BATCH, HEADS, tokens, WIDTH)] * 3)
    gates, forgets = leaves(*[(BATCH, HEADS, tokens, 1)] * 2)
    index = torch.arange(tokens)
    seq = Seq(index, index[None, :, None].float())

    def ours() -> Tensor:
        log = F.logsigmoid(forgets)
        levels, earlier = stabilisers(log.detach(), gates.detach(), seq)
        values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1) * (gates - levels).exp()
        y, _ = chunked(q * WIDTH**-0.5, k, values, log + earlier - levels, chunk=32)
        return y[..., :-1] / (torch.maximum(y[..., -1:].abs(), (-levels).exp()) + 1e-6)

    def library() -> Tensor:
        chunk = math.gcd(tokens, 64)
        return mlstm_chunkwise_native_autograd(q, k, v, gates[..., 0], forgets[..., 0], chunk_size=chunk)

    return ours, library


def mamba(tokens: int) -> tuple[Side, Side]:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    x, steps = leaves(*[(BATCH, tokens, INNER)] * 2)
    b, c = leaves(*[(BATCH, tokens, STATES)] * 2)
    rate = -torch.rand(INNER, STATES)
    index = torch.arange(tokens)
    seq = Seq(index, index[None, :, None].float())

    def ours() -> Tensor:
        step = F.softplus(steps)
        decay, added = torch.exp(step[..., None] * rate), (step * x)[..., None] * b[:, :, None]
        states = causal_states(decay.flatten(2), added.flatten(2), seq, scan=blocked_scan)
        return (states.unflatten(-1, (INNER, -1)) @ c[..., None])[..., 0]

    def library() -> Tensor:
        y = mamba_selective_scan(*(part.transpose(1, 2) for part in (x, F.softplus(steps))), rate, turned(b), turned(c))
        return y.transpose(1, 2)

    return ours, library


ROWS = {
    "gated delta rule": gated_delta_rule,
    "Kimi delta attention": kimi_delta_attention,
    "Mamba-2": mamba2,
    "mLSTM": mlstm,
    "Mamba": mamba,
}


def timed(side: Side) -> float:
    """CPU seconds of one forward and backward pass."""
    start = time.process_time()
    side().square().mean().backward()
    return time.process_time() - start


def compare(make: Callable[[int], tuple[Side, Side]], tokens: int, rounds: int) -> tuple[list[float], list[float]]:
    """The times of both sides in each round, after one that is not counted and checks that they agree."""
    ours, library = make(tokens)
    torch.testing.assert_close(ours(), library(), rtol=1e-3, atol=1e-3)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for side in (0, 1) if turn % 2 else (1, 0):
            times[side].append(timed((ours, library)[side]))
    return times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    sys.stdout.write("| mixer | tokens | ours, ms | transformers, ms | ratio |\n|---|---|---|---|---|\n")
    for name in args.only:
        for tokens in args.tokens:
            ours, library = compare(ROWS[name], tokens, args.rounds)
            ratios = [b / a for a, b in zip(ours, library, strict=True)]
            span = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            times = f"{1e3 * statistics.median(ours):.1f} | {1e3 * statistics.median(library):.1f}"
            sys.stdout.write(f"| {name} | {tokens} | {times} | {span} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
