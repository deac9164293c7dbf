"""A decoding step as one compiled function: the model's pass over the newest token of each sequence.

Eager, a step of a small model calls some 400 operations from Python, which on a CPU take about as long as the
matrix products. The compiled step writes into the storage of the caches in place. The number of tokens is a symbol in
it, so that one compilation serves all lengths.

Source: torch.compile, https://docs.pytorch.org/docs/stable/generated/torch.compile.html
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from blockyard.contracts import Model, Position, Seq
from blockyard.errors import UserError
from blockyard.model._cache import Cache, HasCache
from blockyard.ops.cache import KVCache
from blockyard.token_mixer._caches import EmptyCache

BACKEND = "inductor"
MODELS = 64  # compiled in one process; torch compiles eight versions of a function and then refuses


def check_compiles(model: Model) -> None:
    """Raise UserError if the step of a model cannot be compiled: a layer keeps no growing keys and values."""
    advice = "leave compile=true out"
    assert isinstance(model, HasCache)
    try:
        layers = model.init_cache(1).layers
    except ValueError as error:
        raise UserError(f"compile=true needs a cache: {error}; {advice}") from error
    others = sorted({type(layer).__name__ for layer in layers if type(layer) not in (KVCache, EmptyCache)})
    if others or not any(type(layer) is KVCache for layer in layers):
        kept = " and ".join(others) or "none"
        raise UserError(f"compile=true needs a growing key-value cache in every layer, not {kept}; {advice}")


class CompiledStep:
    """Continues a cache by one token for each sequence; equal to `model(token_ids, cache=cache)`.

    cache: holds the first tokens, at least one; it stays valid between steps and may be cropped
    """

    def __init__(self, model: nn.Module, cache: Cache) -> None:
        self.model = model
        self.cache = cache
        first = self._growing()[0].seq
        assert first is not None, "the cache holds the first tokens"
        self._index = first.index
        self._coords = first.coords
        self._seq = first

    def _growing(self) -> list[KVCache]:
        """Return the caches with storage: of layers that do not read the keys and values of another layer."""
        return [layer for layer in self.cache.layers if isinstance(layer, KVCache)]

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the scores after token_ids (B, 1): (B, 1, V). Raises UserError if torch cannot compile the step."""
        layers = self._growing()
        past: Seq = layers[0].seq  # type: ignore[assignment]
        if past is not self._seq:  # other tokens came in, or some were taken out
            self._index = past.index
            self._coords = past.coords
        length = len(past) + 1
        if length > len(self._index):
            self._index = _longer(self._index, 0, length)  # (C,)
            self._coords = _longer(self._coords, 1, length)  # (B|1, C, A)
        index = self._index[:length]
        storage: list[tuple[Tensor, Tensor] | None] = []
        positions: list[Position | None] = []
        for layer in self.cache.layers:
            if isinstance(layer, KVCache):
                storage.append(layer.storage(length))
                positions.append(None if layer.seq is None else layer.seq.position)
            else:
                storage.append(None)
                positions.append(None)
        # One compiled step for all lengths: without these marks torch would specialise on the first ones.
        torch._dynamo.mark_dynamic(index, 0)
        torch._dynamo.mark_dynamic(self._coords, 1)
        for pair in storage:
            for tensor in pair or ():
                torch._dynamo.mark_dynamic(tensor, 2)
        try:
            scores = _compiled(BACKEND)(self.model, token_ids, index, self._coords, storage, past.num_prefix, positions)
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
            reason = type(error).__name__
            for line in str(error).splitlines():
                if line.strip():
                    reason = line
                    break
            raise UserError(f"compile=true: torch cannot compile the step ({reason}); leave it out") from error
        seqs = _of_schemes(index, self._coords[:, :length], past.num_prefix, positions)
        for layer, seq in zip(self.cache.layers, seqs, strict=True):
            if isinstance(layer, KVCache):
                layer.advance(seq)
        assert layers[0].seq is not None
        self._seq = layers[0].seq
        self.cache.length += 1
        return scores


class StoredKeys:
    """The cache of a layer inside the compiled step: storage with a slot for the newest token.

    k (B, H', C, K), v (B, H', C, values' width); seq: the facts of all tokens, shared by the layers of one position
    scheme
    """

    def __init__(self, k: Tensor, v: Tensor, seq: Seq) -> None:
        self.k, self.v, self.seq = k, v, seq

    def append(self, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        """Append one token, as `KVCache.append`."""
        length = self.seq.index.shape[0]
        self.k[:, :, length - 1 : length] = k
        self.v[:, :, length - 1 : length] = v
        if "ends_with" not in self.seq.memo:  # the first layer writes what all layers share
            self.seq.index[length - 1 : length] = seq.index
            self.seq.coords[:, length - 1 : length] = seq.coords
            self.seq.memo["ends_with"] = seq
        return self.k[:, :, :length], self.v[:, :, :length], self.seq


def step(
    model: nn.Module,
    token_ids: Tensor,
    index: Tensor,
    coords: Tensor,
    storage: Sequence[tuple[Tensor, Tensor] | None],
    num_prefix: int,
    positions: Sequence[Position | None],
) -> Tensor:
    """Return the scores (B, 1, V) after token_ids (B, 1). This function is compiled.

    index (M,) and coords (B|1, C, A) of all tokens; the newest token's are written here
    storage: keys and values of each layer, (B, H', C, K) and (B, H', C, values' width), None if it stores nothing;
    positions: its scheme
    """
    seqs = _of_schemes(index, coords[:, : index.shape[0]], num_prefix, positions)
    layers: list[EmptyCache | StoredKeys] = [
        EmptyCache() if pair is None else StoredKeys(*pair, seq) for pair, seq in zip(storage, seqs, strict=True)
    ]
    cache = Cache(layers, index.shape[0] - num_prefix - 1)
    scores: Tensor = model(token_ids, cache=cache)
    return scores


def _of_schemes(index: Tensor, coords: Tensor, num_prefix: int, positions: Sequence[Position | None]) -> list[Seq]:
    """Return the facts of all tokens for each layer; layers of one position scheme share them."""
    seqs: list[Seq] = []
    for position in positions:
        same = [seq for seq in seqs if seq.position is position]
        seqs.append(same[0] if same else Seq(index, coords, num_prefix=num_prefix, position=position))
    return seqs


@functools.cache
def _compiled(backend: str) -> Callable[..., Tensor]:
    """Return `step`, which is compiled at its first call for a model."""
    torch._dynamo.config.recompile_limit = max(MODELS, torch._dynamo.config.recompile_limit)
    compiled: Callable[..., Tensor] = torch.compile(step, backend=backend, fullgraph=True)
    return compiled


def _longer(x: Tensor, dim: int, length: int) -> Tensor:
    """Return a copy of x with room for at least `length` entries along `dim`."""
    shape = list(x.shape)
    # Twice the room, so that a copy is made only as often as the length doubles.
    shape[dim] = max(64, 2 * shape[dim], length)
    longer = x.new_zeros(shape)
    longer.narrow(dim, 0, x.shape[dim]).copy_(x)
    return longer
