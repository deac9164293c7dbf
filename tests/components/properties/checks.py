"""What components promise, as functions of a model that raise AssertionError where it is not kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.helpers import symbols

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def differs(a: Tensor, b: Tensor) -> None:
    """Guards against a test that holds because nothing happens."""
    assert (a - b).abs().max() > 1e-6, "the outputs do not depend on the input"


def mixes(model: nn.Module, length: int) -> bool:
    """Whether any token reads another: one that comes before it, for a model may look back only."""
    inputs = symbols(2, length)
    changed = inputs.clone()
    changed[:, : length - 1] = (changed[:, : length - 1] + 1) % 11
    return bool((model(inputs) - model(changed))[:, -1].abs().max() > 0)


@torch.no_grad()
def causality(model: nn.Module, length: int) -> None:
    """Changing tokens from t on does not move outputs before t, and does move the one at t."""
    inputs = symbols(2, length)
    before = model(inputs)
    for t in range(length):
        changed = inputs.clone()
        changed[:, t:] = (changed[:, t:] + 1 + torch.arange(length - t)) % 11
        after = model(changed)
        assert_close(after[:, :t], before[:, :t], **EXACT)
        differs(after[:, t], before[:, t])


@torch.no_grad()
def padding(model: nn.Module, length: int) -> None:
    """A padded row gives what it gives alone, whatever the padding holds; no row gives NaN."""
    inputs = symbols(4, length)
    lengths = torch.tensor([length, length - 2, 1, 0])
    padded = model(inputs, lengths=lengths)
    assert torch.isfinite(padded).all()
    other = inputs.clone()
    for row, count in enumerate(lengths.tolist()):
        other[row, count:] = (other[row, count:] + 3) % 11
    refilled = model(other, lengths=lengths)
    for row, count in enumerate(lengths.tolist()):
        if count:
            alone = model(inputs[row : row + 1, :count])
            assert_close(padded[row, :count], alone[0], **EXACT)
        assert_close(refilled[row, :count], padded[row, :count], **EXACT)


@torch.no_grad()
def padding_of_answers(model: nn.Module, length: int) -> None:
    """A padded row's one answer is what the row gives alone; another first or last token changes it."""
    inputs = symbols(4, length)
    lengths = torch.tensor([length, length - 2, 1, 0])
    padded = model(inputs, lengths=lengths)
    assert torch.isfinite(padded).all()
    for row, count in enumerate(lengths.tolist()):
        other = inputs[row : row + 1].clone()
        other[:, count:] = (other[:, count:] + 3) % 11
        assert_close(model(other, lengths=lengths[row : row + 1])[0], padded[row], **EXACT)
        if count:
            assert_close(padded[row], model(inputs[row : row + 1, :count])[0], **EXACT)
        for place in {0, count - 1} if count else ():
            other = inputs[row : row + 1].clone()
            other[:, place] = (other[:, place] + 3) % 11
            differs(model(other, lengths=lengths[row : row + 1])[0], padded[row])


@torch.no_grad()
def packing(model: nn.Module, length: int) -> None:
    """Documents packed into a row give what each gives alone; padding after them changes nothing."""
    inputs = symbols(2, length)
    segment = torch.zeros(2, length, dtype=torch.long)
    segment[0, 2:] = 1
    segment[1, 1:], segment[1, 4:] = 1, 2
    packed = model(inputs, segment=segment)
    cut = length - 1
    short = model(inputs, lengths=torch.tensor([cut, cut]), segment=segment)
    for row in range(2):
        for number in segment[row].unique():
            here = segment[row] == number
            alone = model(inputs[row : row + 1, here])
            assert_close(packed[row, here], alone[0], **EXACT)
            kept = here[:cut]
            if kept.any():
                alone = model(inputs[row : row + 1, :cut][:, kept])
                assert_close(short[row, :cut][kept], alone[0], **EXACT)
    if mixes(model, length):
        differs(packed, model(inputs))


@torch.no_grad()
def cached_decoding(model: nn.Module, length: int) -> None:
    """Token by token and in pieces, a cache gives what the full pass gives."""
    inputs = symbols(2, length)
    full = model(inputs)
    for sizes in ([1] * length, [3, 1, length - 4], [length - 2, 2], [length]):
        cache, parts, start = model.init_cache(2), [], 0
        for size in sizes:
            parts.append(model(inputs[:, start : start + size], cache=cache))
            start += size
            assert cache.length == start
        assert_close(torch.cat(parts, dim=1), full, **EXACT)


@torch.no_grad()
def permutation(model: nn.Module, length: int) -> None:
    """Without positions, permuting tokens permutes outputs."""
    inputs = symbols(2, length)
    order = torch.randperm(length, generator=torch.Generator().manual_seed(3))
    before = model(inputs)
    assert_close(model(inputs[:, order]), before[:, order], **EXACT)
    differs(model(inputs.roll(1, 0)), before)


@torch.no_grad()
def relative(model: nn.Module, length: int) -> None:
    """Moving all coordinates by one vector changes nothing."""
    inputs = symbols(2, length)
    before = model(inputs)
    model.embedder.shift = 5.0
    moved = model(inputs)
    model.embedder.shift = 0.0
    assert_close(moved, before, rtol=1e-7, atol=1e-7)


@torch.no_grad()
def channels_alone(mixer: nn.Module, dim: int) -> None:
    """A channel mixer's token t depends on token t only."""
    x = torch.randn(2, 5, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = mixer(x)
    assert before.shape == x.shape
    for t in range(5):
        changed = x.clone()
        changed[:, t, ::2] += 1.0
        after = mixer(changed)
        rest = [n for n in range(5) if n != t]
        assert_close(after[:, rest], before[:, rest], **EXACT)
        differs(after[:, t], before[:, t])
        assert_close(mixer(x[:, t : t + 1]), before[:, t : t + 1], **EXACT)


def fused_equals_unfused(fused: nn.Module, unfused: nn.Module, length: int) -> None:
    """Equal outputs, gradients and checkpoints."""
    unfused.load_state_dict(fused.state_dict())
    fused.load_state_dict(unfused.state_dict())
    inputs = symbols(2, length)
    outputs = [model(inputs) for model in (fused, unfused)]
    assert_close(outputs[0], outputs[1], **EXACT)
    for output in outputs:
        output.square().mean().backward()
    named = dict(unfused.named_parameters())
    assert dict(fused.named_parameters()).keys() == named.keys()
    for name, parameter in fused.named_parameters():
        assert parameter.grad is not None
        assert_close(parameter.grad, named[name].grad, **EXACT)
