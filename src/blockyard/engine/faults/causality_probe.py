"""A look at components from outside the project before they train: do they read later tokens, or padding?

A mixer that declares itself causal and pads on the wrong side trains without a word, to losses that no causal model
can reach. One that averages over padding trains too, and its predictions depend on the other samples of their batch.
The project's own components are held to their declarations by its tests; `blockyard verify` holds others.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from blockyard.config.build import LATE, Components
from blockyard.config.placed_nodes import placed_nodes
from blockyard.config.untrusted.targets import TRUSTED_PACKAGES
from blockyard.contracts import Batch, HasLengths, Split
from blockyard.data.splits.order import take
from blockyard.errors import UserError, fold

_TOLERANCE = 1e-3  # of the outputs' root mean square: far above rounding in float32, far below a leak
_LOOKED_AT = 1000  # samples among which a short and a long one are chosen
_BATCH = 16  # of them, where only a batch tells their lengths
_LARGEST = 10**8  # parameters of which a copy with other weights is made


def check_foreign(components: Components, model: nn.Module, split: Split) -> None:
    """Raise UserError where components of other packages let a token of a decoder read a later one, or read padding.

    Nothing of the run is changed: the passes are made by a copy of the model with other weights, because branches may
    be silent by their initial zeros. Without components of other packages there is nothing to look at.
    """
    foreign = _foreign(components)
    if not foreign:
        return
    probe = _stirred(model)
    _check_padding(components, probe, split, foreign)
    if components.context().causal:
        _check_causality(components, probe, split, foreign)


def _check_causality(components: Components, probe: nn.Module, split: Split, foreign: list[str]) -> None:
    """Raise UserError if predictions depend on later tokens. Only sequences of token ids are looked at."""
    # The first sample twice, because a batch norm needs more than one.
    batch = components.objective.ready(split.batch(torch.zeros(2, dtype=torch.int64), None))
    inputs = batch.inputs
    if inputs.ndim != 2 or inputs.is_floating_point():
        return
    length = inputs.shape[1] if batch.lengths is None else int(batch.lengths.min())
    probe.sees = "past"  # type: ignore[assignment]  # that tokens of a source see each other is no leak
    if length < 2:
        return
    for first in sorted({length // 2, length - 1} - {0}):
        gap = _gap(probe, batch, first, components.tokens().vocabulary or int(inputs.max()) + 1)
        if gap is not None:
            raise UserError(
                f"{fold(foreign)}: the model is a decoder, but its prediction at token {gap} changes when the tokens "
                f"from {first} on are replaced: a component reads later tokens. `blockyard verify FAMILY=CHOICE` "
                "checks one component by itself"
            )


def _check_padding(components: Components, probe: nn.Module, split: Split, foreign: list[str]) -> None:
    """Compare the predictions for a short sample alone with its predictions beside a longer one, where it is padded."""
    pair = _short_and_long(split)
    if pair is None:
        return
    objective = components.objective
    alone = objective.ready(take(split, pair[:1], None))
    padded = objective.ready(take(split, pair, None))
    with torch.random.fork_rng(), torch.no_grad():
        expected: Tensor = probe(alone)[0]
        prediction: Tensor = probe(padded)[0]
    if expected.ndim > 1:  # one prediction for each token; the longer one has predictions of padding behind them
        prediction = prediction[: len(expected)]
    gap = float((prediction - expected).abs().max())
    if gap > _TOLERANCE * float(expected.square().mean().sqrt()):
        raise UserError(
            f"{fold(foreign)}: a prediction changes by {gap:.2g} when its sample is padded to the length of a longer "
            "one of its batch: a component reads padding. Leave out what `seq.valid` says is none; `blockyard verify "
            "FAMILY=CHOICE` checks one component by itself"
        )


def _short_and_long(split: Split) -> Tensor | None:
    """Return a short and a long one of the first samples of a split, (2,); None if none is padded."""
    first = torch.arange(min(_LOOKED_AT, len(split)))
    split_lengths = split.lengths if isinstance(split, HasLengths) else None
    lengths = split.batch(first[:_BATCH], None).lengths if split_lengths is None else split_lengths[first]
    if lengths is None:
        return None
    short, long = int(lengths.argmin()), int(lengths.argmax())
    pair = torch.tensor([short, long])
    if lengths[short] == lengths[long] or split.batch(pair, None).lengths is None:
        return None
    return pair


def _foreign(components: Components) -> list[str]:
    """Return the targets in the model that are not of the project or of the libraries it trusts."""
    targets: dict[str, None] = {}  # each once, in order
    for node in placed_nodes(components.config):
        package = node.target.partition(".")[0]
        if node.key.partition(".")[0] in LATE and package not in TRUSTED_PACKAGES:
            targets[node.target] = None
    return list(targets)


def _gap(probe: nn.Module, batch: Batch, first: int, vocabulary: int) -> int | None:
    """Return the first token before `first` with another prediction when the ids from `first` on are replaced."""
    changed = batch.inputs.clone()
    changed[:, first:] = (changed[:, first:] + 1) % vocabulary
    with torch.random.fork_rng(), torch.no_grad():
        before: Tensor = probe(batch)
        after: Tensor = probe(replace(batch, inputs=changed))
    if before.ndim != 3 or before.shape[1] != batch.inputs.shape[1]:  # one prediction for a whole sequence
        return None
    gaps = (after - before)[:, :first].abs().amax((0, 2))  # (first,)
    size = float(before.square().mean().sqrt())
    changed_tokens = (gaps > _TOLERANCE * size).nonzero()
    if len(changed_tokens):
        return int(changed_tokens[0])
    return None


def _stirred(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode with moved parameters; a very large model is copied as it is."""
    probe = copy.deepcopy(model).eval()
    # A new model may have zeros where a leak would pass, such as in its last projection.
    if sum(parameter.numel() for parameter in probe.parameters()) <= _LARGEST:
        generator = torch.Generator().manual_seed(1)
        for parameter in probe.parameters():
            parameter.data.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.1)
    return probe
