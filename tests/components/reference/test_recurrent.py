"""Recurrent mixers against loops over their equations; the scan against a loop; splitting into documents."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.model._prefix import Prefix
from blockyard.token_mixer._recurrent import reverse, scan, split_documents
from blockyard.token_mixer.gru import GRU
from blockyard.token_mixer.linear_recurrence import LinearRecurrence
from blockyard.token_mixer.lstm import LSTM
from blockyard.token_mixer.rnn import RNN
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.components.reference.inputs import sequence, stirred
from tests.support.every import every
from tests.support.helpers import context, tiny

D, N = 16, 7
CELLS = [(RNN, {"nonlinearity": "tanh"}), (RNN, {"nonlinearity": "relu"}), (GRU, {}), (LSTM, {})]


def by_hand(mixer: nn.Module, cell: nn.RNNBase, x: Tensor) -> Tensor:
    """The states over one sequence x (N, D), from the equations: (N, E)."""
    w, u = cell.weight_ih_l0, cell.weight_hh_l0
    b, c = (cell.bias_ih_l0, cell.bias_hh_l0) if cell.bias else (0.0, 0.0)
    h = memory = torch.zeros(cell.hidden_size, dtype=x.dtype)
    states = []
    for token in x:
        from_input, from_state = w @ token + b, u @ h + c
        if isinstance(mixer, RNN):
            h = getattr(torch, cell.nonlinearity)(from_input + from_state)
        elif isinstance(mixer, GRU):
            (r, z, n), (hr, hz, hn) = from_input.chunk(3), from_state.chunk(3)
            keep = torch.sigmoid(z + hz)
            h = keep * h + (1 - keep) * torch.tanh(n + torch.sigmoid(r + hr) * hn)
        else:
            i, f, g, o = (from_input + from_state).chunk(4)
            memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(memory)
        states.append(h)
    return torch.stack(states)


def whole(mixer: nn.Module, x: Tensor) -> Tensor:
    """The output for one sequence x (N, D), in both directions where there are two."""
    states = by_hand(mixer, mixer.ahead, x)
    if mixer.back is not None:
        states = torch.cat([states, by_hand(mixer, mixer.back, x.flip(0)).flip(0)], dim=-1)
    return F.linear(states, mixer.proj_out.weight, mixer.proj_out.bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "options"), CELLS)
def test_cells(kind: type, options: dict[str, str], causal: bool, bias: bool) -> None:
    """Plain, padded and packed sequences."""
    mixer, x = stirred(kind(context(causal=causal), bias=bias, **options)), torch.randn(2, N, D, dtype=torch.float64)
    assert any("bias" in name for name, _ in mixer.named_parameters()) == bias
    plain = mixer(x, sequence(N))
    padded = mixer(x, sequence(N, valid=torch.arange(N) < torch.tensor([[N], [4]])))
    packed = mixer(x, sequence(N, segment=torch.tensor([[0, 0, 0, 1, 1, 2, 2], [5, 5, 5, 5, 5, 5, 5]])))
    for b in range(2):
        assert_close(plain[b], whole(mixer, x[b]))
    assert_close(padded[0], plain[0])
    assert_close(padded[1, :4], whole(mixer, x[1, :4]))
    for part in (slice(0, 3), slice(3, 5), slice(5, 7)):
        assert_close(packed[0, part], whole(mixer, x[0, part]))
    assert_close(packed[1], plain[1])


@pytest.mark.parametrize(("kind", "options"), [*CELLS, (LinearRecurrence, {}), (LinearRecurrence, {"decay": "fixed"})])
def test_the_cache_holds_only_the_state(kind: type, options: dict[str, str]) -> None:
    """It does not grow, and can be reordered."""
    mixer, x = stirred(kind(context(causal=True), **options)), torch.randn(2, N, D, dtype=torch.float64)
    cache, sizes, parts = mixer.init_cache(2), set(), []
    for t in range(N):
        parts.append(mixer(x[:, t : t + 1], sequence(1, start=t), cache))
        sizes.add(cache.bytes)
    assert_close(torch.cat(parts, 1), mixer(x, sequence(N)))
    assert sizes == {2 * D * 8 * (2 if kind is LSTM else 1)}
    cache, order = mixer.init_cache(2), torch.tensor([1, 0, 1])
    mixer(x[:, :5], sequence(5), cache)
    cache.reorder(order)
    assert_close(mixer(x[order, 5:], sequence(2, start=5), cache), mixer(x[order], sequence(N))[:, 5:])


def test_cells_have_gradients_in_evaluation() -> None:
    """On a GPU cuDNN refuses them outside training, and `inspect` needs them."""
    model = tiny(token_mixer="lstm").eval()
    cells = [part for part in model.modules() if isinstance(part, nn.RNNBase)]
    assert len(cells) == 4
    assert every(cell.training for cell in cells)
    assert not any(part.training for part in model.modules() if not isinstance(part, nn.RNNBase))


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_scan_equals_the_loop(length: int) -> None:
    a = torch.rand(2, length, 3, dtype=torch.float64, requires_grad=True)
    b = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    h, states = torch.zeros(2, 3, dtype=torch.float64), []
    for t in range(length):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    loop, fast = torch.stack(states, 1), scan(a, b)
    assert_close(fast, loop)
    if length == 1:
        return  # nothing is multiplied yet, and nothing has a gradient
    weight = torch.randn_like(loop)
    for slow, quick in zip(*(torch.autograd.grad((out * weight).sum(), (a, b)) for out in (loop, fast)), strict=True):
        assert_close(quick, slow)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("decay", ["input", "fixed"])
def test_linear_recurrence(decay: str, causal: bool) -> None:
    """A loop over tokens and documents, in both directions where bidirectional."""
    mixer, x = stirred(LinearRecurrence(context(causal=causal), decay=decay)), torch.randn(2, N, D, dtype=torch.float64)
    valid = torch.arange(N) < torch.tensor([[N], [5]])
    segment = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 2, 2, 2, 2]])
    for real, parts in ((None, None), (valid, None), (None, segment), (valid, segment)):
        out = mixer(x, sequence(N, valid=real, segment=parts))
        for b in range(2):
            size = N if real is None else int(real[b].sum())
            states = torch.zeros(size, D, dtype=torch.float64)
            projected = x[b] @ mixer.proj_in.weight.T + mixer.proj_in.bias
            for c in range(D):
                reverse = not causal and c >= D // 2
                h, last = torch.zeros((), dtype=torch.float64), None
                for t in reversed(range(size)) if reverse else range(size):
                    here = 0 if parts is None else int(parts[b, t])
                    h = h if here == last else torch.zeros_like(h)
                    a = torch.sigmoid(mixer.rate[c] if decay == "fixed" else projected[t, D + c])
                    h, last = a * h + (1 - a) * projected[t, c], here
                    states[t, c] = h
            assert_close(out[b, :size], states @ mixer.proj_out.weight.T + mixer.proj_out.bias)


def test_fixed_decay_has_the_declared_properties() -> None:
    options = {"token_mixer": {"decay": "fixed", "expansion": 1.5}}
    for prefix in (Prefix(), Prefix(registers=2)):
        model = tiny(causal=True, prefix=prefix, token_mixer="linear_recurrence", options=options)
        for promise in (causality, padding, packing, cached_decoding):
            promise(model, 6)
    for promise in (padding, packing):
        promise(tiny(token_mixer="linear_recurrence", options=options), 6)


def test_reverse_is_its_own_inverse() -> None:
    x, valid = torch.randn(3, 5, 2), torch.arange(5) < torch.tensor([[5], [2], [0]])
    reversed_x = reverse(x, valid)
    assert torch.equal(reversed_x[1], x[1, [1, 0, 2, 3, 4]])
    assert torch.equal(reversed_x[2], x[2])
    assert torch.equal(reverse(reversed_x, valid), x)
    assert torch.equal(reverse(x, None), x.flip(1))


def test_split_documents_merge_back_into_place() -> None:
    """The prefixes come first, then each document behind its prefix; padding is dropped, even a whole sequence."""
    x = torch.randn(3, 6, 2)
    segment = torch.tensor([[-1, -1, 0, 0, 1, 1], [-1, -1, 3, 3, 3, 3], [-1, -1, 0, 0, 0, 0]])
    valid = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    seq = Seq(torch.arange(6), torch.zeros(1, 6, 1), valid, segment, num_prefix=2)
    documents = split_documents(x, seq)
    assert torch.equal(documents.merge(documents.x)[valid], x[valid])
    expected = [x[b, :2] for b in range(3)] + [x[0, :4], x[0, [0, 1, 4]], x[1], x[2, :2]]
    actual = [row[real] for row, real in zip(documents.x, documents.valid, strict=True)]
    assert [each.tolist() for each in actual] == [each.tolist() for each in expected]


class ReversesPadding(GRU):
    """Planted: the backward direction starts in the padding."""

    def _states(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return super()._states(x, None)


class ResetsCell(LSTM):
    """Planted: the cell is reset between tokens."""

    def _continue(self, x: Tensor, cache: object) -> Tensor:
        states = super()._continue(x, cache)
        cache.store(cache.parts[0], torch.zeros_like(cache.parts[1]))
        return states


def test_planted_padding_and_reset_are_caught() -> None:
    with pytest.raises(AssertionError):
        padding(tiny(replace={"token_mixer": ReversesPadding}), 6)
    with pytest.raises(AssertionError):
        cached_decoding(tiny(causal=True, replace={"token_mixer": ResetsCell}), 6)
