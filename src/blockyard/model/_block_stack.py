"""The blocks of a model and the order in which a stream passes them.

Source: for blocks that are visited more than once Dehghani et al. 2019, Universal Transformers (arXiv 1807.03819);
    Lan et al. 2020, ALBERT (arXiv 1909.11942), section 3.1; with more visits at evaluation Geiping et al. 2025, Scaling
    up Test-Time Compute with Latent Reasoning (arXiv 2502.05171), section 3
Reference: x-transformers AttentionLayers(layers_execute_order=...)

    model.order=[0,1,2,1,2,3]:   stream --> 0 --> 1 --> 2 --> 1 --> 2 --> 3 --> final norm
                                            first   [core] [core]   last
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blockyard.contracts import Block, Context, Memory, Parts, Position, Residual, Seq, TokenMixer
from blockyard.model._cache import Cache, empty_cache
from blockyard.model._carry import Carry, build_in_turn
from blockyard.model._embedding import Embeds
from blockyard.model._record import Record, note
from blockyard.ops.ring import under
from blockyard.residual.add import Add


class BlockStack(Embeds):
    """A model, or a part of one, with blocks over vectors. Subclasses call `add_blocks` once.

    order: the index of the block at each visit; a block that is visited twice has one set of weights, and a cache for
        each visit
    kinds: the name of the kind of each block
    positions: position schemes by kind, for kinds with a scheme of their own; other blocks have the model's scheme
    """

    order: tuple[int, ...]
    kinds: tuple[str, ...]

    def backed_out(self, x: Tensor, middle: Tensor | None) -> Tensor:
        """Return the stream after the blocks (B, N, D), less the part that a subclass takes out of it."""
        return x

    @property
    def kept_visit(self) -> int | None:
        """The index of the visit with the output `middle` of `backed_out`, or None."""
        return None

    def add_blocks(self, ctx: Context, parts: Parts) -> list[Block]:
        """Build the blocks of `ctx`, each of its kind, and return them. They run in the order of `ctx`."""
        self.kinds = parts.kinds(ctx.depth)

        def block_of(ctx: Context) -> Block:
            of_kind = parts.of_kind(self.kinds[ctx.layer])
            return of_kind.block(ctx, of_kind.token_mixer, of_kind.channel_mixer, of_kind.norm)

        blocks = build_in_turn(ctx, block_of)
        self.blocks = nn.ModuleList(blocks)
        self.positions = nn.ModuleDict()
        for kind in dict.fromkeys(self.kinds):
            position = parts.of_kind(kind).position
            if position is not parts.position:
                self.positions[kind] = _within_layers(kind, position(ctx))
        self.order = ctx.order or tuple(range(ctx.depth))
        self.carry = Carry(blocks, self.order, [self.position_of(layer) for layer in range(ctx.depth)])
        self.residual = Add(ctx) if parts.residual is None else parts.residual(ctx)
        _check_additions(self.residual, blocks)
        return blocks

    def position_of(self, layer: int) -> Position:
        """Return the scheme that acts in block `layer`."""
        return self._own_positions().get(self.kinds[layer], self.position)

    def _own_positions(self) -> dict[str, Position]:
        return dict(self.positions.items())  # type: ignore[arg-type]

    def placed_mixers(self) -> list[tuple[Position, list[TokenMixer]]]:
        """Return every position scheme with the token mixers of the blocks that it acts in, the model's own first."""
        schemes = [self.position, *self._own_positions().values()]
        placed = []
        for scheme in schemes:
            blocks = [block for layer, block in enumerate(self.blocks) if self.position_of(layer) is scheme]
            placed.append((scheme, first_mixers(blocks)))
        return placed

    @property
    def final_norm_needed(self) -> bool:
        """Return whether the last visited block leaves the stream without a norm."""
        last: Block = self.blocks[self.order[-1]]  # type: ignore[assignment]
        return last.needs_final_norm

    @property
    def mixers(self) -> list[TokenMixer]:
        """The token mixer of each block, in order; a block without one is left out."""
        return first_mixers(self.blocks)

    def init_cache(self, batch_size: int) -> Cache:
        """Return an empty cache for `batch_size` sequences. Raises ValueError for a mixer that cannot have one."""
        return empty_cache(first_mixers([self.blocks[index] for index in self.order]), batch_size)

    def through_blocks(
        self, x: Tensor, seq: Seq, cache: Cache | None, memory: Memory | None, record: Record | None
    ) -> Tensor:
        """Return x (B, N, D) after every visit of a block, as `residual` joins their outputs."""
        seqs = {kind: under(seq, scheme) for kind, scheme in self._own_positions().items()}
        # Masks are made once for all layers: a layer that made its own would make it again in every other layer.
        if (cache is None or cache.length == 0) and not torch.compiler.is_compiling():
            for kind, block in zip(self.kinds, self.blocks, strict=True):
                for mixer in first_mixers([block]):
                    mixer.prepare(x, seqs.get(kind, seq))
        state = self.residual.open(x)
        carried = self.carry.start()
        middle: Tensor | None = None
        for visit, index in enumerate(self.order):
            x, state = self.residual.read(state, visit)
            visit_seq = self.carry.to(index, seqs.get(self.kinds[index], seq), carried)
            layer_cache = None if cache is None else cache.layers[visit]
            output = self.blocks[index](x, visit_seq, layer_cache, memory)  # (B, N, D)
            self.carry.after(visit_seq, carried)
            note(record, f"block.{visit}", output)
            state = self.residual.write(state, visit, x, output)
            if visit == self.kept_visit:
                middle = output
        return self.backed_out(self.residual.close(state), middle)


