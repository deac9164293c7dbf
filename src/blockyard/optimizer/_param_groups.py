"""Parameter groups: weight decay, learning rate and rule of each parameter.

The learning rate of a parameter is the optimizer's, times the factor of its layer (`layer_decay`), times the factor of
its name (`rates`), times that of its role (`parametrization`). Its weight decay is the optimizer's, times the factor of
its name (`decays`), over the factor of its role. If two names match a parameter, the smaller part wins: `blocks.0`
before `blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Return the trainable parameters with weight decay, and the ones without.

    Decay applies to parameters of two or more dimensions. Exempt are parameters of the model itself, of modules that
    keep tables, and parameters that their module lists in `no_weight_decay`. A parameter with several owners (a tied
    head) decays only if this holds for all of them.
    """
    unique: dict[int, nn.Parameter] = {}
    exempt = set()
    for owner in model.modules():
        for name, p in owner._parameters.items():
            if p is None:
                continue
            if p.requires_grad:
                unique[id(p)] = p
            is_listed = isinstance(owner, NoWeightDecay) and name in owner.no_weight_decay
            if p.ndim < 2 or owner is model or isinstance(owner, _TABLES) or is_listed:
                exempt.add(id(p))
    decay = [p for key, p in unique.items() if key not in exempt]
    no_decay = [p for key, p in unique.items() if key in exempt]
    return decay, no_decay


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable matrices inside blocks that are linear maps."""
    inside = {id(p) for block in iter_blocks(model) for p in block.parameters()}
    decay, _ = split_by_decay(model)
    return [p for p in decay if id(p) in inside and p.ndim == 2]


class GroupedOptimizer(OptimizerBuilder):
    """An optimizer with learning rates and weight decays by name and by layer.

    Options:
        lr: learning rate at the schedule's factor 1
        weight_decay: decay per step, times the learning rate; on linear maps only
        decay_by: factor that decay is proportional to: rate is the learning rate; independent is the factor of the
            schedule alone, so that decay does not change with lr; fading is the rate times that factor
        cautious: decay only weights that the update does not make larger
        layer_decay: factor on the learning rate with each layer from the output to the input, for fine-tuning
        rates: factors on the learning rate of parts of the model, by name: {embedder: 10, blocks.0: 0.5, "*.bias": 2}
        decays: factors on the weight decay, by name; a name of tables, gains or biases alone makes these decay too

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
        if decays and not weight_decay:
            raise ValueError(
                "optimizer.decays has factors on optimizer.weight_decay, which is 0; set it, or leave decays out"
            )
        self.lr = lr
        self.weight_decay = weight_decay
        self.decay_by = decay_by
        self.cautious = cautious
        self.layer_decay = layer_decay
        self.rates = dict(rates)
        self.decays = dict(decays)

    def model_problems(self, model: nn.Module) -> list[str]:
        """Return sentences about names that match no parameter or contradict each other, and about unknown roles."""
        _, rate_problems = rate_factors(model, self.rates)
        _, decay_problems = _decay_factors(model, self.decays)
        return [*rate_problems, *decay_problems, *role_problems(model)]

    def groups(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter] | None = None,
        lr: float | None = None,
        *,
        rule: UpdateRule | None,
        eps: float | None = None,
    ) -> list[ParamGroup]:
        """Return the parameter groups, the optimizer's own rate first, then from the highest rate down.

        parameters: the parameters of the groups; None is every trainable one
        lr: their learning rate before any factor; None is the optimizer's
        rule: the size of the updates; None if it is unknown
        eps: the term added to the root of the second moment; None for an optimizer without it

        Raises ValueError for names that do not fit the model, and for a parametrization without the rule.
        """
        rates, rate_problems = rate_factors(model, self.rates)
        decays, decay_problems = _decay_factors(model, self.decays)
        problems = rate_problems + decay_problems
        if problems:
            raise ValueError(f"optimizer: {'; '.join(problems)}")
        lr = self.lr if lr is None else lr
        layers = layer_factors(model, self.layer_decay)
        names = {id(p): name for name, p in model.named_parameters()}
        decay_members, others = split_by_decay(model)
        decayed = {id(p) for p in decay_members}
        wanted = None if parameters is None else {id(p) for p in parameters}
        factors = role_factors(model, rule, wanted)
        members: dict[tuple[float, bool, float, float], list[nn.Parameter]] = {}
        for p in (*decay_members, *others):
            if wanted is None or id(p) in wanted:
                name = names[id(p)]
                factor, epsilon = factors.get(id(p), (1.0, 1.0))
                rate = lr * layers.get(name, 1.0) * rates.get(name, 1.0) * factor
                decay = self.weight_decay * decays.get(name, 1.0 if id(p) in decayed else 0.0)
                if self.decay_by != "independent":  # the rate multiplies the decay, its factor must not
                    decay /= factor
                key = (rate, id(p) not in decayed, decay, 1.0 if eps is None else epsilon)
                members.setdefault(key, []).append(p)
        # A fixed order of groups: saved states are matched by the position of a parameter.
        order = sorted(members, key=lambda key: (key[0] != lr, -key[0], key[1], -key[2], -key[3]))
        groups = [{"params": members[key], "weight_decay": key[2], "lr": key[0]} for key in order]
        if eps is not None and factors:
            for group, key in zip(groups, order, strict=True):
                group["eps"] = eps * key[3]
        return spread_decay(groups, self.decay_by)

    def start_step(self, optimizer: Any, factor: float) -> None:
        """Fade the decay with the schedule, with decay_by=fading."""
        if self.decay_by == "fading":
            fade(optimizer, factor)


