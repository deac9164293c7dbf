"""Declared properties of components, as functions of a model that raise `BrokenError`, with a small counter-example.

A model maps token ids (B, N) below 11 to outputs (B, N, V), in float64 and in evaluation mode. Comparisons allow for
rounding only.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import HasAuxiliary, Inputs, active_parameters, auxiliary_loss
from blockyard.errors import first_line

TOLERANCE = 1e-9  # absolute and relative, in float64
VOCABULARY = 11  # token ids that the checks use


class BrokenError(AssertionError):
    """A model does not have a property. The text says what was done, and which output shows it."""


def token_ids(batch: int, length: int, seed: int = 0) -> Tensor:
    """Return random token ids (B, N)."""
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def same(actual: Tensor, expected: Tensor, what: str, first: int = 0) -> None:
    """Raise BrokenError where two outputs (..., N, V) differ, naming the first token that does.

    first: the number of the first of these tokens in the sequence
    """
    if actual.shape != expected.shape:
        raise BrokenError(f"{what} gives outputs of shape {tuple(actual.shape)} instead of {tuple(expected.shape)}")
    if not torch.isfinite(actual).all():
        raise BrokenError(f"{what} gives outputs that are not finite")
    gaps = (actual - expected).abs() - TOLERANCE * expected.abs()  # (..., N, V)
    if gaps.numel() and gaps.max() > TOLERANCE:
        tokens = gaps.amax(-1).reshape(-1, gaps.shape[-2]).amax(0)  # (N,)
        token = int((tokens > TOLERANCE).nonzero()[0])
        raise BrokenError(f"{what} changes the output of token {first + token} by {float(tokens[token]):.3g}")


def differs(actual: Tensor, expected: Tensor) -> None:
    """Raise BrokenError where outputs are the same, so that a check does not pass because nothing happens."""
    if (actual - expected).abs().max() <= 1e-6:
        raise BrokenError("the outputs do not depend on the input")


def mixes(model: nn.Module, length: int) -> bool:
    """Return whether the last token reads an earlier one, which causal models do too."""
    inputs = token_ids(2, length)
    changed = inputs.clone()
    changed[:, : length - 1] = (changed[:, : length - 1] + 1) % VOCABULARY
    return bool((model(inputs) - model(changed))[:, -1].abs().max() > 0)


@torch.no_grad()
def causality(model: nn.Module, length: int) -> None:
    """Changing tokens from t on does not change outputs before t, and changes the output at t."""
    inputs = token_ids(2, length)
    before = model(inputs)
    for t in reversed(range(length)):
        changed = inputs.clone()
        changed[:, t:] = (changed[:, t:] + 1 + torch.arange(length - t)) % VOCABULARY
        after = model(changed)
        later = f"token {t}" if t == length - 1 else f"tokens {t} to {length - 1}"
        same(after[:, :t], before[:, :t], f"replacing {later}")
        differs(after[:, t], before[:, t])


@torch.no_grad()
def padding(model: nn.Module, length: int) -> None:
    """A padded sequence equals the sequence alone, whatever the padding contains; no output is NaN."""
    inputs = token_ids(4, length)
    lengths = torch.tensor([length, length - 2, 1, 0])
    padded = model(Inputs(inputs, lengths=lengths))
    if not torch.isfinite(padded).all():
        raise BrokenError(f"lengths {lengths.tolist()} give outputs that are not finite")
    other = inputs.clone()
    for sample, count in enumerate(lengths.tolist()):
        other[sample, count:] = (other[sample, count:] + 3) % VOCABULARY
    refilled = model(Inputs(other, lengths=lengths))
    for sample, count in enumerate(lengths.tolist()):
        if count:
            alone = model(inputs[sample : sample + 1, :count])
            same(padded[sample, :count], alone[0], f"padding a sequence of {count} tokens to {length}")
        same(refilled[sample, :count], padded[sample, :count], f"other ids in the padding after {count} tokens")


@torch.no_grad()
def padding_of_sequences(model: nn.Module, length: int) -> None:
    """A padded sequence is predicted (B, V) as the sequence alone, whatever the padding contains."""
    inputs = token_ids(4, length)
    lengths = torch.tensor([length, length - 2, 2, 1])
    padded = model(Inputs(inputs, lengths=lengths))
    other = inputs.where(torch.arange(length) < lengths[:, None], (inputs + 3) % VOCABULARY)
    refilled = model(Inputs(other, lengths=lengths))
    for sample, count in enumerate(lengths.tolist()):
        alone = model(inputs[sample : sample + 1, :count])
        same(padded[sample, None], alone, f"padding a sequence of {count} tokens to {length}")
        same(refilled[sample, None], alone, f"other ids in the padding after {count} tokens")
    differs(padded, model(inputs))


@torch.no_grad()
def auxiliary_padding(model: nn.Module, length: int) -> None:
    """The losses of modules of their own, such as those that balance experts, do not depend on padding."""
    inputs = token_ids(4, length)
    lengths = torch.tensor([length - 1, length - 2, 1, length - 1])
    real = torch.arange(length) < lengths[:, None]
    padded = _auxiliary(model, Inputs(inputs, lengths=lengths))
    refilled = _auxiliary(model, Inputs(inputs.where(real, (inputs + 3) % VOCABULARY), lengths=lengths))
    shorter = _auxiliary(model, Inputs(inputs[:, : length - 1], lengths=lengths))
    if not math.isfinite(padded):
        raise BrokenError(f"lengths {lengths.tolist()} give an auxiliary loss that is not finite")
    for loss, what in ((refilled, "other ids in the padding change"), (shorter, "one token of padding less changes")):
        if abs(loss - padded) > TOLERANCE * max(1.0, abs(padded)):
            raise BrokenError(f"{what} the auxiliary loss from {padded:.6g} to {loss:.6g}")


def _auxiliary(model: nn.Module, inputs: Inputs) -> float:
    """Return the sum of the losses that modules add to the objective's loss."""
    # Only these modules are in training, where they compute their losses; no dropout acts elsewhere.
    modules = [module for module in model.modules() if isinstance(module, HasAuxiliary)]
    for module in modules:
        module.training = True
    try:
        model(inputs)
    finally:
        for module in modules:
            module.training = False
    loss = auxiliary_loss(modules)
    return 0.0 if loss is None else float(loss)


