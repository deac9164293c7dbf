"""The blocks of a model and the order in which a stream passes them.

Source: of blocks that are visited more than once Dehghani et al. 2019, Universal Transformers (arXiv 1807.03819);
    Lan et al. 2020, ALBERT (arXiv 1909.11942), section 3.1; with more visits at evaluation Geiping et al. 2025, Scaling
    up Test-Time Compute with Latent Reasoning (arXiv 2502.05171), section 3
Reference: x-transformers AttentionLayers(layers_execute_order=...)

    model.order=[0,1,2,1,2,3]:   stream --> 0 --> 1 --> 2 --> 1 --> 2 --> 3 --> final norm
                                            first   [core] [core]   last
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blockyard.contracts import Block, Context, Memory, Parts, Residual, Seq, TokenMixer
from blockyard.model._cache import Cache, empty_cache
from blockyard.model._embedding import Embeds
from blockyard.model._record import Record, note
from blockyard.residual.add import Add


class BlockStack(Embeds):
    """A model, or a part of one, with blocks over vectors. Subclasses call `add_blocks` once.

    order: the index of the block at each visit; a block that is visited twice has one set of weights, and a cache for
        each visit
    """

    order: tuple[int, ...]

    def add_blocks(self, ctx: Context, parts: Parts, token_mixer: Callable[[Context], TokenMixer]) -> list[Block]:
        """Build the blocks of `ctx` and return them. They run in the order of `ctx`."""
        factories = (token_mixer, parts.channel_mixer, parts.norm)
        blocks: list[Block] = [parts.block(ctx.at(layer), *factories) for layer in range(ctx.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.order = ctx.order or tuple(range(ctx.depth))
        self.residual = Add(ctx) if parts.residual is None else parts.residual(ctx)
        _check_additions(self.residual, blocks[0])
        return blocks

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
        if (cache is None or cache.length == 0) and not torch.compiler.is_compiling():
            for mixer in self.mixers:
                mixer.prepare(x, seq)
        state = self.residual.open(x)
        for visit, index in enumerate(self.order):
            x, state = self.residual.read(state, visit)
            output = self.blocks[index](x, seq, None if cache is None else cache.layers[visit], memory)
            note(record, f"block.{visit}", output)
            state = self.residual.write(state, visit, x, output)
        return self.residual.close(state)


def _check_additions(residual: Residual, block: Block) -> None:
    """Raises ValueError where a residual choice needs what a block adds, and the block does not add."""
    if residual.of_additions and not block.adds:
        raise ValueError(
            f"residual {type(residual).__name__} treats what a block adds to its input, and {type(block).__name__} "
            "scales or normalises its input; use block=pre_norm"
        )


def first_mixers(blocks: Sequence[nn.Module] | nn.ModuleList) -> list[TokenMixer]:
    """Return the token mixer of each block, in order; a block without one is left out."""
    inside = ([part for part in block.modules() if isinstance(part, TokenMixer)] for block in blocks)
    return [mixers[0] for mixers in inside if mixers]


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
    order, visits = tuple(order), len(order)
    for start in range(visits):
        for size in range(1, (visits - start) // 2 + 1):
            core, times = order[start : start + size], 1
            while order[start + times * size : start + (times + 1) * size] == core:
                times += 1
            loop = Loop(order[:start], core, times, order[start + times * size :])
            once = (*loop.first, *core, *loop.last)
            if times > 1 and len(set(once)) == len(once):
                return loop
    return None


def loops_problem(model: nn.Module) -> str | None:
    """Return why a model cannot go through its loop another number of times than in training; None where it can."""
    if not isinstance(model, BlockStack):
        return "the model has no blocks"
    if loop_of(model.order) is None:
        return f"model.order={list(model.order)} is not a loop; [0,1,2,1,2,3] is one, which repeats [1,2]"
    if model.residual.per_visit:
        return f"residual {type(model.residual).__name__} has weights for each visit of training; use residual=add"
    return None


@contextmanager
def loops(model: nn.Module, times: int) -> Iterator[None]:
    """While inside, the model goes through its loop so many times. Raises ValueError where it cannot."""
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
