"""The mixture of experts against transformers' Mixtral and DeepSeek-V3, and what routing must leave alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig, Qwen3NextConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

from blockyard.channel_mixer.experts import Experts
from blockyard.channel_mixer.glu import GLU
from blockyard.contracts import ChannelMixer, Seq
from blockyard.weight_init import initialise
from tests.support.every import every
from tests.support.helpers import context, factory, stir
from tests.support.tolerances import FLOAT32_STEPS, FLOAT64

D, HIDDEN, COUNT = 16, 24, 8
X = torch.randn(2, 6, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([6, 4])
SIZES = {"hidden_size": D, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 11}


def built(kind: type[Experts] = Experts, expert: str = "glu", **options: Any) -> Experts:
    """A mixer in float64, in training."""
    defaults = factory("channel_mixer", "experts").keywords
    member = factory("channel_mixer", expert, {"expansion": 1.333})
    mixer = kind(context(variable=True), **{**defaults, "expert": expert, "members": {expert: member}, **options})
    return stir(initialise(mixer, 0)).double()


def padded(lengths: Tensor | None = LENGTHS, length: int = 6) -> Seq:
    """The facts of a batch with padding; None has none."""
    index = torch.arange(length)
    return Seq(index, index[None, :, None].double(), None if lengths is None else index < lengths[:, None])


WHOLE = padded(None)


def copy_expert(own: nn.Module, their_gate_up: Tensor, their_down: Tensor) -> None:
    with torch.no_grad():
        their_gate_up.copy_(own.proj_in.weight)  # type: ignore[union-attr]
        their_down.copy_(own.proj_out.weight)  # type: ignore[union-attr]


def mixtral(own: Experts) -> nn.Module:
    """Mixtral's block with the weights of ours."""
    config = MixtralConfig(**SIZES, intermediate_size=HIDDEN, num_local_experts=COUNT, num_experts_per_tok=own.active)
    config._experts_implementation = "eager"
    block = MixtralSparseMoeBlock(config).double()
    for number, expert in enumerate(own.expert):
        copy_expert(expert, block.experts.gate_up_proj[number], block.experts.down_proj[number])
    with torch.no_grad():
        block.gate.weight.copy_(own.router.weight)
    return block


def deepseek(own: Experts) -> nn.Module:
    """DeepSeek-V3's block with the weights of ours; its shared experts are one wide expert."""
    config = DeepseekV3Config(
        **SIZES,
        moe_intermediate_size=HIDDEN,
        n_routed_experts=COUNT,
        num_experts_per_tok=own.active,
        n_shared_experts=len(own.shared),
        n_group=own.num_groups,
        topk_group=own.active_groups,
        routed_scaling_factor=own.scale,
    )
    config._experts_implementation = "eager"
    block = DeepseekV3MoE(config).double()
    for number, expert in enumerate(own.expert):
        copy_expert(expert, block.experts.gate_up_proj[number], block.experts.down_proj[number])
    with torch.no_grad():
        block.gate.weight.copy_(own.router.weight)
        block.gate.e_score_correction_bias.copy_(own.offset)
        gates, values = zip(*(expert.proj_in.weight.chunk(2) for expert in own.shared), strict=True)
        block.shared_experts.gate_proj.weight.copy_(torch.cat(gates))
        block.shared_experts.up_proj.weight.copy_(torch.cat(values))
        block.shared_experts.down_proj.weight.copy_(torch.cat([e.proj_out.weight for e in own.shared], 1))
    return block


def gpt_oss(own: Experts) -> Callable[[Tensor], Tensor]:
    """gpt-oss' block with the weights of ours; theirs are (inputs, outputs), and gates and values lie in turns."""
    config = GptOssConfig(**SIZES, intermediate_size=HIDDEN, num_local_experts=COUNT, num_experts_per_tok=own.active)
    config._experts_implementation = "eager"
    config.swiglu_limit = CLAMPED["limit"]
    block = GptOssMLP(config).double()
    with torch.no_grad():
        block.router.weight.copy_(own.router.weight)
        block.router.bias.copy_(own.router.bias)
        for number, expert in enumerate(own.expert):
            for part, order in ((slice(0, None, 2), 0), (slice(1, None, 2), 1)):
                block.experts.gate_up_proj[number, :, part] = expert.proj_in.weight.chunk(2)[order].T
                block.experts.gate_up_proj_bias[number, part] = expert.proj_in.bias.chunk(2)[order]
            block.experts.down_proj[number] = expert.proj_out.weight.T
            block.experts.down_proj_bias[number] = expert.proj_out.bias
    return lambda x: block(x)[0]


