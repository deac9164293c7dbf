"""Next-token scores for a batch of growing sequences, from a cache if the model has one.

With a cache, a step costs one token; without one, the whole sequence runs again. Both treat a sequence that outgrows
the model alike, so that greedy text is the same. If the position scheme is `bounded`, or a mixer takes sequences of one
length only, the sequence is cut to its last half context and continues from there; all others simply continue. A
sequence that is written up to an end token is never cut, because it would lose its beginning: it stops at the model's
maximum length (`tokens_left`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from blockyard.contracts import Inputs, Memory, Model
from blockyard.generate.compiled_step import CompiledStep
from blockyard.generate.stats import Stats
from blockyard.model._cache import Cache, HasCache, select_sequences

log = logging.getLogger("blockyard")

FEW = 4  # sequences; from about 16 on both orders of weights take the same time
NO_CACHE = "full recomputation: the whole sequence ran for each token"


def has_fixed_length(model: Model) -> bool:
    """Return whether a mixer of the model takes sequences of one length only."""
    return not all(mixer.traits.any_length for mixer in model.mixers)


def max_context(model: Model) -> int | None:
    """Return the length of the longest sequence that a model takes; None if it takes any length."""
    if has_fixed_length(model):
        return model.ctx.tokens.max_len
    if not model.position.bounded:
        return None
    return int(model.ctx.tokens.max_len * model.position.length_scale)


def max_length(model: Model) -> int:
    """Return the length of the longest sequence with an end token: `max_context`, or the data's if unbounded."""
    limit = max_context(model)
    if limit is None:
        return int(model.ctx.tokens.max_len)
    return limit


def tokens_left(model: Model, prompt: Sequence[int], max_tokens: int, end: int | None) -> int:
    """Return the number of tokens that may follow a prompt."""
    if end is None:
        return max_tokens
    # The last token is never read, so that it may lie one beyond the maximum length.
    return max(0, min(max_tokens, max_length(model) - len(prompt) + 1))


@contextmanager
def ordered_for_decoding(model: nn.Module, sequences: int, *, cache: bool) -> Iterator[None]:
    """Store the weights of linear layers column by column inside this context, if a CPU decodes few sequences.

    A linear layer that reads one token multiplies a vector by a matrix, and takes the time of reading the weights. BLAS
    reads them faster if the weights of one input are adjacent than if the weights of one output are, as in
    `nn.Linear`: 1.8 against 2.9 ms for the 10.6 million weights of a GPT of six layers and width 384, on one
    core of an AMD EPYC. Weights that other modules share, such as tied embeddings, stay as they are. No value changes.

    cache: whether a step reads one token of each sequence; nothing is stored otherwise
    """
    layers = []
    if cache and sequences <= FEW:
        layers = _own_weights(model)
    try:
        for layer in layers:
            _store(layer, by_columns=True)
        yield
    finally:
        # A fused optimizer reads weights and their moments in the order of memory, so that both need one order.
        for layer in layers:
            _store(layer, by_columns=False)


def _own_weights(model: nn.Module) -> list[nn.Linear]:
    """Return a linear layer for each weight that is stored `_by_outputs` and that no other kind of module uses."""
    layers: dict[int, nn.Linear] = {}  # by the id of the weight, as linear layers may share one
    others: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            layers[id(module.weight)] = module
        else:
            others |= {id(parameter) for parameter in module.parameters(recurse=False)}
    return [layer for key, layer in layers.items() if key not in others and _by_outputs(layer.weight)]


def _store(layer: nn.Linear, *, by_columns: bool) -> None:
    """Store the weight (outputs, inputs) of a layer with strides (1, outputs), or else (inputs, 1)."""
    with torch.inference_mode(False), torch.no_grad():  # tensors of inference mode could not be trained
        weight = layer.weight
        if by_columns:
            layer.weight.data = weight.t().contiguous().t()
        else:
            layer.weight.data = weight.contiguous()


def _by_outputs(weight: Tensor) -> bool:
    """Return whether a matrix is on the CPU and stored row by row, as `nn.Linear` makes it."""
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.is_contiguous()


