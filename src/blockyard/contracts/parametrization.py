"""Parametrization: how initial weights, learning rates and some factors depend on the size of a model.

Every weight has a role, which the module that makes it declares in `roles`: the name of a parameter, or of a part whose
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

A module of another library has no `roles`. Without any, tables of torch are inputs, recurrent layers hidden, one number
is fixed and other parameters of one dimension are vectors. A parametrization with factors refuses everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

from torch import nn

if TYPE_CHECKING:
    from blockyard.contracts.specs import Context

AnyModule = TypeVar("AnyModule", bound=nn.Module)
Role = Literal["input", "hidden", "residual", "output", "vector", "fixed"]
ROLES: tuple[Role, ...] = get_args(Role)
# How the size of an update depends on the gradient: that of a coordinate does not (adam), it is the gradient's (sgd),
# it is that of an orthogonal matrix, with Jordan's factor (muon) or as large as Adam's (muon_rms).
UpdateRule = Literal["adam", "sgd", "muon", "muon_rms"]
Place = Literal["logits", "output", "scores", "branch", "embedding"]


class Parametrization:
    """Every factor is 1, and the model is what its options say.

    Subclasses override what depends on the size of the model. Each method gets the Context of the model.

    scales: some factor depends on the size, so that every weight needs a role
    """

    scales: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *sorted(vars(self).items(), key=str)))

    @classmethod
    def scales_branches(cls, options: dict[str, Any]) -> bool:
        """Whether what blocks add has a factor under these options; then blocks must add to the stream."""
        return False

    @classmethod
    def scales_scores(cls, options: dict[str, Any]) -> bool:
        """Whether scores have a factor at every width under these options; then the token mixer must have scores."""
        return False

    def width_ratio(self, ctx: Context) -> float:
        """Returns the width of the model over that of the base."""
        return 1.0

    def head_ratio(self, ctx: Context) -> float:
        """Returns the width of a head over that of the base."""
        return 1.0

    def base_visits(self, ctx: Context) -> int:
        """Returns the number of visits of blocks that initial weights are made for."""
        return ctx.visits

    def std(self, role: Role, ctx: Context) -> float:
        """Returns the factor on `ctx.init_std`, which is that of hidden weights, for weights of a role."""
        return 1.0

    def factor(self, place: Place, ctx: Context) -> float:
        """Returns the factor on what flows through a place.

        logits: what the last map of a head reads; output: what other maps of the role output read; scores: products of
        queries and keys, beside 1 / sqrt(K); branch: what a block adds; embedding: the stream as it enters the blocks
        """
        return 1.0

    def rate(self, role: Role, rule: UpdateRule, ctx: Context, *, in_block: bool) -> float:
        """Returns the factor on the learning rate of weights of a role; weight decay is divided by it."""
        return 1.0

    def epsilon(self, role: Role, ctx: Context, *, in_block: bool) -> float:
        """Returns the factor on Adam's epsilon, which is that on gradients."""
        return 1.0


PLAIN = Parametrization()


def parameter_roles(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Role | None]]:
    """Returns each parameter of a model with its name and role; None where nothing says which.

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
    """Returns a module of torch with the roles of its parameters, or of its parts."""
    module.roles = roles  # type: ignore[assignment]
    return module


def role_of(module: nn.Module, name: str) -> Role | None:
    """Returns the role of a parameter of a module, as far as the module itself says."""
    parameter = module._parameters.get(name)
    declared = getattr(module, "roles", {}).get(name)
    return declared if parameter is None or declared is not None else _default(module, parameter)


def _default(module: nn.Module, parameter: nn.Parameter) -> Role | None:
    """Returns the role of a parameter of a module that declares none: by torch's class, or by its shape."""
    if parameter.numel() == 1:
        return "fixed"
    if parameter.ndim == 1:
        return "vector"
    if isinstance(module, nn.Embedding):
        return "input"
    return "hidden" if isinstance(module, nn.RNNBase) else None
