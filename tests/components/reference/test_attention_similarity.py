"""Hard, non-local and fixed-feature attention against formulas, token by token."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import DataSpec, Seq
from blockyard.model._prefix import Prefix, PrefixTokens
from blockyard.ops import maps
from blockyard.ops.custom_weights import Rule, average, hard, weigh
from blockyard.ops.mask import FULL
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.fixed_features import FixedFeatures
from blockyard.token_mixer.hard_attention import HardAttention
from blockyard.token_mixer.non_local import NonLocal
from blockyard.tokenizer.conv_patch import ConvPatch
from blockyard.tokenizer.patch import Patch
from tests.components.reference.attention_inputs import CAUSAL, D, N, scores_and_values, tokens
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context


@CAUSAL
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_hard_attention_takes_the_value_of_the_highest_score(kv_heads: int, causal: bool) -> None:
    """The value of the highest score, by a loop."""
    ours = stirred(HardAttention(context(causal=causal), num_kv_heads=kv_heads))
    x, out = tokens(), []
    for i in range(N):
        pairs = [scores_and_values(x, ours, i, list(range(i + 1 if causal else N)), head) for head in range(4)]
        picked = [values[torch.arange(2), scores.argmax(-1)] for scores, values in pairs]
        out.append(torch.cat(picked, -1) @ ours.proj_out.weight.T)
    assert_close(ours(x, sequence(N)), torch.stack(out, 1))


@CAUSAL
def test_softmax_converges_to_hard_attention(causal: bool) -> None:
    """The difference shrinks to zero with the temperature of the softmax."""
    x = tokens()
    hard = stirred(HardAttention(context(causal=causal)))
    soft = Attention(context(causal=causal)).double()
    soft.load_state_dict(hard.state_dict())
    apart = []
    for temperature in (1.0, 0.1, 0.01, 1e-3, 1e-5):
        with torch.no_grad():
            soft.proj_in.weight[:D] = hard.proj_in.weight[:D] / temperature
            apart.append((soft(x, sequence(N)) - hard(x, sequence(N))).abs().max().item())
    assert apart == sorted(apart, reverse=True)
    assert apart[0] > 0.1
    assert apart[-1] < 1e-9


def test_hard_attention_splits_ties() -> None:
    """Two equal tokens get half the weight each, as in the limit of softmax."""
    x = tokens()
    x[:, 3] = x[:, 1]
    ours = stirred(HardAttention(context()))
    with torch.no_grad():
        ours.proj_in.weight[D : 2 * D] = 0  # all keys are equal
    v = x @ ours.proj_in.weight[2 * D :].T
    assert_close(ours(x, sequence(N)), v.mean(1, keepdim=True).expand_as(v) @ ours.proj_out.weight.T)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_gradient_of_hard_attention_is_the_softmaxs(temperature: float) -> None:
    x, expected = tokens(), torch.randn(2, N, D, dtype=torch.float64)
    ours = stirred(HardAttention(context(heads=1), temperature=temperature))
    x.requires_grad_()
    (ours(x, sequence(N)) * expected).sum().backward()
    q, k, v = (x.detach() @ ours.proj_in.weight.T.detach()).chunk(3, -1)
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    scores = q @ k.transpose(1, 2) / math.sqrt(D)
    soft, out_of = F.softmax(scores / temperature, -1), ours.proj_out.weight.T.detach()
    by_score = torch.autograd.grad((soft @ v.detach() @ out_of * expected).sum(), (q, k), retain_graph=True)
    picked = F.one_hot(scores.argmax(-1), N).double()
    (by_value,) = torch.autograd.grad((picked @ v @ out_of * expected).sum(), v)
    assert_close(x.grad, torch.cat([*by_score, by_value], -1) @ ours.proj_in.weight)


SCORES = ["gaussian", "embedded_gaussian", "dot_product", "concatenation"]


def similarity(score: str, ours: NonLocal, a: Tensor, b: Tensor) -> Tensor:
    """Wang et al., eq. 2 to 5, for two tokens (D,)."""
    theta, phi = ours.proj_in.weight[: ours.inner], ours.proj_in.weight[ours.inner : 2 * ours.inner]
    if score == "gaussian":
        return torch.exp(a @ b)
    if score == "concatenation":
        return torch.relu(ours.pair.weight[0] @ torch.cat([theta @ a, phi @ b]))
    product = (theta @ a) @ (phi @ b)
    return torch.exp(product) if score == "embedded_gaussian" else product


@CAUSAL
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_non_local(score: str, padded: bool, causal: bool) -> None:
    ours = stirred(NonLocal(context(causal=causal), score=score))
    x, g = 0.3 * tokens(), ours.proj_in.weight[-ours.inner :]
    valid = torch.arange(N) < torch.tensor([[4], [6]]) if padded else None
    out = ours(x, sequence(N, valid))
    for b in range(2):
        count = 4 if padded and b == 0 else N
        for i in range(count):
            seen = range(i + 1 if causal else count)
            f = [similarity(score, ours, x[b, i], x[b, j]) for j in seen]
            size = sum(f) if "gaussian" in score else len(seen)
            expected = sum(weight * (g @ x[b, j]) for weight, j in zip(f, seen, strict=True)) / size
            assert_close(out[b, i], ours.proj_out.weight @ expected)


@pytest.mark.parametrize("score", SCORES)
def test_non_local_from_a_cache(score: str) -> None:
    ours = stirred(NonLocal(context(causal=True), score=score))
    x, cache = 0.3 * tokens(), ours.init_cache(2)
    steps = [ours(x[:, i : i + 1], Seq(torch.tensor([i]), torch.zeros(1, 1, 1)), cache) for i in range(N)]
    assert_close(torch.cat(steps, 1), ours(x, sequence(N)))
    assert cache.bytes == 2 * N * (ours.inner + {"gaussian": D, "concatenation": 2}.get(score, ours.inner)) * 8


def half(n: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (1, 2, n, width) in bfloat16."""
    drawn = torch.randn(3, 1, 2, n, width, generator=torch.Generator().manual_seed(0))
    return tuple(drawn.to(torch.bfloat16))


