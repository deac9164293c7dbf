"""Declared properties of components, as functions of a model that raise AssertionError where they fail."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.helpers import token_ids

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def differs(a: Tensor, b: Tensor) -> None:
    """Asserts that the outputs differ, so that a test does not pass because nothing happens."""
    assert (a - b).abs().max() > 1e-6, "the outputs do not depend on the input"


def mixes(model: nn.Module, length: int) -> bool:
    """Whether the last token reads an earlier one, which causal models do too."""
    inputs = token_ids(2, length)
    changed = inputs.clone()
    changed[:, : length - 1] = (changed[:, : length - 1] + 1) % 11
    return bool((model(inputs) - model(changed))[:, -1].abs().max() > 0)


@torch.no_grad()
def causality(model: nn.Module, length: int) -> None:
    """Changing tokens from t on does not change outputs before t, and changes the output at t."""
    inputs = token_ids(2, length)
    before = model(inputs)
    for t in range(length):
        changed = inputs.clone()
        changed[:, t:] = (changed[:, t:] + 1 + torch.arange(length - t)) % 11
        after = model(changed)
        assert_close(after[:, :t], before[:, :t], **EXACT)
        differs(after[:, t], before[:, t])


@torch.no_grad()
def padding(model: nn.Module, length: int) -> None:
    """A padded sequence equals the sequence alone, whatever the padding contains; no output is NaN."""
    inputs = token_ids(4, length)
    lengths = torch.tensor([length, length - 2, 1, 0])
    padded = model(inputs, lengths=lengths)
    assert torch.isfinite(padded).all()
    other = inputs.clone()
    for sample, count in enumerate(lengths.tolist()):
        other[sample, count:] = (other[sample, count:] + 3) % 11
    refilled = model(other, lengths=lengths)
    for sample, count in enumerate(lengths.tolist()):
        if count:
            alone = model(inputs[sample : sample + 1, :count])
            assert_close(padded[sample, :count], alone[0], **EXACT)
        assert_close(refilled[sample, :count], padded[sample, :count], **EXACT)


@torch.no_grad()
def padding_of_pooled_outputs(model: nn.Module, length: int) -> None:
    """The one prediction of a padded sequence equals that of the sequence alone; its first and last token matter."""
    inputs = token_ids(4, length)
    lengths = torch.tensor([length, length - 2, 1, 0])
    padded = model(inputs, lengths=lengths)
    assert torch.isfinite(padded).all()
    for sample, count in enumerate(lengths.tolist()):
        other = inputs[sample : sample + 1].clone()
        other[:, count:] = (other[:, count:] + 3) % 11
        assert_close(model(other, lengths=lengths[sample : sample + 1])[0], padded[sample], **EXACT)
        if count:
            assert_close(padded[sample], model(inputs[sample : sample + 1, :count])[0], **EXACT)
        for index in {0, count - 1} if count else ():
            other = inputs[sample : sample + 1].clone()
            other[:, index] = (other[:, index] + 3) % 11
            differs(model(other, lengths=lengths[sample : sample + 1])[0], padded[sample])


@torch.no_grad()
def packing(model: nn.Module, length: int) -> None:
    """Packed documents equal each document alone; padding after them changes nothing."""
    inputs = token_ids(2, length)
    segment = torch.zeros(2, length, dtype=torch.long)
    segment[0, 2:] = 1
    segment[1, 1:], segment[1, 4:] = 1, 2
    packed = model(inputs, segment=segment)
    cut = length - 1
    short = model(inputs, lengths=torch.tensor([cut, cut]), segment=segment)
    for sample in range(2):
        for document in segment[sample].unique():
            inside = segment[sample] == document
            alone = model(inputs[sample : sample + 1, inside])
            assert_close(packed[sample, inside], alone[0], **EXACT)
            left = inside[:cut]
            if left.any():
                alone = model(inputs[sample : sample + 1, :cut][:, left])
                assert_close(short[sample, :cut][left], alone[0], **EXACT)
    if mixes(model, length):
        differs(packed, model(inputs))


@torch.no_grad()
def cached_decoding(model: nn.Module, length: int) -> None:
    """Decoding from a cache, in chunks of one or more tokens, equals the full forward pass."""
    inputs = token_ids(2, length)
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
    inputs = token_ids(2, length)
    order = torch.randperm(length, generator=torch.Generator().manual_seed(3))
    before = model(inputs)
    assert_close(model(inputs[:, order]), before[:, order], **EXACT)
    differs(model(inputs.roll(1, 0)), before)


@torch.no_grad()
def relative(model: nn.Module, length: int) -> None:
    """Translating all coordinates by one vector changes nothing."""
    inputs = token_ids(2, length)
    before = model(inputs)
    model.embedder.shift = 5.0
    moved = model(inputs)
    model.embedder.shift = 0.0
    assert_close(moved, before, rtol=1e-7, atol=1e-7)


@torch.no_grad()
def tokens_alone(mixer: nn.Module, dim: int) -> None:
    """Output t of a channel mixer depends on token t only."""
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
    inputs = token_ids(2, length)
    outputs = [model(inputs) for model in (fused, unfused)]
    assert_close(outputs[0], outputs[1], **EXACT)
    for output in outputs:
        output.square().mean().backward()
    named = dict(unfused.named_parameters())
    assert dict(fused.named_parameters()).keys() == named.keys()
    for name, parameter in fused.named_parameters():
        assert parameter.grad is not None
        assert_close(parameter.grad, named[name].grad, **EXACT)
