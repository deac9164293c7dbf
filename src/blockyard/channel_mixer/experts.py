"""Mixture of experts: a router sends each token to a few of many channel mixers and adds their weighted outputs.

Source: Shazeer et al. 2017 (arXiv 1701.06538); Fedus et al. 2021, Switch Transformers (arXiv 2101.03961), eq. 4, the
    balance loss; Zoph et al. 2022, ST-MoE (arXiv 2202.08906), eq. 5, the z-loss; Wang et al. 2024, Auxiliary-Loss-Free
    Load Balancing (arXiv 2408.15664), algorithm 1; DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437), section 2.1.2;
    Zhou et al. 2022, Expert Choice Routing (arXiv 2202.09368), section 3; OpenAI 2025, gpt-oss-120b & gpt-oss-20b Model
    Card (arXiv 2508.10925), section 2.2, for router_bias; Qwen Team 2024, Qwen2 (arXiv 2407.10671), section 2.2.2, and
    its code, for shared_gate
Reference: transformers MixtralSparseMoeBlock with load_balancing_loss_func, DeepseekV3MoE, GptOssMLP,
    and Qwen3NextSparseMoeBlock
Equation: y = sum of w_e expert_e(x) over the chosen e, plus the shared experts; w are the scores of the router, divided
    by their sum over the chosen
Cost: that of `active` + `shared` experts, and 2 D E FLOPs a token for a router of E experts. A compiled block and
    torch.export need shapes that do not depend on the data, so there every expert computes every token. In bf16 on CUDA
    experts without biases are two grouped products

    channel_mixer=experts channel_mixer.expert=glu channel_mixer.members.glu.expansion=2

The expert is a choice of channel_mixer by its name, with its options under members. Padding is neither routed nor
counted; class, register and source tokens are tokens like others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from blockyard.contracts import Because, ChannelMixer, ChoiceOptions, Context, NonNegative, Positive, Seq
from blockyard.ops.autocast import full_precision
from blockyard.ops.flops import fixed_shapes
from blockyard.ops.linear import Linear, output

Expert = Callable[[Context], ChannelMixer]
NumExperts = Annotated[int, Ge(1), Le(1_024), Because("each expert is built of modules of its own")]
NumShared = Annotated[int, Ge(0), Le(1_024), Because("each expert is built of modules of its own")]
FROM_THE_CHOICES: Mapping[str, Expert] = MappingProxyType({})


class Experts(ChannelMixer):
    """Every expert has weights of its own, so that weight decay and Muon treat them like those of one mixer.

    auxiliary: the balance loss and the z-loss of the last forward pass in training, over all visits of the block
    offset: (E,), added to the scores by balance=bias, for the choice of experts alone
    loads: (E,) int64, the tokens of this step that chose each expert, before any is dropped

    Options:
        expert: name of the channel mixer of every expert
        members: the mixer by name; filled in from the choices of channel_mixer, with an expansion of 1.333
        count: number of experts that tokens are routed to
        active: number of experts that a token is sent to
        shared: number of further experts that every token passes
        score: softmax over the experts, or a sigmoid for each
        normalise: divide the scores of the chosen experts by their sum; null does so for more than one of route=token
        route: token lets each token choose experts; expert lets each expert choose tokens of a sequence, as many as
            make `active` experts a token on average, for bidirectional models and with balance=none
        balance: loss adds Switch's loss, bias shifts the choice without a gradient after each step, none does nothing
        weight: weight of the balance loss
        bias_rate: shift of an expert in a step with balance=bias
        z_loss: weight of the mean squared logsumexp of the router's logits
        capacity: tokens of a sequence that an expert takes in training, as a multiple of an equal share; later ones
            are dropped. null and evaluation drop none
        router_bias: add a trained number to the logit of each expert
        num_groups: number of groups of equally many experts
        active_groups: number of groups that the experts of a token come from: the groups with the largest sum of their
            two best scores
        scale: factor on the weights of the chosen experts, not on the shared ones
        shared_gate: multiply the output of the shared experts by a factor in (0, 1), computed from the token
    """

    nested_choices: ClassVar[dict[str, Any]] = {"members": ("channel_mixer", "expert", {"expansion": 1.333})}
    offset: Tensor
    loads: Tensor

    def __init__(
        self,
        ctx: Context,
        *,
        expert: str = "glu",
        members: dict[str, Callable[[Context], ChannelMixer]] = FROM_THE_CHOICES,  # type: ignore[assignment]
        count: NumExperts = 8,
        active: NumExperts = 2,
        shared: NumShared = 0,
        score: Literal["softmax", "sigmoid"] = "softmax",
        normalise: bool | None = None,
        route: Literal["token", "expert"] = "token",
        balance: Literal["loss", "bias", "none"] = "loss",
        weight: NonNegative = 0.01,
        bias_rate: Positive = 0.001,
        z_loss: NonNegative = 0.0,
        capacity: Positive | None = None,
        router_bias: bool = False,
        num_groups: NumExperts = 1,
        active_groups: NumExperts = 1,
        scale: Positive = 1.0,
        shared_gate: bool = False,
    ) -> None:
        super().__init__()
        _check_members(expert, members)
        _check_route(ctx, count, active, route, balance, capacity)
        _check_groups(count, active, route, num_groups, active_groups)
        member = members[expert]
        self.expert = nn.ModuleList(member(ctx) for _ in range(count))
        self.shared = nn.ModuleList(member(ctx) for _ in range(shared))
        if self.expert[0].empty or isinstance(self.expert[0], Experts):
            raise ValueError(
                f"channel_mixer.expert={expert} cannot be an expert; use mlp, glu or another mixer with weights"
            )
        if shared_gate and not shared:
            raise ValueError("channel_mixer Experts: shared_gate=true has no effect with shared=0; use shared=1")
        self.shared_gate = output(ctx, ctx.dim, 1) if shared_gate else None
        self.router = output(ctx, ctx.dim, count, bias=router_bias)
        self.count = count
        self.active = active
        self.route = route
        self.score = score
        self.normalise = (route == "token" and active > 1) if normalise is None else normalise
        self.balance = balance
        self.weight = weight
        self.bias_rate = bias_rate
        self.z_loss = z_loss
        self.capacity = capacity
        self.num_groups = num_groups
        self.active_groups = active_groups
        self.scale = scale
        self.reads_sequence = route == "expert" or capacity is not None
        self.padded = ctx.tokens.variable or ctx.data.variable
        self.auxiliary: Tensor | None = None
        self.fractions: Tensor | None = None  # (E,), shares of the tokens of the last step
        self.register_buffer("loads", torch.zeros(count, dtype=torch.int64), persistent=False)
        if balance == "bias":
            self.register_buffer("offset", torch.zeros(count))

    @classmethod
    def mixes_tokens(cls, options: ChoiceOptions) -> bool:
        """Return True with route=expert: the choice of a token then depends on all others of its sequence."""
        return options.get("route") == "expert"

    def active_parameters(self) -> int:
        """Return the parameters of the router, of `active` experts and of the shared ones."""
        idle = (self.count - self.active) * sum(p.numel() for p in self.expert[0].parameters())
        return super().active_parameters() - idle

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        real = self._real(seq)  # (B, N)
        logits, scores = self.scores(x)  # (B, N, E)
        chosen = self.choose(scores, real)  # (B, N, E)
        if self.training:
            self._note(logits, scores, chosen, real)
        weights = scores * chosen  # (B, N, E)
        if self.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # padding has no experts and a sum of zero
        if self.scale != 1.0:
            weights = weights * self.scale
        if self.training and self.capacity is not None:
            # Experts fill up in the order of the sequence. Weights keep their norm: a dropped share is lost.
            chosen = chosen & (chosen.cumsum(1) <= self._limit(real, x.shape[1]))
        y = self._mix(x, chosen, weights)  # (B, N, D)
        gate = None if self.shared_gate is None else self.shared_gate(x).sigmoid()  # (B, N, 1)
        for mixer in self.shared:
            y = y + (mixer(x, seq) if gate is None else mixer(x, seq) * gate)
        return y

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the router's logits and scores, 2 x (B, N, E), in float32 at least."""
        # Rounded scores would tie, and a tie decides which expert a token is sent to.
        kind = next(self.router.parameters()).dtype
        with full_precision(x):
            logits = self.router(x.to(kind))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scores = logits.softmax(-1) if self.score == "softmax" else logits.sigmoid()
        return logits, scores

    def choose(self, scores: Tensor, real: Tensor | None) -> Tensor:
        """Return a mask of the experts that each token is sent to: scores (B, N, E), real (B, N) -> (B, N, E) bool."""
        if self.route == "expert":
            return self._choose_tokens(scores, real)
        # The offset moves the choice and not the weights, so that it needs no gradient.
        ranked = scores + self.offset if self.balance == "bias" else scores
        if self.num_groups > 1:
            ranked = self._within_groups(ranked)
        index = ranked.topk(self.active, dim=-1).indices  # (B, N, active)
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, index, True)  # (B, N, E)
        return chosen if real is None else chosen & real[..., None]

    def _within_groups(self, ranked: Tensor) -> Tensor:
        """Return the scores (B, N, E), -inf outside the best groups of each token."""
        best = ranked.unflatten(-1, (self.num_groups, -1)).topk(2, dim=-1).values.sum(-1)  # (B, N, groups)
        index = best.topk(self.active_groups, dim=-1).indices
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, index, True)  # (B, N, groups)
        return ranked.masked_fill(~kept.repeat_interleave(self.count // self.num_groups, dim=-1), -math.inf)

    def after_step(self) -> None:
        """Shift the choice towards experts with fewer tokens than the mean, and start to count anew."""
        if self.balance == "bias":
            # Loads of all micro-batches and processes, so that every process computes the same shift.
            if distributed.is_initialized() and distributed.get_world_size() > 1:
                distributed.all_reduce(self.loads)
            loads = self.loads.double()
            self.offset += self.bias_rate * (loads.mean() - loads).sign().to(self.offset.dtype)
        self.fractions = self.loads / self.loads.sum().clamp(min=1)
        self.loads.zero_()

    def training_metrics(self) -> dict[str, Tensor]:
        """Return the largest load of the last step over an equal one, and the entropy of loads over its maximum."""
        if self.fractions is None:
            return {}
        entropy = torch.special.entr(self.fractions).sum() / max(math.log(self.count), 1e-9)
        return {"load_max": self.fractions.max() * self.count, "load_entropy": entropy}

    def _real(self, seq: Seq | None) -> Tensor | None:
        if seq is None and self.padded:
            raise ValueError(
                "channel_mixer Experts was called without the facts of the sequence, and this data has padding, which "
                "must not be routed; let the block call channel_mixer(x, seq)"
            )
        return None if seq is None else seq.valid

    def _choose_tokens(self, scores: Tensor, real: Tensor | None) -> Tensor:
        """Return a mask of the tokens with the highest scores for each expert, in each sequence: (B, N, E) bool."""
        tokens = scores.shape[1] if real is None else real.sum(1)[:, None, None]  # (B, 1, 1)
        size = (self.active * tokens + self.count - 1) // self.count  # rounded up: no expert is without tokens
        ranked = scores if real is None else scores.masked_fill(~real[..., None], -1.0)
        order = ranked.argsort(dim=1, descending=True, stable=True)
        chosen = order.argsort(dim=1) < size  # the rank of each token, (B, N, E)
        return chosen if real is None else chosen & real[..., None]

    def _limit(self, real: Tensor | None, length: int) -> Tensor | int:
        """Return the largest number of tokens of a sequence that an expert takes: (B, 1, 1)."""
        assert self.capacity is not None
        share = self.capacity * self.active / self.count
        if real is None:
            return math.ceil(share * length)
        return (share * real.sum(1)).ceil()[:, None, None]

    def _note(self, logits: Tensor, scores: Tensor, chosen: Tensor, real: Tensor | None) -> None:
        """Count the loads, and keep the auxiliary losses of this pass. A batch of padding alone has none."""
        loads = chosen.sum((0, 1))  # (E,)
        if torch.is_grad_enabled():
            self.loads.add_(loads)
        if self.balance != "loss" and not self.z_loss:
            return
        mask = torch.ones_like(logits[..., 0]) if real is None else real.to(logits.dtype)  # (B, N)
        tokens = mask.sum().clamp(min=1)
        total = logits.new_zeros(())
        if self.balance == "loss":
            shares = scores / scores.sum(-1, keepdim=True)  # sigmoids do not sum to one, softmax does
            mean = (shares * mask[..., None]).sum((0, 1)) / tokens  # (E,)
            # Loads have no gradient: the loss lowers the mean scores of experts with high loads (Switch, eq. 4).
            total = total + self.weight * self.count * (loads / tokens * mean).sum()
        if self.z_loss:
            total = total + self.z_loss * (logits.logsumexp(-1).square() * mask).sum() / tokens
        self.auxiliary = total if self.auxiliary is None else self.auxiliary + total  # of every visit of the block

    def _mix(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts: (B, N, D)."""
        if fixed_shapes():
            return self.mix_all(x, weights * chosen)
        if x.is_cuda and self.groups:
            kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
            if kind == torch.bfloat16:
                return self.mix_grouped(x.to(kind), chosen, weights).to(x.dtype)
        flat = x.flatten(0, 1)  # (B N, D)
        weights = weights.flatten(0, 1)  # (B N, E)
        y = torch.zeros_like(flat)
        for number, (expert, index) in enumerate(zip(self.expert, self._indices(x, chosen), strict=True)):
            # Called without tokens too, so that in every process all weights have a gradient.
            output = expert(flat[index][None])[0]  # (n, D)
            y.index_add_(0, index, (output * weights[index, number, None]).to(y.dtype))
        return y.view_as(x)

    @property
    def groups(self) -> bool:
        """Return whether experts are two maps without biases, of widths that kernels take, with no other weights."""
        if not (hasattr(self.expert[0], "mix") and hasattr(F, "grouped_mm")):
            return False
        for expert in self.expert:
            if {name for name, _ in expert.named_parameters()} != {"proj_in.weight", "proj_out.weight"}:
                return False
            for layer in (expert.proj_in, expert.proj_out):
                # The grouped kernel needs rows of a multiple of 16 bytes.
                if not isinstance(layer, Linear) or layer.bias is not None or layer.weight.shape[1] % 8:
                    return False
        return True

    def mix_grouped(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts by two products over all experts: (B, N, D)."""
        flat = x.flatten(0, 1)  # (B N, D)
        # P pairs of an expert and a token, in the order of experts, as the grouped product needs them.
        expert, token = chosen.flatten(0, 1).T.nonzero().unbind(1)  # 2 x (P,)
        ends = chosen.sum((0, 1)).cumsum(0, dtype=torch.int32)  # (E,)
        h = F.grouped_mm(flat[token], self._stacked("proj_in", x), offs=ends)  # (P, ...)
        first: Any = self.expert[0]  # `mix` has no weights, so that one expert's serves all
        output = F.grouped_mm(first.mix(h), self._stacked("proj_out", x), offs=ends)  # (P, D)
        share = weights.flatten(0, 1)[token, expert, None]  # (P, 1)
        return torch.zeros_like(flat).index_add_(0, token, (output * share).to(flat.dtype)).view_as(x)

    def _stacked(self, name: str, like: Tensor) -> Tensor:
        """Return the weights of a map of all experts (E, inputs, outputs), in the type of `like`."""
        maps = [getattr(expert, name) for expert in self.expert]
        return torch.stack([layer.weight * layer.factor for layer in maps]).to(like.dtype).transpose(1, 2)

    def mix_all(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum with every token in every expert. weights: (B, N, E), 0 for experts not chosen."""
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.expert):
            y = y + (expert(x) * weights[..., number, None]).to(y.dtype)
        return y

    def _indices(self, x: Tensor, chosen: Tensor) -> list[Tensor]:
        """Return the indices of the tokens of each expert, (n,) in 0 ... B N - 1."""
        if not x.is_meta:
            return [column.nonzero().squeeze(-1) for column in chosen.flatten(0, 1).T]
        batch, length = x.shape[:2]
        # On the meta device there is nothing to choose by: costs are measured at equal loads.
        if self.route == "expert":
            sizes = [batch * -(-self.active * length // self.count)] * self.count
        else:
            total = batch * length * self.active
            sizes = [total * (n + 1) // self.count - total * n // self.count for n in range(self.count)]
        return [torch.zeros(size, dtype=torch.int64, device=x.device) for size in sizes]


def _check_members(expert: str, members: Mapping[str, Any]) -> None:
    if expert not in members:
        raise ValueError(
            f"channel_mixer.expert={expert} is neither a channel mixer nor one of channel_mixer.members; see "
            "`blockyard list channel_mixer`"
        )
    unused = [name for name in members if name != expert]
    if unused:
        raise ValueError(
            f"channel_mixer.members.{unused[0]} is not channel_mixer.expert={expert}; remove it from the members, or "
            f"use channel_mixer.expert={unused[0]}"
        )


def _check_route(ctx: Context, count: int, active: int, route: str, balance: str, capacity: float | None) -> None:
    """Raise ValueError for options that contradict each other, the model or the data."""
    issues = []
    if active > count:
        issues.append(f"active={active} is more than count={count}; use channel_mixer.active={count} or less")
    if route == "expert":
        if ctx.causal:
            issues.append("route=expert lets later tokens decide about earlier ones: use route=token or model=encoder")
        if balance != "none":
            issues.append("route=expert gives every expert as many tokens: use balance=none")
        if capacity is not None:
            issues.append("route=expert has a fixed number of tokens for each expert: use capacity=null")
    if ctx.data.packed and (route == "expert" or capacity is not None):
        issues.append("packed documents would compete for experts: use route=token and capacity=null")
    if issues:
        raise ValueError("; ".join(f"channel_mixer Experts: {issue}" for issue in issues))


def _check_groups(count: int, active: int, route: str, groups: int, chosen: int) -> None:
    """Raise ValueError for groups that do not fit the number of experts."""
    issues = []
    if chosen > groups:
        issues.append(f"active_groups={chosen} is more than num_groups={groups}; use active_groups={groups} or less")
    elif groups > 1:
        size = count // groups
        if count % groups or size < 2:
            issues.append(f"num_groups={groups} of {count} experts: a group has as many as others, and two or more")
        elif active > chosen * size:
            issues.append(f"active={active} is more than the {chosen * size} experts of active_groups={chosen}")
        if route == "expert":
            issues.append("route=expert has no groups: use num_groups=1")
    if issues:
        raise ValueError("; ".join(f"channel_mixer Experts: {issue}" for issue in issues))