def _within_layers(kind: str, scheme: Position) -> Position:
    """Return the scheme of a kind. Raises ValueError unless it acts inside the mixers, and nowhere else."""
    if early := scheme.acts_on & scheme.before_blocks:
        raise ValueError(
            f"layers.kinds.{kind}: position {type(scheme).__name__} acts on the tokens before the first layer "
            f"({', '.join(sorted(early))}), which all kinds share; use it as the config's own position"
        )
    if scheme.bounded:
        raise ValueError(
            f"layers.kinds.{kind}: position {type(scheme).__name__} is made for one grid, to which coordinates are "
            "scaled before the first layer; use it as the config's own position"
        )
    if scheme.varies:
        raise ValueError(
            f"layers.kinds.{kind}: coordinates that vary in training are drawn before the first layer, for all kinds; "
            "set position.shift, jitter and rescale of the config's own position"
        )
    return scheme


def _check_additions(residual: Residual, blocks: Sequence[Block]) -> None:
    """Raise ValueError if a residual choice needs additions of blocks, and a block does not add to its input."""
    other = next((block for block in blocks if not block.adds), None)
    if residual.of_additions and other is not None:
        raise ValueError(
            f"residual {type(residual).__name__} treats what a block adds to its input, and {type(other).__name__} "
            "scales or normalises its input; use block=pre_norm"
        )


def first_mixers(blocks: Sequence[nn.Module] | nn.ModuleList) -> list[TokenMixer]:
    """Return the token mixer of each block, in order; a block without one is left out."""
    mixers = []
    for block in blocks:
        mixer = next((part for part in block.modules() if isinstance(part, TokenMixer)), None)
        if mixer is not None:
            mixers.append(mixer)
    return mixers


class Loop(NamedTuple):
    """An order as a loop: `first`, then `core` `times` times, then `last`. No block of the core is in the others."""

    first: tuple[int, ...]
    core: tuple[int, ...]
    times: int
    last: tuple[int, ...]

    def order(self, times: int) -> tuple[int, ...]:
        """Return the order with the core `times` times."""
        return (*self.first, *(self.core * times), *self.last)


def loop_of(order: Sequence[int]) -> Loop | None:
    """Return an order as a loop over its shortest core; None if it does not repeat exactly one run of blocks.

    [0, 1, 2, 1, 2, 3] is a loop over [1, 2]. [0, 1, 0] repeats no run, and [0, 0, 1, 1] repeats two.
    """
    order = tuple(order)
    visits = len(order)
    for start in range(visits):
        for size in range(1, (visits - start) // 2 + 1):
            core = order[start : start + size]
            times = 1
            while order[start + times * size : start + (times + 1) * size] == core:
                times += 1
            loop = Loop(order[:start], core, times, order[start + times * size :])
            once = (*loop.first, *core, *loop.last)
            # A block in two of the parts would be visited at other times than in training.
            if times > 1 and len(set(once)) == len(once):
                return loop
    return None


def loops_problem(model: nn.Module) -> str | None:
    """Return the reason why a model cannot go through its loop more or fewer times than in training, or None."""
    if not isinstance(model, BlockStack):
        return "the model has no blocks"
    if loop_of(model.order) is None:
        return f"model.order={list(model.order)} is not a loop; [0,1,2,1,2,3] is one, which repeats [1,2]"
    if model.kept_visit is not None:
        return "model.backout keeps the stream of one visit of training; use model.backout=null"
    if model.residual.per_visit:
        return f"residual {type(model.residual).__name__} has weights for each visit of training; use residual=add"
    return None


@contextmanager
def loops(model: nn.Module, times: int) -> Iterator[None]:
    """Let the model go through its loop `times` times inside the context. Raises ValueError if it cannot."""
    problem = loops_problem(model)
    if problem or not isinstance(model, BlockStack):
        raise ValueError(problem)
    trained = model.order
    loop = loop_of(trained)
    assert loop is not None
    model.order = loop.order(times)
    try:
        yield
    finally:
        model.order = trained
