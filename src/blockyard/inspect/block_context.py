"""What stands around a token mixer in its block: the norm before it, and what its output goes through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from blockyard.contracts import Batch, Block
from blockyard.inspect.recorded_calls import forward_once


@dataclass
class Around:
    """What stands around a mixer in its block.

    before: the norm that made its input from the stream; after: what its output goes through on the way there
    in_stream: the block's norms lie in the stream, so that what made the mixer's input is part of that
    cross: keys and values are of another row; last: the norm that made that
    """

    before: nn.Module | None = None
    after: list[nn.Module] = field(default_factory=list)
    in_stream: bool = False
    cross: bool = False
    last: nn.Module | None = None


def surroundings(model: nn.Module, mixers: dict[str, nn.Module], batch: Batch) -> dict[str, Around]:
    """What stands around each mixer, seen in one forward pass."""
    around = {path: Around() for path in mixers}
    paths = {module: path for path, module in model.named_modules()}
    names = {module: path for path, module in mixers.items()}
    made: dict[int, nn.Module] = {}
    outputs: dict[int, str] = {}
    kept = []  # tensors stay alive, so that no address is used twice

    def enters(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not given or not isinstance(given[0], Tensor):
            return
        if module in names:
            here = around[names[module]]
            memory = given[3] if len(given) > 3 else named.get("memory")
            here.cross = memory is not None
            here.last = made.get(id(memory.x)) if memory is not None else None
            norm = made.get(id(given[0]))
            path = names[module].rpartition(".")[0]
            block = model.get_submodule(path)
            # A block whose output is normalised already has its norms in the stream.
            here.in_stream = isinstance(block, Block) and not block.needs_final_norm
            if norm is not None and paths[norm].startswith(f"{path}.") and not here.in_stream:
                here.before = norm  # what an earlier block made is the stream
        elif id(given[0]) in outputs and paths[module].endswith("_finish"):
            around[outputs[id(given[0])]].after.append(module)

    def leaves(module: nn.Module, _: Any, y: Any) -> None:
        if not isinstance(y, Tensor):
            return
        kept.append(y)
        if module in names:
            outputs[id(y)] = names[module]
        if not isinstance(module, Block | nn.Identity):
            made[id(y)] = module

    handles = [m.register_forward_pre_hook(enters, with_kwargs=True) for m in model.modules()]
    handles += [m.register_forward_hook(leaves) for m in model.modules()]
    forward_once(model, batch, handles)
    return around
