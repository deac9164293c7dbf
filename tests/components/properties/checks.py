"""Declared properties that the project's own tests check beside those of `blockyard verify`.

Each is a function of a model that raises AssertionError where it fails.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from blockyard.contracts import Inputs
from blockyard.verify.checks import cached_decoding, causality, differs, packing, padding, permutation
from tests.support.helpers import token_ids

__all__ = ["cached_decoding", "causality", "differs", "packing", "padding", "permutation"]

EXACT = {"rtol": 1e-9, "atol": 1e-9}


@torch.no_grad()
def padding_of_pooled_outputs(model: nn.Module, length: int) -> None:
    """The one prediction of a padded sequence equals that of the sequence alone; its first and last token matter."""
    inputs = token_ids(4, length)
    lengths = torch.tensor([length, length - 2, 1, 0])
    padded = model(Inputs(inputs, lengths=lengths))
    assert torch.isfinite(padded).all()
    for sample, count in enumerate(lengths.tolist()):
        other = inputs[sample : sample + 1].clone()
        other[:, count:] = (other[:, count:] + 3) % 11
        assert_close(model(Inputs(other, lengths=lengths[sample : sample + 1]))[0], padded[sample], **EXACT)
        if count:
            assert_close(padded[sample], model(inputs[sample : sample + 1, :count])[0], **EXACT)
        for index in {0, count - 1} if count else ():
            other = inputs[sample : sample + 1].clone()
            other[:, index] = (other[:, index] + 3) % 11
            differs(model(Inputs(other, lengths=lengths[sample : sample + 1]))[0], padded[sample])


@torch.no_grad()
def relative(model: nn.Module, length: int) -> None:
    """Translating all coordinates by one vector changes nothing."""
    inputs = token_ids(2, length)
    before = model(inputs)
    model.embedder.shift = 5.0
    moved = model(inputs)
    model.embedder.shift = 0.0
    assert_close(moved, before, **EXACT)


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