@pytest.mark.parametrize("rule", [hard, average, partial(average, activation=F.relu)], ids=["hard", "mean", "relu"])
def test_half_precision_does_not_create_ties(rule: Rule) -> None:
    """Autocast would compute scores in bfloat16, in which different keys tie."""
    q, k, v = half(256, 16)
    kept = []

    def listening(*call: Any) -> Tensor:
        kept.append(rule(*call))
        return kept[-1]

    with torch.autocast("cpu", torch.bfloat16):
        out = weigh(q, k, v, sequence(256), sequence(256), FULL, rule=listening)
    exact = rule(q.float(), k.float(), sequence(256), sequence(256), FULL)
    assert_close(kept[0], exact, rtol=1e-6, atol=1e-9)
    assert_close(out, exact.to(torch.bfloat16) @ v)
    if rule is hard:
        assert kept[0].amax(-1).eq(1).all()


def test_planted_wrong_count_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an average over all tokens, padding included."""
    ours = stirred(NonLocal(context(), score="dot_product"))
    x, valid = tokens(), torch.arange(N) < torch.tensor([[4], [6]])
    alone = ours(x[:1, :4], sequence(4))
    assert_close(ours(x, sequence(N, valid))[:1, :4], alone)
    monkeypatch.setattr("blockyard.ops.custom_weights.mask.table", lambda *_: None)
    with pytest.raises(AssertionError):
        assert_close(ours(x.masked_fill(~valid[..., None], 0), sequence(N, valid))[:1, :4], alone)


def test_planted_soft_choice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: hard attention that is softmax attention."""
    monkeypatch.setattr(HardAttention, "_attend", Attention._attend)
    with pytest.raises(AssertionError):
        test_hard_attention_takes_the_value_of_the_highest_score(4, False)


