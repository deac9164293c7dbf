"""The harness of mixers with a state: plain, padded, packed and cached sequences against a formula for one document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import TokenMixer
from blockyard.model._prefix import Prefix
from tests.components.properties.checks import EXACT, cached_decoding, causality, packing, padding
from tests.components.reference.inputs import sequence
from tests.support.helpers import tiny

D = 16  # width of the inputs
PREFIXES = (Prefix(), Prefix(registers=2))


def convolved(conv: nn.Module | None, h: Tensor) -> Tensor:
    """Return the short convolution of one document h (N, C), written out."""
    if conv is None:
        return h
    line = F.pad(h, (0, 0, conv.kernel - 1, 0))
    out = torch.stack([(line[t : t + conv.kernel] * conv.weight.T).sum(0) for t in range(len(h))])
    return out if conv.bias is None else out + conv.bias


def stirred_layer(layer: nn.Module) -> nn.Module:
    """Return a library's layer in float64 with random weights; libraries draw some of them in whole models only."""
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return layer.double().eval()


def equation_holds(mixer: TokenMixer, by_hand: Callable[[Any, Tensor], Tensor]) -> None:
    """Compare outputs of plain, padded and packed sequences with by_hand(mixer, x), x (N, D) of one document."""
    x = torch.randn(2, 7, D, dtype=torch.float64)
    assert_close(mixer(x, sequence(7)), torch.stack([by_hand(mixer, row) for row in x]))
    lengths = (7, 3)
    padded = mixer(x, sequence(7, torch.arange(7) < torch.tensor(lengths)[:, None]))
    for row, length in enumerate(lengths):
        assert_close(padded[row, :length], by_hand(mixer, x[row, :length]))
    cuts = [[4, 3], [1, 1, 5]]
    segment = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in cuts])
    expected = [torch.cat([by_hand(mixer, part) for part in x[row].split(cuts[row])]) for row in range(2)]
    assert_close(mixer(x, sequence(7, segment=segment)), torch.stack(expected))


def sizes_of_a_continued_cache(mixer: TokenMixer) -> set[int]:
    """Check that tokens one by one, several at a time and all at once give the same; return the cache's sizes."""
    x = torch.randn(2, 13, D, dtype=torch.float64)
    cache = mixer.init_cache(2)
    parts, sizes = [], set()
    for start, size in ((0, 1), (1, 4), (5, 1), (6, 1), (7, 6)):
        parts.append(mixer(x[:, start : start + size], sequence(size, start=start), cache))
        sizes.add(cache.bytes)
    assert_close(torch.cat(parts, 1), mixer(x, sequence(13)), **EXACT)
    return sizes


def promises_hold(
    mixer: str, options: dict[str, Any], prefixes: Sequence[Prefix] = PREFIXES, position: str = "none"
) -> None:
    """Check causality, padding, packing and cached decoding of a small model, and padding of a bidirectional one."""
    picks: dict[str, Any] = {"token_mixer": mixer, "position": position, "options": {"token_mixer": options}}
    for prefix in prefixes:
        model = tiny(causal=True, prefix=prefix, **picks)
        for promise in (causality, padding, packing, cached_decoding):
            promise(model, 6)
        padding(tiny(prefix=prefix, **picks), 6)