def special_token_ids(model: Model, end: int | None) -> list[int]:
    """Return token ids that are predicted and never generated: start, mask, and an end token other than `end`."""
    tokens = model.ctx.tokens
    special = {tokens.start, tokens.mask, tokens.end} - {end}
    predicted = math.inf if tokens.predicted is None else tokens.predicted
    return sorted(token_id for token_id in special if token_id is not None and token_id < predicted)


def describe_cache(cache: Cache) -> str:
    """Return the content of a cache as text; several kinds if layers differ."""
    kinds: dict[str, None] = {}  # in the order of layers, each once
    for layer in cache.layers:
        kind = getattr(layer, "kind", "cache")
        if kind:
            kinds[kind] = None
    return " and ".join(kinds) or "nothing cached (no token reads another)"


def new_cache(model: Model, sequences: int, stats: Stats) -> Cache | None:
    """Return an empty cache; None, with a warning, for a model that has none. `stats` gets the method."""
    assert isinstance(model, HasCache)
    try:
        cache = model.init_cache(sequences)
    except ValueError as error:
        log.warning("no cache, each token runs the whole sequence again: %s", error)
        without = {type(mixer).__name__ for mixer in model.mixers if not hasattr(mixer, "init_cache")}
        names = ", ".join(sorted(without)) or "the model"
        stats.method = f"{NO_CACHE} ({names} has no cache)"
        return None
    stats.method = describe_cache(cache)
    return cache


