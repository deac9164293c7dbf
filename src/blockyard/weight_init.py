"""Initial weights depend on the seed and on the path in the model, not on the order of construction.

Every parameter is drawn from its own generator, seeded by sha256 of (seed, path). Replacing one
component therefore leaves every other initial weight bit-identical, and two arms of an ablation
share all weights of equal path and shape.

A module initialises its own parameters in `init_weights(init)`, where `init` is an `Init`:

    def init_weights(self, init: Init) -> None:
        init.normal("weight", std=self.std)
        init.zeros("bias")

A plain torch module has a rule in `RULES`, by type. A network of another library keeps that library's
initialisation through `init.foreign(name, make)`. A module with parameters and none of these is refused.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, role_of


class Init:
    """Draws the direct parameters of one module. `initialise` makes it and passes it to `init_weights`.

    Names are attribute names of the module; a name with dots is of a part, which then keeps the values. The name of a
    parameter that is None (no bias) is skipped.
    A parameter shared with an earlier module keeps its values.
    """

    def __init__(
        self, module: nn.Module, path: str, seed: int, done: set[int], std: float, ctx: Context | None = None
    ) -> None:
        self.module, self.path, self.seed, self.std, self.ctx = module, path, seed, std, ctx
        self._done = done
        self.declared: set[str] = set()
        self.foreigners: list[str] = []  # paths of the parts that another library initialises

    def generator(self, name: str) -> torch.Generator:
        """Return a CPU generator that depends on the seed and the parameter's path alone."""
        key = f"{self.seed}:{self.path}.{name}" if self.path else f"{self.seed}:{name}"
        digest = hashlib.sha256(key.encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)

    def normal(self, name: str, std: float | None = None) -> None:
        """Draw normal values with mean 0; std None is the model's init_std, for weights of the parameter's role.

        In a model of `init_shape=uniform` they are uniform with this standard deviation.
        """
        scale = self.std * self._factor(name) if std is None else std
        if self.ctx is not None and self.ctx.init_shape == "uniform":
            self.uniform(name, math.sqrt(3) * scale)
        else:
            self._fill(name, lambda shape: torch.empty(shape).normal_(0.0, scale, generator=self.generator(name)))

    def uniform(self, name: str, bound: float) -> None:
        """Draw uniform values in [-bound, bound]."""
        self._fill(name, lambda shape: torch.empty(shape).uniform_(-bound, bound, generator=self.generator(name)))

    def constant(self, name: str, value: float) -> None:
        """Set one value everywhere."""
        self._fill(name, lambda shape: torch.full(shape, value))

    def zeros(self, name: str) -> None:
        """Set zero everywhere."""
        self.constant(name, 0.0)

    def ones(self, name: str) -> None:
        """Set one everywhere."""
        self.constant(name, 1.0)

    def copy(self, name: str, value: Tensor | Callable[[], Tensor]) -> None:
        """Set a value, or the result of a function; use `generator(name)` for random values in it."""
        self._fill(name, lambda shape: (value() if callable(value) else value).reshape(shape))

    def foreign(self, name: str, make: Callable[[], nn.Module]) -> None:
        """Initialise the part `name` as its library does.

        `make()` rebuilds it from torch's global generator, which is seeded from the seed and the part's path,
        and restored afterwards.
        """
        self.foreigners.append(f"{self.path}.{name}" if self.path else name)
        part = getattr(self.module, name)
        if all(parameter.is_meta for parameter in part.parameters()):
            return
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(self.generator(name).initial_seed())
            part.load_state_dict(make().state_dict())

    def _factor(self, name: str) -> float:
        role = None if self.ctx is None else role_of(self.module, name)
        if self.ctx is None or role is None:
            return 1.0
        return self.ctx.parametrization.std(role, self.ctx)

    def _fill(self, name: str, draw: Callable[[torch.Size], Tensor]) -> None:
        self.declared.add(name)
        parameter = attrgetter(name)(self.module)
        if parameter is None or id(parameter) in self._done:
            return
        self._done.add(id(parameter))
        if parameter.is_meta:
            return
        with torch.no_grad(), torch.device("cpu"):
            parameter.copy_(draw(parameter.shape))


