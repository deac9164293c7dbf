"""Parameter groups: which parameters weight decay applies to, which are Muon's, and their learning rates.

The learning rate of a parameter is the optimizer's, times the factor of its layer (`layer_decay`), times the factor of
its name (`rates`), times that of its role (`parametrization`). Its weight decay is the optimizer's, times the factor of
its name (`decays`), over that of its role. Where two names match a parameter, that of the smaller part wins: `blocks.0`
before `blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from blockyard.contracts import (
    ROLES,
    Context,
    DecayFactors,
    Embedder,
    LayerDecay,
    NonNegative,
    NoWeightDecay,
    OptimizerBuilder,
    Position,
    Positive,
    RateFactors,
    UpdateRule,
    blocks_of_heads,
    iter_blocks,
    parameter_roles,
)
from blockyard.errors import did_you_mean, fold
from blockyard.model._layer_numbers import layer_numbers
from blockyard.model._part_names import is_in
from blockyard.model._prefix import PrefixTokens
from blockyard.optimizer._decay import Decay, ParamGroup, fade, spread_decay

# These modules own tables (of token ids, of positions) and learned tokens. They are looked up or added, never
# multiplied by, so pulling them to zero would not limit the norm of a linear map.
_TABLES = (nn.Embedding, Embedder, Position, PrefixTokens)
NO_FACTORS: dict[str, float] = {}


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters with weight decay, and those without.

    Decay applies to parameters of two or more dimensions, except those owned by the model itself or by a module that
    keeps tables, and those that their module lists in `no_weight_decay`. A parameter with several owners (a tied
    head) decays only if this holds for all of them.
    """
    owners = list(_owners(model))
    exempt = {id(p) for owner, name, p in owners if p.ndim < 2 or owner is model or _is_exempt(owner, name)}
    unique = {id(p): p for _, _, p in owners if p.requires_grad}
    decay = [p for key, p in unique.items() if key not in exempt]
    no_decay = [p for key, p in unique.items() if key in exempt]
    return decay, no_decay


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices inside the blocks that are linear maps."""
    inside = {id(p) for block in iter_blocks(model) for p in block.parameters()}
    decay, _ = split_by_decay(model)
    return [p for p in decay if id(p) in inside and p.ndim == 2]


class GroupedOptimizer(OptimizerBuilder):
    """An optimizer whose parameters have learning rates and weight decays by name and by layer.

    Options:
        lr: learning rate at the schedule's factor 1
        weight_decay: decay per step, times the learning rate; on linear maps only
        decay_by: what the decay follows: rate is the learning rate; independent the factor of the schedule alone, so
            that it does not change with lr; fading the rate times that factor
        cautious: decay those weights alone that the update does not make larger
        layer_decay: factor on the learning rate with each layer from the output to the input, for fine-tuning
        rates: factors on the learning rate of parts of the model, by name: {embedder: 10, blocks.0: 0.5, "*.bias": 2}
        decays: the same on the weight decay; a name of tables, gains or biases alone makes these decay too

    Raises ValueError for factors on, or kinds of, a weight decay of 0.
    """

    def __init__(
        self,
        *,
        lr: Positive = 1e-3,
        weight_decay: NonNegative = 0.05,
        decay_by: Decay = "rate",
        cautious: bool = False,
        layer_decay: LayerDecay = 1.0,
        rates: RateFactors = NO_FACTORS,
        decays: DecayFactors = NO_FACTORS,
    ) -> None:
        kinds = {"decay_by": decay_by != "rate", "cautious": cautious}
        if not weight_decay and any(kinds.values()):
            name = next(name for name, is_set in kinds.items() if is_set)
            raise ValueError(
                f"optimizer.{name} is about optimizer.weight_decay, which is 0; set it, or leave {name} out"
            )
        self.decay_by, self.cautious = decay_by, cautious
        if decays and not weight_decay:
            raise ValueError(
                "optimizer.decays has factors on optimizer.weight_decay, which is 0; set it, or leave decays out"
            )
        self.lr, self.weight_decay, self.layer_decay = lr, weight_decay, layer_decay
        self.rates, self.decays = dict(rates), dict(decays)

    def model_problems(self, model: nn.Module) -> list[str]:
        """Names must match trained parameters and not contradict each other; a parametrization must know every role."""
        names = [*rate_factors(model, self.rates)[1], *_decay_factors(model, self.decays)[1]]
        return [*names, *role_problems(model)]

    def groups(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter] | None = None,
        lr: float | None = None,
        *,
        rule: UpdateRule | None,
        eps: float | None = None,
    ) -> list[ParamGroup]:
        """Return the parameter groups: those of the optimizer's own rate first, then those of the highest.

        parameters: of which groups are made; None is every trainable one
        lr: their learning rate before any factor; None is the optimizer's
        rule: how large its updates are; None where that is not known
        eps: the term that it adds to the root of the second moment, where it does, for groups of their own
        Raises ValueError for names that do not fit the model, and for a parametrization without the rule.
        """
        (rates, rate_problems), (decays, decay_problems) = (
            rate_factors(model, self.rates),
            _decay_factors(model, self.decays),
        )
        if problems := rate_problems + decay_problems:
            raise ValueError(f"optimizer: {'; '.join(problems)}")
        lr = self.lr if lr is None else lr
        layers = layer_factors(model, self.layer_decay)
        decayed = {id(p) for p in split_by_decay(model)[0]}
        wanted = None if parameters is None else {id(p) for p in parameters}
        of_roles = role_factors(model, rule, wanted)
        members: dict[tuple[float, bool, float, float], list[nn.Parameter]] = {}
        for name, p in _by_decay(model):
            if wanted is None or id(p) in wanted:
                factor, epsilon = of_roles.get(id(p), (1.0, 1.0))
                rate = lr * layers.get(name, 1.0) * rates.get(name, 1.0) * factor
                decay = self.weight_decay * decays.get(name, 1.0 if id(p) in decayed else 0.0)
                decay /= 1.0 if self.decay_by == "independent" else factor  # that one does not see the rate
                key = (rate, id(p) not in decayed, decay, 1.0 if eps is None else epsilon)
                members.setdefault(key, []).append(p)
        order = sorted(members, key=lambda key: (key[0] != lr, -key[0], key[1], -key[2], -key[3]))
        groups = [{"params": members[key], "weight_decay": key[2], "lr": key[0]} for key in order]
        if eps is not None and of_roles:
            for group, key in zip(groups, order, strict=True):
                group["eps"] = eps * key[3]
        return spread_decay(groups, self.decay_by)

    def start_step(self, optimizer: Any, factor: float) -> None:
        """Fade the decay with the schedule, where it does."""
        if self.decay_by == "fading":
            fade(optimizer, factor)


def layer_factors(model: nn.Module, layer_decay: float) -> dict[str, float]:
    """Return a factor on the learning rate of every parameter, by its name; none for a `layer_decay` of 1.

    It falls by `layer_decay` with each layer from the output to the input: the head and the final norm have 1, the last
    block layer_decay, and what stands before the first of n blocks layer_decay^(n + 1), as in BEiT.
    """
    if layer_decay == 1:
        return {}
    last = sum(1 for _ in iter_blocks(model)) - len(blocks_of_heads(model)) + 1
    return {name: layer_decay ** (last - number) for name, number in layer_numbers(model).items()}


def role_factors(
    model: nn.Module, rule: UpdateRule | None, wanted: set[int] | None = None
) -> dict[int, tuple[float, float]]:
    """Return the factors on learning rate and epsilon of trained parameters, by their ids; none without factors.

    wanted: their ids; None is every trained parameter

    Raises ValueError for parameters without a role, and for an optimizer whose rule is not known.
    """
    ctx: Context | None = getattr(model, "ctx", None)
    if ctx is None or not ctx.parametrization.scales:
        return {}
    if problems := role_problems(model):
        raise ValueError("; ".join(problems))
    name = type(ctx.parametrization).__name__
    if rule is None:
        raise ValueError(f"parametrization {name} does not know how large the updates of this optimizer are")
    inside = {id(p) for block in iter_blocks(model) for p in block.parameters()}
    factors: dict[int, tuple[float, float]] = {}
    for path, p, role in parameter_roles(model):
        if not p.requires_grad or role is None or (wanted is not None and id(p) not in wanted):
            continue
        rate = ctx.parametrization.rate(role, rule, ctx, in_block=id(p) in inside)
        epsilon = ctx.parametrization.epsilon(role, ctx, in_block=id(p) in inside)
        if factors.setdefault(id(p), (rate, epsilon)) != (rate, epsilon):
            raise ValueError(f"parametrization {name} has two learning rates for {path}, which two modules share")
    return factors


def role_problems(model: nn.Module) -> list[str]:
    """Return the problems of a parametrization with factors: trained parameters whose role is not known."""
    ctx: Context | None = getattr(model, "ctx", None)
    if ctx is None or not ctx.parametrization.scales:
        return []
    unknown = [path for path, p, role in parameter_roles(model) if role not in ROLES and p.requires_grad]
    if not unknown:
        return []
    module = type(model.get_submodule(unknown[0].rpartition(".")[0])).__name__
    name = unknown[0].rpartition(".")[2]
    return [
        f"parametrization {type(ctx.parametrization).__name__} needs a role of every weight, and there is none of "
        f"{fold(unknown)}: let {module} have roles = {{{name!r}: ...}} with one of {', '.join(ROLES)}, or use "
        "parametrization=standard"
    ]


def _by_decay(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the trainable parameters in the order of `split_by_decay`, with their names."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [(names[id(p)], p) for group in split_by_decay(model) for p in group]


def rate_factors(model: nn.Module, factors: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """Return the factor of each parameter that a name matches, and the problems of the names."""
    if not factors:
        return {}, []
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    members = {part: {name for name in trained if is_in(name, [part])} for part in factors}
    return _resolved("rates", trained, members, factors)


def _decay_factors(model: nn.Module, factors: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """Return the factor of each parameter that a name matches, and the problems of the names.

    A name is of the linear maps that it matches. Where there are none, it is of what it matches, which then decays.
    """
    if not factors:
        return {}, []
    names = {id(p): name for name, p in model.named_parameters()}
    decay, no_decay = ([names[id(p)] for p in group] for group in split_by_decay(model))
    members = {}
    for part in factors:
        maps = {name for name in decay if is_in(name, [part])}
        members[part] = maps or {name for name in no_decay if is_in(name, [part])}
    return _resolved("decays", decay + no_decay, members, factors)


def _resolved(
    option: str, trained: Sequence[str], members: Mapping[str, set[str]], factors: Mapping[str, float]
) -> tuple[dict[str, float], list[str]]:
    """Return the factor of each parameter that is a member of a part, that of the smallest part, and the problems."""
    tops = list(dict.fromkeys(name.partition(".")[0] for name in trained))
    problems = [
        f"{option}: no trained parameter of this model is in {part!r}{did_you_mean(part, tops)}; "
        f"there are {', '.join(tops)}"
        for part, inside in members.items()
        if not inside
    ]
    values: dict[str, float] = {}
    conflicts: dict[tuple[str, str], str] = {}
    for name in trained:
        matching = [part for part, inside in members.items() if name in inside]
        if not matching:
            continue
        smallest = min(matching, key=lambda part: len(members[part]))
        values[name] = factors[smallest]
        for other in matching:
            if factors[other] != factors[smallest] and not members[smallest] < members[other]:
                conflicts.setdefault((smallest, other), name)
    problems += [
        f"{option}: {first!r} and {second!r} both match {name} with different values, and neither is a part of the "
        "other; give one of them alone, or a name for what is in both"
        for (first, second), name in conflicts.items()
    ]
    return values, problems


def fused_available(groups: list[ParamGroup]) -> bool:
    """Whether torch has a fused kernel for the device and dtype of these groups' parameters."""
    parameters = [p for group in groups for p in group["params"]]
    devices = {p.device.type for p in parameters}
    return devices in ({"cpu"}, {"cuda"}) and all(torch.is_floating_point(p) for p in parameters)


def _is_exempt(owner: nn.Module, name: str) -> bool:
    return isinstance(owner, _TABLES) or (isinstance(owner, NoWeightDecay) and name in owner.no_weight_decay)


def _owners(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module, name, parameter