def layer_factors(model: nn.Module, layer_decay: float) -> dict[str, float]:
    """Return a factor on the learning rate of every parameter, by its name; none for a `layer_decay` of 1.

    It falls by `layer_decay` with each layer from the output to the input: the head and the final norm have 1, the last
    block layer_decay, and the parts before the first of n blocks layer_decay^(n + 1), as in BEiT.
    """
    if layer_decay == 1:
        return {}
    last = sum(1 for _ in iter_blocks(model)) - len(blocks_of_heads(model)) + 1
    return {name: layer_decay ** (last - number) for name, number in layer_numbers(model).items()}


def role_factors(
    model: nn.Module, rule: UpdateRule | None, wanted: set[int] | None = None
) -> dict[int, tuple[float, float]]:
    """Return the factors on learning rate and epsilon of trained parameters, by their ids; none without factors.

    wanted: ids of parameters; None is every trained parameter

    Raises ValueError for parameters without a role, and for an optimizer without a known rule.
    """
    ctx: Context | None = getattr(model, "ctx", None)
    if ctx is None or not ctx.parametrization.scales:
        return {}
    problems = role_problems(model)
    if problems:
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
    """Return a sentence about trained parameters without a role, under a parametrization with factors."""
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


def rate_factors(model: nn.Module, factors: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """Return the factor of each parameter that a name matches, and the problems of the names."""
    if not factors:
        return {}, []
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    members = {part: {name for name in trained if is_in(name, [part])} for part in factors}
    return _resolved("rates", trained, members, factors)


def _decay_factors(model: nn.Module, factors: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """Return the factor of each parameter that a name matches, and the problems of the names.

    A name is for the linear maps that it matches. If there are none, it is for all parameters that it matches, and they
    then decay.
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
    """Return the factor of each parameter by the smallest part that it is in, and the problems of the parts."""
    tops = list(dict.fromkeys(name.partition(".")[0] for name in trained))
    problems = []
    for part, inside in members.items():
        if not inside:
            hint = did_you_mean(part, tops)
            problems.append(
                f"{option}: no trained parameter of this model is in {part!r}{hint}; there are {', '.join(tops)}"
            )
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
    for (first, second), name in conflicts.items():
        problems.append(
            f"{option}: {first!r} and {second!r} both match {name} with different values, and neither is a part of the "
            "other; give one of them alone, or a name for what is in both"
        )
    return values, problems


def fused_available(groups: list[ParamGroup]) -> bool:
    """Return whether torch has a fused kernel for the device and dtype of these groups' parameters."""
    parameters = [p for group in groups for p in group["params"]]
    devices = {p.device.type for p in parameters}
    return devices in ({"cpu"}, {"cuda"}) and all(torch.is_floating_point(p) for p in parameters)