@torch.no_grad()
def packing(model: nn.Module, length: int) -> None:
    """Packed documents equal each document alone; padding after them changes nothing."""
    inputs = token_ids(2, length)
    segment = torch.zeros(2, length, dtype=torch.long)
    segment[0, 2:] = 1
    segment[1, 1:], segment[1, 4:] = 1, 2
    packed = model(Inputs(inputs, segment=segment))
    cut = length - 1
    short = model(Inputs(inputs, lengths=torch.tensor([cut, cut]), segment=segment))
    for sample in range(2):
        for document in segment[sample].unique():
            inside = segment[sample] == document
            first = int(inside.nonzero()[0])
            alone = model(inputs[sample : sample + 1, inside])
            same(packed[sample, inside], alone[0], f"packing the document from token {first} on with others", first)
            left = inside[:cut]
            if left.any():
                alone = model(inputs[sample : sample + 1, :cut][:, left])
                same(short[sample, :cut][left], alone[0], "padding after packed documents", first)
    if mixes(model, length):
        differs(packed, model(inputs))


@torch.no_grad()
def cached_decoding(model: nn.Module, length: int) -> None:
    """Decoding from a cache, in chunks of one or more tokens, equals the full forward pass."""
    inputs = token_ids(2, length)
    full = model(inputs)
    for sizes in ([1] * length, [3, 1, length - 4], [length - 2, 2], [length]):
        cache: Any = model.init_cache(2)  # type: ignore[operator]
        parts: list[Tensor] = []
        start = 0
        for size in sizes:
            parts.append(model(inputs[:, start : start + size], cache=cache))
            start += size
            if cache.length != start:
                raise BrokenError(f"after {start} tokens the cache counts {cache.length}")
        same(torch.cat(parts, dim=1), full, f"decoding in chunks of {', '.join(map(str, sizes))} from a cache")


@torch.no_grad()
def permutation(model: nn.Module, length: int) -> None:
    """Without positions, permuting tokens permutes outputs."""
    inputs = token_ids(2, length)
    order = torch.randperm(length, generator=torch.Generator().manual_seed(3))
    before = model(inputs)
    same(model(inputs[:, order]), before[:, order], f"reading the tokens in the order {order.tolist()}")
    differs(model(inputs.roll(1, 0)), before)


def gradients(model: nn.Module, length: int) -> None:
    """Every parameter has a finite gradient that is not zero everywhere, also of losses of modules of their own."""
    model.zero_grad()
    inputs = token_ids(128 if _routes(model) else 4, length)  # enough that every part is sent tokens
    model(inputs).square().mean().backward()
    if any(isinstance(module, HasAuxiliary) for module in model.modules()):
        model.train()
        model(inputs)
        auxiliary = auxiliary_loss(model.modules())
        model.eval()
        if auxiliary is not None:
            auxiliary.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not parameter.grad.abs().max() > 0:
            raise BrokenError(f"no gradient reaches {name}")
        if not torch.isfinite(parameter.grad).all():
            raise BrokenError(f"the gradient of {name} is not finite")


@torch.no_grad()
def determinism(model: nn.Module, length: int) -> None:
    """In evaluation mode, the same input gives the same bits."""
    inputs = token_ids(2, length)
    if not torch.equal(model(inputs), model(inputs)):
        raise BrokenError("two evaluations of one input differ")


@torch.no_grad()
def bfloat16(model: nn.Module, length: int) -> None:
    """In bf16 outputs stay near those of float32: within 5 % of their root mean square."""
    model.float()
    inputs = token_ids(2, length)
    exact = model(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(inputs).float()
    model.double()
    if not torch.isfinite(rough).all():
        raise BrokenError("bf16 gives outputs that are not finite")
    errors = (rough - exact).square().flatten(0, -2).mean(-1)  # of each token
    # A token near a tie is sent elsewhere in half precision, which is no fault; most tokens are not near one.
    error = float((errors.median() if _routes(model) else errors.mean()).sqrt() / exact.square().mean().sqrt())
    if error > 0.05:
        raise BrokenError(f"bf16 changes outputs by {error:.1%} of their root mean square")


def _routes(model: nn.Module) -> bool:
    """Return whether the model sends each token to a part of its weights."""
    return active_parameters(model) < sum(parameter.numel() for parameter in model.parameters())


def compiles(model: nn.Module, length: int) -> None:
    """`torch.compile` makes one graph of the model, which gives the same outputs."""
    inputs = token_ids(2, length)
    torch._dynamo.reset()
    with torch.no_grad():
        expected = model(inputs)
        try:
            with torch._dynamo.config.patch(allow_rnn=True):  # torch traces its own recurrent cells only where asked
                actual = torch.compile(model, fullgraph=True, backend="aot_eager")(inputs)
        except Exception as error:  # whatever the compiler meets
            raise BrokenError(f"torch.compile(fullgraph=True) fails: {first_line(error)}") from error
    same(actual, expected, "torch.compile")
