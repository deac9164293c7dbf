"""The calls of one forward pass of a model: the arguments of its blocks and token mixers, to call them again.

Also the context of a token mixer in its block: the norm before it, and the modules that its output passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from blockyard.contracts import Batch, Block, Memory, Seq, TokenMixer
from blockyard.errors import UserError
from blockyard.ops.observed import observed, unfused


@dataclass
class RecordedCall:
    """One call of a module as a function of the tokens that it mixes: y = function(x).

    seq: the facts of the output sequence; input_seq: the facts of the sequence of x
    """

    function: Callable[[Tensor], Tensor]
    x: Tensor
    seq: Seq
    input_seq: Seq

    @property
    def reads_memory(self) -> bool:
        """True where `x` is another sequence than the outputs."""
        return self.input_seq is not self.seq


def mixing_modules(model: nn.Module, of: str) -> dict[str, nn.Module]:
    """Return every block, or the outermost token mixers, by path. Raises UserError where there is none."""
    kind: type[nn.Module] = Block if of == "block" else TokenMixer
    modules: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if isinstance(module, kind) and not any(path.startswith(f"{outer}.") for outer in modules):
            modules[path] = module
    if not modules:
        raise UserError(f"{type(model).__name__} has no token mixer to inspect")
    return modules


def repeat(batch: Batch, copies: int) -> Batch:
    """Return a batch of `copies` times the first sample."""
    return batch.map(lambda tensor: tensor[:1].expand(copies, *tensor.shape[1:]) if tensor.ndim else tensor)


def forward_once(model: nn.Module, batch: Batch, handles: Iterable[RemovableHandle]) -> None:
    """Run one unfused forward pass in evaluation mode without gradients, then remove the hooks."""
    try:
        with observed(model), unfused(model):
            model(batch)
    finally:
        for handle in handles:
            handle.remove()


def record_calls(model: nn.Module, modules: dict[str, nn.Module], batch: Batch) -> dict[str, RecordedCall]:
    """Return the last call of each of `modules` in one forward pass in evaluation mode; uncalled ones are absent."""
    calls: dict[str, RecordedCall] = {}
    handles = []
    for path, module in modules.items():

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str = path) -> None:
            kwargs.pop("cache", None)
            calls[path] = _recorded(module, *args, **kwargs)

        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    forward_once(model, batch, handles)
    return calls


def _recorded(module: nn.Module, x: Tensor, seq: Seq, _: Any = None, memory: Memory | None = None) -> RecordedCall:
    """Return a call of a block or mixer from its arguments."""
    if memory is not None and isinstance(module, TokenMixer):
        # Cross-attention mixes the tokens of the memory.
        return RecordedCall(lambda m: module(x, seq, None, memory._replace(x=m)), memory.x, seq, memory.seq)
    return RecordedCall(lambda tokens: module(tokens, seq, None, memory), x, seq, seq)


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
    """Return the context of each mixer by path, recorded in one forward pass."""
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
            if memory is not None:
                context.memory_norm = producers.get(id(memory.x))
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

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(before_forward, with_kwargs=True))
        handles.append(module.register_forward_hook(after_forward))
    forward_once(model, batch, handles)
    return contexts
