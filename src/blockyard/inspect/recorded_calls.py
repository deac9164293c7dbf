"""What the blocks and token mixers of a model are called with: caught in one forward pass, to be called again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from blockyard.contracts import Batch, Block, Memory, Seq, TokenMixer
from blockyard.errors import UserError


@dataclass
class Call:
    """What a module was called with: y = run(x). seq: the facts of y's row; read: those of x's."""

    run: Callable[[Tensor], Tensor]
    x: Tensor
    seq: Seq
    read: Seq

    @property
    def memory(self) -> bool:
        """Whether `x` is another row than that of the outputs."""
        return self.read is not self.seq


def mixing_modules(model: nn.Module, of: str) -> dict[str, nn.Module]:
    """Every block, or the outermost token mixers, by path. Raises UserError where there is none."""
    kind: type[nn.Module] = Block if of == "block" else TokenMixer
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if isinstance(module, kind) and not any(path.startswith(f"{outer}.") for outer in found):
            found[path] = module
    if not found:
        raise UserError(f"{type(model).__name__} has no token mixer, so there is no mixing to look at")
    return found


def repeat(batch: Batch, copies: int) -> Batch:
    """One row, so many times."""
    return Batch(*(t if t is None or t.ndim == 0 else t[:1].expand(copies, *t.shape[1:]) for t in batch.tensors()))


@contextmanager
def unfused(model: nn.Module) -> Iterator[None]:
    """A fused block never calls its mixers; unfused it computes the same."""
    fused = [block for block in model.modules() if isinstance(block, Block) and getattr(block, "fused", False)]
    for block in fused:
        block.fused = False
    try:
        yield
    finally:
        for block in fused:
            block.fused = True


def forward_once(model: nn.Module, batch: Batch, handles: Iterable[RemovableHandle]) -> None:
    """One forward pass in evaluation mode with every mixer called by itself; the hooks are taken off after it."""
    training = model.training
    model.eval()
    try:
        with unfused(model), torch.no_grad():
            model(**batch.arguments())
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()


def call(model: nn.Module, modules: dict[str, nn.Module], batch: Batch) -> dict[str, Call]:
    """What each of `modules` was last called with, in a forward pass in evaluation mode."""
    found: dict[str, Call] = {}
    handles = []
    for path, module in modules.items():

        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], path: str = path) -> None:
            named.pop("cache", None)
            found[path] = _call(module, *arguments, **named)

        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    forward_once(model, batch, handles)
    return found


def _call(module: nn.Module, x: Tensor, seq: Seq, _: Any = None, memory: Memory | None = None) -> Call:
    if memory is not None and isinstance(module, TokenMixer):
        # Across two rows, what is mixed are the tokens of the memory.
        return Call(lambda m: module(x, seq, None, memory._replace(x=m)), memory.x, seq, memory.seq)
    return Call(lambda given: module(given, seq, None, memory), x, seq, seq)
