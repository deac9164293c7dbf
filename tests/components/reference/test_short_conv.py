"""The short convolution in front of mixers against torch's, over documents, a prefix, and continued sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.token_mixer import _short_conv
from blockyard.token_mixer._short_conv import ShortConv, last_inputs
from tests.components.reference.inputs import sequence, stirred

C = 6


def by_torch(conv: ShortConv, x: Tensor) -> Tensor:
    """Zeros in front, and torch's convolution with a group for each channel."""
    line = F.pad(x.transpose(1, 2), (conv.kernel - 1, 0))
    return F.conv1d(line, conv.weight[:, None], conv.bias, groups=C).transpose(1, 2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernel", [1, 2, 4, 9])
def test_a_convolution_of_each_channel(kernel: int, bias: bool) -> None:
    conv = stirred(ShortConv(C, kernel, bias=bias))
    for n in (1, 3, 7):
        x = torch.randn(2, n, C, dtype=torch.float64)
        assert_close(conv(x, sequence(n)), by_torch(conv, x), rtol=1e-12, atol=1e-12)


def documents(conv: ShortConv, x: Tensor, segment: Tensor, prefix: int) -> Tensor:
    """Each document of a sequence x (1, N, C) behind the prefix, on its own."""
    parts = [by_torch(conv, x[:, :prefix])] if prefix else []
    for document in segment[0, prefix:].unique_consecutive():
        own = torch.cat([x[:, :prefix], x[:, prefix:][:, segment[0, prefix:] == document]], 1)
        parts.append(by_torch(conv, own)[:, prefix:])
    return torch.cat(parts, 1)


@pytest.mark.parametrize("prefix", [0, 1, 2, 5])
@pytest.mark.parametrize("kernel", [1, 3, 4])
def test_a_document_reads_the_prefix_and_no_other_document(kernel: int, prefix: int) -> None:
    conv = stirred(ShortConv(C, kernel, bias=True))
    # The first document has the number that the prefix has.
    segments = torch.tensor([[0, 0, 0, 1, 1, 2, 3], [4, 5, 5, 5, 5, 5, 6]])
    segment = F.pad(segments, (prefix, 0), value=0)
    x = torch.randn(2, segment.shape[1], C, dtype=torch.float64)
    seq = replace(sequence(segment.shape[1], segment=segment), num_prefix=prefix)
    expected = torch.cat([documents(conv, x[row : row + 1], segment[row : row + 1], prefix) for row in range(2)])
    assert_close(conv(x, seq), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", [1, 2, 4])
def test_a_continued_sequence(kernel: int) -> None:
    conv = stirred(ShortConv(C, kernel, bias=True))
    x, past, parts = torch.randn(2, 9, C, dtype=torch.float64), None, []
    for start, size in ((0, 1), (1, 1), (2, 4), (6, 1), (7, 2)):
        step = x[:, start : start + size]
        parts.append(conv(step, sequence(size, start=start), past))
        past = last_inputs(past, step, kernel - 1)
        assert past.shape == (2, kernel - 1, C)
    assert_close(torch.cat(parts, 1), by_torch(conv, x), rtol=1e-12, atol=1e-12)


def test_documents_after_a_past_are_refused() -> None:
    conv, x = stirred(ShortConv(C, 3)), torch.randn(1, 2, C, dtype=torch.float64)
    with pytest.raises(ValueError, match="one document at a time"):
        conv(x, sequence(2, segment=torch.zeros(1, 2, dtype=torch.int64)), x)


def test_planted_leak_between_documents_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every document starts where the sequence starts."""

    monkeypatch.setattr(_short_conv, "document_starts", lambda segment, num_prefix: torch.zeros_like(segment))
    with pytest.raises(AssertionError):
        test_a_document_reads_the_prefix_and_no_other_document(3, 0)