@CAUSAL
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("kernel", ["gaussian", "dot"])
def test_fixed_features(kernel: str, normalise: bool, padded: bool, causal: bool) -> None:
    """The Nadaraya-Watson estimate: an average weighted by a kernel of the features, or of their directions."""
    ours = stirred(FixedFeatures(context(causal=causal), kernel=kernel, width=0.7, normalise=normalise))
    x, f = tokens(), torch.rand(2, N, 3, dtype=torch.float64)
    valid = torch.arange(N) < torch.tensor([[4], [6]]) if padded else None
    seq = sequence(N, valid)
    seq.features = f
    out = ours(x, seq)
    f = f / f.square().sum(-1, keepdim=True).sqrt() if normalise else f
    for b in range(2):
        count = 4 if padded and b == 0 else N
        for i in range(count):
            seen = list(range(i + 1 if causal else count))
            if kernel == "gaussian":
                weights = torch.exp(-(torch.cdist(f[b, i : i + 1], f[b, seen])[0] ** 2) / (2 * 0.7**2))
            else:
                weights = torch.exp(f[b, seen] @ f[b, i] / 0.7**2)
            mean = (weights / weights.sum()) @ x[b, seen]
            assert_close(out[b, i], ours.proj_out.weight @ ours.proj_in.weight @ mean)


def test_unit_vectors_leave_brightness_out() -> None:
    """Dark and bright tokens of one hue share the weight, one of another hue gets none; black stays zero."""
    hues = torch.tensor([[0.2, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    seq = sequence(4)
    seq.features = hues[None]
    mixer = FixedFeatures(context(), width=0.1, normalise=True).double()
    with maps.listen(mixer) as seen:
        mixer(torch.randn(1, 4, D, dtype=torch.float64), seq)
    expected = torch.block_diag(torch.full((2, 2), 0.5), torch.eye(2)).double()
    assert_close(seen[0].weights()[0, 0].double(), expected, rtol=0, atol=1e-6)


def test_features_are_the_mean_colours_of_patches() -> None:
    """An image of four flat squares: with a narrow kernel, patches attend to those of their own colour."""
    data = DataSpec("image", (3, 8, 8), classes=2, target="class")
    colours = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0]])
    image = colours.T.reshape(3, 2, 2).repeat_interleave(4, 1).repeat_interleave(4, 2)[None]
    for tokenizer in (Patch(size=4), ConvPatch(size=4)):
        ctx = context(dim=D, heads=4, axes=2)
        ctx = replace(ctx, data=data, tokens=tokenizer.spec(data))
        for batch in (image, (image * 255).to(torch.uint8)):
            seq = tokenizer.embedder(ctx).eval()(batch)[1]
            assert_close(seq.features[0], colours)
    mixer = FixedFeatures(ctx, width=0.1)
    with maps.listen(mixer) as seen:
        mixer(torch.randn(1, 4, D), seq)
    assert_close(seen[0].weights()[0, 0], (colours @ colours.T) / 2)
    x, longer = PrefixTokens(ctx, Prefix(class_token=True))(torch.randn(1, 4, D), seq)
    assert_close(longer.features[0], torch.cat([torch.zeros(1, 3), colours]))
    with pytest.raises(ValueError, match="FixedFeatures mixes by features of the raw input and there are none"):
        mixer(x, sequence(5))


def test_distances_survive_half_precision() -> None:
    """Colours far from the origin and close to each other: distances are not rounded to bfloat16."""
    ours = stirred(FixedFeatures(context(), width=0.2)).float()
    seq, random = sequence(N), torch.Generator().manual_seed(0)
    seq.features = 2 + 0.2 * torch.randn(2, N, 3, generator=random)
    x = torch.randn(2, N, D, generator=random)
    exact = ours(x, seq)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = ours(x, seq).float()
    assert (half - exact).norm() / exact.norm() < 0.02


def test_planted_wrong_kernel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the norm of the keys is dropped, so bright tokens get all the weight."""
    monkeypatch.setattr(Tensor, "square", lambda x: x * 0)
    with pytest.raises(AssertionError):
        test_fixed_features("gaussian", False, False, False)
