"""Roles of weights: in which of its sizes a weight grows with the width of the model.

Every weight has one, which the module that makes it declares in `roles`: the name of a parameter, or of a part whose
parameters all have it, with its role.

    class Scale(nn.Module):
        roles: ClassVar[dict[str, Role]] = {"weight": "vector"}

    role       size grows with the width of the model         examples
    input      of outputs alone                               tables of tokens and positions, maps of patches
    hidden     of inputs and outputs                          projections inside a block
    residual   of inputs and outputs, written to the stream   the last projection of a mixer
    output     of inputs alone                                the head, a router
    vector     of one dimension, which is not summed over     gains, biases, filters of single channels
    fixed      of none                                        one number, a bias for each distance, a matrix over tokens

A module of another library has no `roles`. Then tables of torch are inputs, recurrent layers hidden, one number is
fixed, and other parameters of one dimension are vectors. A parametrization with factors refuses everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar, get_args

from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)
Role = Literal["input", "hidden", "residual", "output", "vector", "fixed"]
ROLES: tuple[Role, ...] = get_args(Role)


def parameter_roles(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Role | None]]:
    """Return each parameter of a model with its name and role; the role is None if nothing declares it.

    A parameter with several owners, such as a tied table, comes once for each of them.
    """
    inherited: dict[str, Role] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        declared = getattr(module, "roles", {})
        around = inherited.get(path)
        for name, _ in module.named_children():
            role = declared.get(name, around)
            if role is not None:
                inherited[f"{prefix}{name}"] = role
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield f"{prefix}{name}", parameter, declared.get(name) or around or _default(module, parameter)


def with_roles(module: AnyModule, **roles: Role) -> AnyModule:
    """Return a module of torch with the roles of its parameters, or of its parts."""
    module.roles = roles  # type: ignore[assignment]
    return module


def role_of(module: nn.Module, name: str) -> Role | None:
    """Return the role of a parameter of a module, as far as the module itself says."""
    parameter = module._parameters.get(name)
    declared = getattr(module, "roles", {}).get(name)
    if parameter is None or declared is not None:
        return declared
    return _default(module, parameter)


def _default(module: nn.Module, parameter: nn.Parameter) -> Role | None:
    """Return the role of a parameter of a module that declares none: by torch's class, or by its shape."""
    if parameter.numel() == 1:
        return "fixed"
    if parameter.ndim == 1:
        return "vector"
    if isinstance(module, nn.Embedding):
        return "input"
    return "hidden" if isinstance(module, nn.RNNBase) else None