class Stepper:
    """Token sequences of one length that grow together.

    memory: the encoded sources, one per sequence, for an encoder-decoder
    cache: keep keys, values and states of the past; a model that cannot is warned of, and runs the whole sequence
    end: the end token, if there is one; other special tokens never get a score
    compiled: run each step after the first pass as one compiled function, for models that `check_compiles` accepts
    """

    def __init__(
        self,
        model: Model,
        sequences: list[list[int]],
        *,
        cache: bool,
        memory: Memory | None = None,
        stats: Stats,
        end: int | None = None,
        compiled: bool = False,
    ) -> None:
        self.model = model
        self.memory = memory
        self.stats = stats
        self._compiled = compiled
        self._step: CompiledStep | None = None
        self.sequences = [list(sequence) for sequence in sequences]
        self.limit = max_context(model)
        self._device = next(model.parameters()).device
        self._sources = list(range(len(sequences)))  # the prompt that each sequence continues
        self._special = torch.tensor(special_token_ids(model, end), dtype=torch.int64, device=self._device)
        self._cache: Cache | None = None
        if cache:
            self._cache = self._new_cache()
        else:
            self.stats.method = f"{NO_CACHE} (cache=false)"
        self._cached = 0  # tokens of each sequence that the cache holds
        self._size: tuple[int, int] | None = None  # bytes and length after the last pass with this cache
        self._bytes = 0  # of the cache, as they are part of the cost now
        self._counted: float | None = None  # the time up to which the cost is recorded

    def _new_cache(self) -> Cache | None:
        """Return an empty cache, for which the step is compiled again."""
        self._step = None
        cache = new_cache(self.model, len(self.sequences), self.stats)
        if cache is not None and self._compiled:
            self.stats.method += ", compiled step"
        return cache

    @torch.inference_mode()
    def scores(self) -> Tensor:
        """Return the scores of the next token of each sequence: (R, V)."""
        return self.last_scores(1)[:, 0]

    @torch.inference_mode()
    def last_scores(self, count: int) -> Tensor:
        """Return the scores after each of the last `count` tokens, which no cache may hold yet: (R, count, V)."""
        self.start_clock()
        self.stats.steps += 1
        self.cut()
        scores = self._last_scores(count)  # (R, count, V)
        if not len(self._special):
            return scores
        return scores.index_fill(-1, self._special, -math.inf)

    def cut(self) -> None:
        """Cut sequences that have outgrown the model to their last half context."""
        if self.limit is None or len(self.sequences[0]) <= self.limit:
            return
        self.sequences = [sequence[-max(1, self.limit // 2) :] for sequence in self.sequences]
        self.stats.cuts += 1
        if self._cache is not None:
            # Positions of the tokens that are left begin at zero again, so the whole cut sequence is read again.
            self._cache = self._new_cache()
        self._cached = 0
        self._size = None

    def _last_scores(self, count: int) -> Tensor:
        if self._cache is None:
            return self._full_pass(count)
        new = torch.tensor([sequence[self._cached :] for sequence in self.sequences], device=self._device)  # (R, new)
        scores = self._cached_pass(new)[:, -count:]
        self._cached = len(self.sequences[0])
        self._record_size(self._cache.bytes, self._cache.length)
        return scores

    def _cached_pass(self, new: Tensor) -> Tensor:
        """Return the scores after each of the tokens (R, new) that the cache does not hold yet: (R, new, V)."""
        assert self._cache is not None
        if self._compiled and self._cached and new.shape[1] == 1:
            self._step = self._step or CompiledStep(self.model, self._cache)
            return self._step(new)
        # The cache keeps the memory that came with the first tokens.
        memory = self.memory if self._cache.memory is None else None
        scores: Tensor = self.model(Inputs(new, memory=memory), cache=self._cache)
        return scores

    def _full_pass(self, count: int) -> Tensor:
        # A causal model's scores do not depend on what follows, so padding behind is harmless.
        length = len(self.sequences[0])
        padding: list[int] = []
        if has_fixed_length(self.model):
            padding = [0] * (self.model.ctx.tokens.max_len - length)
        padded = [sequence + padding for sequence in self.sequences]
        inputs = torch.tensor(padded, dtype=torch.int64, device=self._device)  # (R, N)
        return self.model(Inputs(inputs, memory=self.memory))[:, length - count : length]  # (R, count, V)

    def _record_size(self, size: int, length: int) -> None:
        self.stats.cache_bytes = (self.stats.cache_bytes or 0) + size - self._bytes
        self._bytes = size
        if self._size is None:
            self.stats.cache_bytes_per_token = size / length / len(self.sequences)
        else:
            last_size, last_length = self._size
            if length > last_length:
                # Of the last tokens alone: a window that is full by now grows no further.
                self.stats.cache_bytes_per_token = (size - last_size) / (length - last_length) / len(self.sequences)
        self._size = (size, length)

    def append(self, token_ids: list[int]) -> None:
        """Add a token id to each sequence."""
        for sequence, token_id in zip(self.sequences, token_ids, strict=True):
            sequence.append(token_id)

    def start_clock(self) -> None:
        """Let the time that `count_tokens` records begin now, if it has not begun."""
        if self._counted is None:
            self._counted = time.perf_counter()

    def count_tokens(self, count: int) -> None:
        """Record `count` generated tokens and the time since the last ones; other sequences may share the cost."""
        now = time.perf_counter()
        seconds = 0.0
        if self._counted is not None:
            seconds = now - self._counted
        self.stats.count(count, seconds)
        self._counted = now

    def count_unfinished(self) -> None:
        """Record a sequence that reached the model's maximum length without an end token."""
        self.stats.unfinished += 1
        self.stats.max_length = max_length(self.model)

    def reorder(self, order: list[int]) -> None:
        """Let sequence r continue the former sequence `order[r]`; sequences may be repeated or dropped."""
        indices = torch.tensor(order, device=self._device)
        sources = [self._sources[number] for number in order]
        if self._size is not None:
            # More sequences are not growth of one.
            size, length = self._size
            self._size = (size * len(order) // len(self.sequences), length)
        self.sequences = [list(self.sequences[number]) for number in order]
        if self._cache is not None:
            self._cache.reorder(indices, one_source=True)
        if self.memory is not None and sources != self._sources:
            # Only if a sequence changes its source: selecting drops the keys that were computed from it.
            self.memory = select_sequences(self.memory, indices)
            if self._cache is not None:
                self._cache.memory = self.memory
        self._sources = sources
