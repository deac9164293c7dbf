"""The context of a token mixer in its block: the norm before it, and the modules that its output passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from blockyard.contracts import Batch, Block
from blockyard.inspect.recorded_calls import forward_once


@dataclass
class MixerContext:
    """The modules around a mixer in its block.

    before: the norm that computes its input from the residual stream
    after: the modules that its output passes on the way to the stream
    in_stream: the block's norms lie in the stream, so that the module that computed the mixer's input is part of it
    cross: keys and values come from another sequence; memory_norm: the norm at the end of that sequence
    """

    before: nn.Module | None = None
    after: list[nn.Module] = field(default_factory=list)
    in_stream: bool = False
    cross: bool = False
    memory_norm: nn.Module | None = None


def mixer_contexts(model: nn.Module, mixers: dict[str, nn.Module], batch: Batch) -> dict[str, MixerContext]:
    """Returns the context of each mixer by path, recorded in one forward pass."""
    contexts = {path: MixerContext() for path in mixers}
    paths = {module: path for path, module in model.named_modules()}
    mixer_paths = {module: path for path, module in mixers.items()}
    producers: dict[int, nn.Module] = {}  # id of a tensor: the module that returned it
    mixer_outputs: dict[int, str] = {}  # id of a tensor: the path of the mixer that returned it
    alive = []  # tensors stay alive, so that no id is used twice

    def before_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not args or not isinstance(args[0], Tensor):
            return
        x = args[0]
        if module in mixer_paths:
            context = contexts[mixer_paths[module]]
            memory = args[3] if len(args) > 3 else kwargs.get("memory")
            context.cross = memory is not None
            context.memory_norm = producers.get(id(memory.x)) if memory is not None else None
            norm = producers.get(id(x))
            block_path = mixer_paths[module].rpartition(".")[0]
            block = model.get_submodule(block_path)
            # A block whose output is already normalised has its norms in the stream.
            context.in_stream = isinstance(block, Block) and not block.needs_final_norm
            if norm is not None and paths[norm].startswith(f"{block_path}.") and not context.in_stream:
                context.before = norm  # the output of an earlier block is the stream itself
        elif id(x) in mixer_outputs and paths[module].endswith("_finish"):
            contexts[mixer_outputs[id(x)]].after.append(module)

    def after_forward(module: nn.Module, _: Any, y: Any) -> None:
        if not isinstance(y, Tensor):
            return
        alive.append(y)
        if module in mixer_paths:
            mixer_outputs[id(y)] = mixer_paths[module]
        if not isinstance(module, Block | nn.Identity):
            producers[id(y)] = module

    handles = [m.register_forward_pre_hook(before_forward, with_kwargs=True) for m in model.modules()]
    handles += [m.register_forward_hook(after_forward) for m in model.modules()]
    forward_once(model, batch, handles)
    return contexts