def qwen3_next(own: Experts) -> nn.Module:
    """Qwen3-Next's block with the weights of ours, of which one expert is shared."""
    config = Qwen3NextConfig(
        **SIZES,
        moe_intermediate_size=HIDDEN,
        shared_expert_intermediate_size=HIDDEN,
        num_experts=COUNT,
        num_experts_per_tok=own.active,
    )
    config._experts_implementation = "eager"
    block = Qwen3NextSparseMoeBlock(config).double()
    for number, expert in enumerate(own.expert):
        copy_expert(expert, block.experts.gate_up_proj[number], block.experts.down_proj[number])
    (shared,) = own.shared
    with torch.no_grad():
        block.gate.weight.copy_(own.router.weight)
        block.shared_expert_gate.weight.copy_(own.shared_gate.weight)
        block.shared_expert.gate_proj.weight.copy_(shared.proj_in.weight.chunk(2)[0])
        block.shared_expert.up_proj.weight.copy_(shared.proj_in.weight.chunk(2)[1])
        block.shared_expert.down_proj.weight.copy_(shared.proj_out.weight)
    return block


def gradient(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The output at X, and the gradient of a weighted sum of it."""
    x = X.clone().requires_grad_()
    y = function(x)
    (y * torch.arange(y.numel()).view_as(y).cos()).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("active", [2, 3])
def test_mixtral(active: int) -> None:
    """Mixtral computes its scores in float32."""
    own = built(active=active)
    for value, expected in zip(gradient(lambda x: own(x, WHOLE)), gradient(mixtral(own)), strict=True):
        assert_close(value, expected, **FLOAT32_STEPS)


def of_deepseek(kind: type[Experts] = Experts, **options: Any) -> Experts:
    """A sigmoid for each expert, whose choice is shifted."""
    own = built(kind, score="sigmoid", balance="bias", shared=2, active=3, **options)
    with torch.no_grad():
        own.offset.copy_(torch.linspace(-0.4, 0.4, COUNT))
    return own


GROUPS = {"num_groups": 4, "active_groups": 2, "scale": 2.5}


@pytest.mark.parametrize("options", [{}, GROUPS, {"num_groups": 2, "scale": 0.5}], ids=str)
def test_deepseek(options: dict[str, Any]) -> None:
    own = of_deepseek(**options)
    for value, expected in zip(gradient(lambda x: own(x, WHOLE)), gradient(deepseek(own)), strict=True):
        assert_close(value, expected, **FLOAT32_STEPS)


def test_qwen3_next() -> None:
    """Qwen3-Next computes its scores in float32. Planted: a gate of the shared expert that is always one."""
    own = built(shared=1, shared_gate=True, active=3)
    theirs = qwen3_next(own)
    for value, expected in zip(gradient(lambda x: own(x, WHOLE)), gradient(theirs), strict=True):
        assert_close(value, expected, **FLOAT32_STEPS)
    own.shared_gate = None
    with pytest.raises(AssertionError):
        assert_close(own(X, WHOLE), theirs(X), **FLOAT32_STEPS)


class GroupsOfOneBest(Experts):
    """Planted: a group is as good as its best expert, in place of its two best."""

    def _within_groups(self, ranked: Tensor) -> Tensor:
        best = ranked.unflatten(-1, (self.num_groups, -1)).amax(-1)
        index = best.topk(self.active_groups, dim=-1).indices
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, index, True)
        return ranked.masked_fill(~kept.repeat_interleave(self.count // self.num_groups, dim=-1), -math.inf)


class NoGroups(Experts):
    """Planted: experts of all groups."""

    def _within_groups(self, ranked: Tensor) -> Tensor:
        return ranked


@pytest.mark.parametrize("kind", [GroupsOfOneBest, NoGroups])
def test_planted_groups_are_caught(kind: type[Experts]) -> None:
    own = of_deepseek(kind, num_groups=2)
    own.offset.zero_()  # as large as it is above, one group would be the best by any rule
    with pytest.raises(AssertionError):
        assert_close(own(X, WHOLE), deepseek(own)(X), **FLOAT32_STEPS)


CLAMPED = {"expansion": 1.333, "bias": True, "activation": "quick_gelu", "limit": 0.5, "offset": 1.0}


def of_gpt_oss(kind: type[Experts] = Experts) -> Experts:
    """The router has a bias, and experts are clamped."""
    return built(kind, members={"glu": factory("channel_mixer", "glu", CLAMPED)}, active=3, router_bias=True)


def test_gpt_oss() -> None:
    """Their softmax is over the logits of the chosen experts; ours over all, divided by the sum of the chosen."""
    own = of_gpt_oss()
    assert own.router.bias.abs().min() > 0
    for value, expected in zip(gradient(lambda x: own(x, WHOLE)), gradient(gpt_oss(own)), strict=True):
        assert_close(value, expected, **FLOAT64)


class KeepsScores(Experts):
    """Planted: the scores of the chosen experts are not divided by their sum."""

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        self.normalise = False
        return super().forward(x, seq)


class ChoosesWithoutBias(Experts):
    """Planted: the bias of the router changes the scores, and not the choice."""

    def choose(self, scores: Tensor, real: Tensor | None) -> Tensor:
        return super().choose((scores.log() - self.router.bias).softmax(-1), real)


@pytest.mark.parametrize("kind", [ChoosesWithoutBias, KeepsScores])
def test_planted_routers_of_gpt_oss_are_caught(kind: type[Experts]) -> None:
    own = of_gpt_oss(kind)
    with pytest.raises(AssertionError):
        assert_close(own(X, WHOLE), gpt_oss(own)(X), **FLOAT64)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_the_balance_loss_is_mixtrals(lengths: Tensor | None) -> None:
    own, seq = built(weight=0.3), padded(lengths)
    own(X, seq)
    logits, _ = own.scores(X)
    expected = load_balancing_loss_func((logits.flatten(0, 1),), COUNT, own.active, seq.valid)
    assert own.auxiliary is not None
    assert_close(own.auxiliary, 0.3 * expected.double(), **FLOAT32_STEPS)


class BalancesPadding(Experts):
    """Planted: padding counts for the loads and the balance loss."""

    def _note(self, logits: Tensor, scores: Tensor, chosen: Tensor, real: Tensor | None) -> None:
        super()._note(logits, scores, self.choose(scores, None), None)


class RoutesPadding(Experts):
    """Planted: padding is sent to experts."""

    def choose(self, scores: Tensor, real: Tensor | None) -> Tensor:
        return super().choose(scores, None)


def padding_is_left_alone(kind: type[Experts] = Experts, **options: Any) -> None:
    """Other vectors behind the ends of sequences change no load, loss, gradient, nor output of a real token."""
    results = []
    for noise in (0.0, 7.0):
        own, x = built(kind, **options), X.clone()
        x[1, 4:] += noise
        y = own(x, padded())
        (y[0].sum() + y[1, :4].sum() + (0 if own.auxiliary is None else own.auxiliary)).backward()
        results.append([y[0], y[1, :4], own.loads, own.auxiliary, *(p.grad for p in own.parameters())])
        assert own.loads.sum() <= int(LENGTHS.sum()) * own.active + COUNT
    for one, other in zip(*results, strict=True):
        if one is not None:
            assert_close(one, other)
    alone = built(kind, **options)
    assert_close(alone(X[1:, :4], padded(None, 4)), results[0][1][None])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"shared": 1, "z_loss": 0.1},
    {"shared": 2, "shared_gate": True},
    {"balance": "bias", "score": "sigmoid"},
    {"capacity": 0.5},
    {"route": "expert", "balance": "none"},
    {"score": "sigmoid", "num_groups": 4, "active_groups": 2, "scale": 1.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_padding_is_neither_routed_nor_balanced(options: dict[str, Any]) -> None:
    padding_is_left_alone(**options)


@pytest.mark.parametrize("kind", [BalancesPadding, RoutesPadding])
def test_planted_padding_is_caught(kind: type[Experts]) -> None:
    with pytest.raises(AssertionError):
        padding_is_left_alone(kind)


def test_planted_weights_that_are_not_divided_are_caught() -> None:
    own = built(KeepsScores)
    with pytest.raises(AssertionError):
        assert_close(own(X, WHOLE), mixtral(own)(X), **FLOAT32_STEPS)


def test_a_batch_of_padding_has_no_loss() -> None:
    own = built(z_loss=0.1)
    y = own(X, padded(torch.tensor([0, 0])))
    assert own.auxiliary is not None
    assert own.auxiliary.item() == 0
    assert torch.isfinite(y).all()


def test_the_z_loss_is_the_mean_squared_logsumexp() -> None:
    own = built(balance="none", z_loss=0.2)
    own(X, padded())
    logits, _ = own.scores(X)
    real = logits[padded().valid]
    assert own.auxiliary is not None
    assert_close(own.auxiliary, 0.2 * real.exp().sum(-1).log().square().mean())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tokens_gathered_by_expert_equal_all_experts_on_all_tokens(options: dict[str, Any]) -> None:
    """In values and gradients; an expert that no token chose has zeros as its gradient, for DDP."""
    results = []
    for all_experts in (False, True):
        own = built(count=16, expert="mlp", **options)
        if all_experts:
            own._mix = lambda x, chosen, weights, own=own: own.mix_all(x, weights * chosen)  # type: ignore[method-assign]
        y, grad = gradient(lambda x, own=own: own(x, padded()))
        results.append([y, grad, *(p.grad for p in own.parameters())])
        assert every(p.grad is not None for p in own.expert.parameters())
    for gathered, dense in zip(*results, strict=True):
        assert_close(gathered, dense)


@pytest.mark.parametrize("options", [{}, {"score": "sigmoid", "normalise": True}, {"balance": "bias"}], ids=str)
def test_one_expert_is_the_dense_mixer(options: dict[str, Any]) -> None:
    own = built(count=1, active=1, **options)
    dense = GLU(context(), expansion=1.333).double()
    dense.load_state_dict(own.expert[0].state_dict())
    assert_close(own(X, WHOLE), dense(X))


def test_switch_keeps_the_score_of_one_active_expert() -> None:
    """Otherwise every weight would be 1 and the router would learn nothing from the loss."""
    own = built(active=1, balance="none")
    _, scores = own.scores(X)
    best = scores.max(-1)
    outputs = torch.stack([expert(X) for expert in own.expert], 2)  # (B, N, E, D)
    expected = outputs.gather(2, best.indices[..., None, None].expand(-1, -1, 1, D))[:, :, 0] * best.values[..., None]
    assert_close(own(X, WHOLE), expected)


def test_capacity_drops_the_last_tokens_in_training() -> None:
    own = built(active=1, capacity=1.5, count=2)
    with torch.no_grad():
        own.router.weight.zero_()  # a tie, which sends all tokens to the first expert
    y = own(X, padded())
    _, scores = own.scores(X)
    whole = own.expert[0](X) * scores[..., :1]
    for sample, (length, kept) in enumerate(zip(LENGTHS.tolist(), (5, 3), strict=True)):  # ceil(1.5 N / 2)
        assert kept == math.ceil(1.5 * length / 2)
        assert_close(y[sample, :kept], whole[sample, :kept])
        assert_close(y[sample, kept:length], torch.zeros_like(y[sample, kept:length]))
    assert own.loads.tolist()[0] == int(LENGTHS.sum())
    assert_close(own.eval()(X, WHOLE), whole)


def test_experts_choose_as_many_tokens_of_each_sequence() -> None:
    """Zhou et al., section 3.2: softmax over experts, then the top tokens of each expert, weights as they are."""
    own = built(route="expert", balance="none", count=4)
    y = own(X, padded())
    scores = (X @ own.router.weight.T).softmax(-1)
    expected = torch.zeros_like(X)
    for sample, length in enumerate(LENGTHS.tolist()):
        for number, expert in enumerate(own.expert):
            chosen = scores[sample, :length, number].topk(math.ceil(2 * length / 4)).indices
            for token in chosen.tolist():
                output = expert(X[sample : sample + 1, token : token + 1])[0, 0]
                expected[sample, token] += scores[sample, token, number] * output
    assert_close(y, expected)


def test_the_shift_follows_the_loads_of_all_micro_batches() -> None:
    """Wang et al., algorithm 1: up by the rate for fewer tokens than the mean, down for more."""
    own = built(balance="bias", bias_rate=0.25)
    for part in X:
        own(part[None], WHOLE)
    _, scores = own.scores(X)
    counts = torch.bincount(scores.topk(2, -1).indices.flatten(), minlength=COUNT)
    assert own.loads.tolist() == counts.tolist()
    assert own.offset.tolist() == [0.0] * COUNT
    own.after_step()
    assert_close(own.offset, 0.25 * (counts.double().mean() - counts).sign())
    assert own.loads.tolist() == [0] * COUNT
    metrics = own.training_metrics()
    share = counts / counts.sum()
    assert metrics["load_max"].item() == pytest.approx(share.max().item() * COUNT)
    expected = -(share * share.clamp(min=1e-12).log()).sum() / math.log(COUNT)
    assert metrics["load_entropy"].item() == pytest.approx(expected.item(), abs=1e-6)
    own.eval()(X, WHOLE)
    with torch.no_grad():
        own.train()(X, WHOLE)
    assert own.loads.tolist() == [0] * COUNT  # neither evaluation nor a pass without gradients counts


def test_a_shifted_choice_leaves_the_weights_alone() -> None:
    own, plain = built(balance="bias", active=8), built(balance="none", active=8)
    own.offset += torch.linspace(-1, 1, COUNT)
    assert_close(own(X, WHOLE), plain(X, WHOLE))


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({}, {"active": 9}),
        ({"causal": True}, {"route": "expert", "balance": "none"}),
        ({"packed": True}, {"route": "expert", "balance": "none"}),
        ({"packed": True}, {"capacity": 1.0}),
        ({}, {"route": "expert"}),
        ({}, {"route": "expert", "balance": "none", "capacity": 1.0}),
        ({}, {"active_groups": 2}),
        ({}, {"shared_gate": True}),
        ({}, {"num_groups": 3}),
        ({}, {"num_groups": 8}),
        ({}, {"num_groups": 4, "active": 3}),
        ({}, {"num_groups": 4, "route": "expert", "balance": "none"}),
        ({}, {"expert": "mlp"}),
        ({}, {"members": {"glu": factory("channel_mixer", "glu"), "mlp": factory("channel_mixer", "mlp")}}),
        ({}, {"expert": "none", "members": {"none": factory("channel_mixer", "none")}}),
        ({}, {"expert": "experts", "members": {"experts": factory("channel_mixer", "experts")}}),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(sizes: dict[str, bool], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="channel_mixer"):
        factory("channel_mixer", "experts", options)(context(**sizes))


def test_padding_without_the_facts_of_the_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be routed"):
        built()(X)


def test_each_expert_has_initial_weights_of_its_own() -> None:
    mixer: ChannelMixer = initialise(factory("channel_mixer", "experts")(context()), 0)  # type: ignore[assignment]
    first, second = (mixer.get_parameter(f"expert.{n}.proj_in.weight") for n in (0, 1))
    assert not torch.equal(first, second)
    assert first.std().item() == pytest.approx(second.std().item(), rel=0.2)


def test_active_parameters_are_those_of_a_token() -> None:
    own = built(shared=1)
    each = sum(p.numel() for p in own.expert[0].parameters())
    assert own.active_parameters() == 3 * each + own.router.weight.numel()
    assert GLU(replace(context(), dim=16)).active_parameters() == 3 * 16 * 40


@pytest.mark.parametrize("expert", ["glu", "mlp"])
def test_grouped_products_are_those_of_one_expert_after_the_other(expert: str) -> None:
    """Outputs and gradients in float32, with padding, and with an expert that no token chose."""
    members = {expert: factory("channel_mixer", expert, {"expansion": 1.5})}
    mixer = built(expert=expert, members=members).float()
    assert mixer.groups
    x, seq = X.float(), padded()
    results = []
    for grouped in (False, True):
        own = x.clone().requires_grad_()
        _, scores = mixer.scores(own)
        chosen = mixer.choose(scores.index_fill(-1, torch.tensor([2]), 0.0), seq.valid)
        assert chosen[..., 2].sum() == 0
        weights = scores * chosen
        y = mixer.mix_grouped(own, chosen, weights) if grouped else mixer._mix(own, chosen, weights)
        mixer.zero_grad()
        y.square().sum().backward()
        results.append([y, own.grad, *(p.grad.clone() for e in mixer.expert for p in e.parameters())])
    for left, right in zip(*results, strict=True):
        assert_close(left, right, rtol=1e-4, atol=1e-5)
    assert results[0][0].abs().max() > 0.1


def test_what_has_no_grouped_products() -> None:
    """Biases, and widths that the kernels do not take."""
    biased = factory("channel_mixer", "glu", {"bias": True})
    mixer = built()
    assert mixer.groups
    mixer.expert[0] = initialise(biased(context(variable=True)), 0)
    assert not mixer.groups


@pytest.mark.parametrize(("gains", "grouped"), [("none", True), ("one", False)])
def test_experts_with_weights_between_their_maps_are_not_grouped(gains: str, grouped: bool) -> None:
    """In two products the gains of the first expert would stand for those of all."""
    members = {"glu": factory("channel_mixer", "glu", {"expansion": 1.5, "gains": gains})}
    assert built(expert="glu", members=members).groups is grouped