def _matrix(init: Init) -> None:
    init.normal("weight")
    init.zeros("bias")


def _convolution(init: Init) -> None:
    weight: Any = init.module.weight
    fan_in = weight[0].numel()
    init.normal("weight", std=1 / math.sqrt(fan_in))
    init.zeros("bias")


def _scale(init: Init) -> None:
    init.ones("weight")
    if hasattr(init.module, "bias"):
        init.zeros("bias")


def _table(init: Init) -> None:
    init.normal("weight")


def _recurrence(init: Init) -> None:
    """Uniform, as in torch: it keeps the size of the state."""
    for name, _ in init.module.named_parameters(recurse=False):
        hidden_size: Any = init.module.hidden_size
        init.uniform(name, 1 / math.sqrt(hidden_size))


# By exact type: a subclass may use its parameters differently, so it has to declare its own.
RULES: dict[type[nn.Module], Callable[[Init], None]] = {
    nn.Linear: _matrix,
    nn.Embedding: _table,
    nn.LayerNorm: _scale,
    nn.RMSNorm: _scale,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.BatchNorm2d: _scale,
    nn.GroupNorm: _scale,
    nn.RNN: _recurrence,
    nn.GRU: _recurrence,
    nn.LSTM: _recurrence,
}


def initialise(model: nn.Module, seed: int) -> nn.Module:
    """Draw every parameter of `model` from (seed, path), in place, and return the model.

    On the meta device nothing is drawn, but the same errors are raised. Raises ValueError for a
    module with parameters of its own that declares no initial weights.
    """
    ctx: Context | None = getattr(model, "ctx", None)
    std = 0.02 if ctx is None else ctx.init_std
    done: set[int] = set()
    foreigners: list[str] = []
    for path, module in model.named_modules():
        own = [name for name, parameter in module.named_parameters(recurse=False)]
        if any(path == name or path.startswith(f"{name}.") for name in foreigners):
            continue
        if not own and not hasattr(module, "init_weights"):
            continue
        init = Init(module, path, seed, done, std, ctx)
        where = f"{type(module).__module__}.{type(module).__qualname__} at {path or 'the top'}"
        if hasattr(module, "init_weights"):
            module.init_weights(init)
            foreigners += init.foreigners
        elif type(module) in RULES:
            RULES[type(module)](init)
        else:
            raise ValueError(
                f"{where} has parameters ({', '.join(own)}) and declares no initial weights; give it "
                "`def init_weights(self, init)` that calls init.normal(name, std=...), init.zeros(name), ... "
                f"or use one of: {', '.join(rule.__name__ for rule in RULES)}"
            )
        missed = [name for name in own if name not in init.declared]
        if missed:
            raise ValueError(f"init_weights of {where} leaves out {', '.join(missed)}")
    return model


class _ZeroFinder(Init):
    """Notes the parameters that a module would fill with zeros, and fills none."""

    def __init__(self, module: nn.Module, path: str, ctx: Context | None) -> None:
        # In place of the module one like it without values, since some change what they have drawn.
        like = copy.copy(module)
        own = module.named_parameters(recurse=False)
        empty = {name: nn.Parameter(torch.empty_like(p, device="meta")) for name, p in own}
        like.__dict__["_parameters"] = {**module.__dict__["_parameters"], **empty}
        super().__init__(like, path, 0, set(), 1.0, ctx)
        self.zero: set[str] = set()

    def normal(self, name: str, std: float | None = None) -> None:
        """Zero where the standard deviation is."""
        self.constant(name, 1.0 if std is None else std)

    def constant(self, name: str, value: float) -> None:
        """Zero where the value is."""
        if value == 0:
            self.zero.add(name)

    def foreign(self, name: str, make: Callable[[], nn.Module]) -> None:
        """Not known: another library decides."""

    def _fill(self, name: str, draw: Callable[[torch.Size], Tensor]) -> None:
        pass


def zeros_at_start(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that start at zero, as their modules declare; no weight changes."""
    zero: set[int] = set()
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if own and hasattr(module, "init_weights"):
            finder = _ZeroFinder(module, path, getattr(model, "ctx", None))
            finder.module.init_weights(finder)  # type: ignore[operator]
            zero |= {id(own[name]) for name in finder.zero if name in own}
    return zero
