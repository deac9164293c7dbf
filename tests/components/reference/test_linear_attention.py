"""Linear attention against its explicit weights; its three forms and its state against each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Memory
from blockyard.model._prefix import Prefix
from blockyard.token_mixer import linear_attention
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.linear_attention import LinearAttention, RandomFeatures
from blockyard.weight_init import initialise
from tests.components.properties.checks import cached_decoding, causality, packing, padding, relative
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context, factory, tiny, token_ids

D, HEADS, K = 16, 4, 4
FEATURES = ("elu", "relu", "polynomial", "taylor")


def mixer_of(causal: bool, **options: object) -> LinearAttention:
    """A mixer with large weights."""
    return stirred(LinearAttention(context(causal=causal), **options))


def similarity(q: Tensor, k: Tensor, feature: str) -> Tensor:
    """The unnormalised weight of a query and a key, both (K,)."""
    if feature == "polynomial":
        return (1 + q @ k / math.sqrt(K)) ** 2
    if feature == "taylor":
        s = q @ k / math.sqrt(K)
        return 1 + s + s**2 / 2
    phi = (lambda x: F.elu(x) + 1) if feature == "elu" else torch.relu
    return phi(q) @ phi(k)


POLYNOMIALS = [(2, 1.0), (2, 0.0), (2, 0.3), (4, 1.0), (4, 2.5)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("degree", "constant"), POLYNOMIALS)
def test_a_polynomial_of_any_even_degree(degree: int, constant: float, causal: bool) -> None:
    mixer = mixer_of(causal, feature="polynomial", degree=degree, constant=constant, chunk=3)
    x = torch.randn(2, 7, D, dtype=torch.float64)

    def power(q: Tensor, k: Tensor, feature: str) -> Tensor:
        return (constant + q @ k / math.sqrt(K)) ** degree

    assert_close(mixer(x, sequence(7)), written_out(mixer, x, x, causal, weight_of=power))
    mixer.factor.fill_(1.0)  # planted: every monomial counts once
    with pytest.raises(AssertionError):
        assert_close(mixer(x, sequence(7)), written_out(mixer, x, x, causal, weight_of=power))


@pytest.mark.parametrize(("degree", "constant"), POLYNOMIALS[1:4])
def test_polynomials_have_the_declared_properties(degree: int, constant: float) -> None:
    options = {"token_mixer": {"feature": "polynomial", "degree": degree, "constant": constant, "chunk": 2}}
    for position in ("none", "rope"):
        picks = {"token_mixer": "linear_attention", "position": position, "options": options}
        for promise in (causality, padding, packing, cached_decoding):
            promise(tiny(causal=True, **picks), 6)
        padding(tiny(**picks), 6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("degree", "constant"), [(3, 1.0), (3, 0.0), (2, 0.5), (5, 2.0)])
def test_a_polynomial_of_positive_parts_has_any_degree(degree: int, constant: float, causal: bool) -> None:
    mixer = mixer_of(causal, feature="polynomial_relu", degree=degree, constant=constant, chunk=3)
    x = torch.randn(2, 7, D, dtype=torch.float64)

    def power(q: Tensor, k: Tensor, feature: str) -> Tensor:
        return (constant + q.relu() @ k.relu() / math.sqrt(K)) ** degree

    assert_close(mixer(x, sequence(7)), written_out(mixer, x, x, causal, weight_of=power))
    mixer.feature = "polynomial"  # planted: the same without relu
    with pytest.raises(AssertionError):
        assert_close(mixer(x, sequence(7)), written_out(mixer, x, x, causal, weight_of=power))


def test_odd_polynomials_have_the_declared_properties() -> None:
    options = {"token_mixer": {"feature": "polynomial_relu", "degree": 3, "chunk": 2}}
    picks = {"token_mixer": "linear_attention", "position": "none", "options": options}
    for promise in (causality, padding, packing, cached_decoding):
        promise(tiny(causal=True, **picks), 6)
    padding(tiny(**picks), 6)
    reasons = check(compose(["token_mixer=linear_attention", "token_mixer.feature=polynomial_relu", "position=rope"]))
    assert any("rope" in str(issue) for issue in reasons)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature": "polynomial", "degree": 3}, "weights of an odd degree can be negative"),
        ({"feature": "polynomial", "degree": 8}, "of 16 channels has 735,471 features a head, more than 4,096"),
        ({"feature": "taylor", "degree": 4}, "use token_mixer.feature=polynomial"),
        ({"degree": 4}, "use token_mixer.feature=polynomial"),
        ({"feature": "relu", "constant": 0.0}, "use token_mixer.feature=polynomial"),
    ],
)
def test_polynomials_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinearAttention(context(heads=1), **options)  # type: ignore[arg-type]


def written_out(
    mixer: LinearAttention,
    x: Tensor,
    y: Tensor,
    causal: bool,
    segment: Tensor | None = None,
    weight_of: Callable[[Tensor, Tensor, str], Tensor] = similarity,
) -> Tensor:
    """Each output as a weighted mean over the tokens it sees."""
    weight = mixer.proj_in.weight
    q, k, v = x @ weight[:D].T, y @ weight[D : 2 * D].T, y @ weight[2 * D :].T
    out = torch.zeros_like(x)
    for b in range(len(x)):
        for h in range(HEADS):
            part = slice(h * K, (h + 1) * K)
            for i in range(x.shape[1]):
                seen = [j for j in range(y.shape[1]) if j <= i or not causal]
                seen = [j for j in seen if segment is None or segment[b, i] == segment[b, j]]
                weights = [weight_of(q[b, i, part], k[b, j, part], mixer.feature) for j in seen]
                total = sum(w * v[b, j, part] for w, j in zip(weights, seen, strict=True))
                if sum(weights) > 0:
                    out[b, i, part] = total / sum(weights)
    return out @ mixer.proj_out.weight.T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature", FEATURES)
def test_weights_written_out(feature: str, causal: bool) -> None:
    mixer, x = mixer_of(causal, feature=feature, chunk=3), torch.randn(2, 7, D, dtype=torch.float64)
    assert_close(mixer(x, sequence(7)), written_out(mixer, x, x, causal))
    segment = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 2, 2, 2]])
    assert_close(mixer(x, sequence(7, segment=segment)), written_out(mixer, x, x, causal, segment))


def small_weights(q: Tensor, k: Tensor, feature: str) -> Tensor:
    weight = q @ k / math.sqrt(K) if feature == "polynomial" else q.relu() @ k.relu() / math.sqrt(K)
    return weight**2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature", ["polynomial", "polynomial_relu"])
def test_small_weights_are_divided_by_their_sum_alone(feature: str, causal: bool) -> None:
    """A term of 1e-6 in the denominator made these outputs half as large. A query without a weight reads zero."""
    mixer = mixer_of(causal, feature=feature, constant=0.0, chunk=3)
    with torch.no_grad():
        mixer.proj_in.weight[:D] *= 1e-4
    x = torch.randn(2, 7, D, dtype=torch.float64)
    x[1, 2] = 0.0
    x.requires_grad_()
    expected = written_out(mixer, x, x, causal, weight_of=small_weights)
    outputs = [mixer(x, sequence(7))]
    if causal:
        cache = mixer.init_cache(2)
        parts = [mixer(x[:, i : i + size], sequence(size, start=i), cache) for i, size in ((0, 2), (2, 1), (3, 4))]
        outputs.append(torch.cat(parts, 1))
        mixer.chunk = 7
        outputs.append(mixer(x, sequence(7)))
    for y in outputs:
        assert_close(y, expected)
        assert not y[1, 2].any()
        assert y[1, 3].any()
        (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert grad.isfinite().all()


def test_the_first_terms_of_the_exponential() -> None:
    """Near zero the weights of taylor are those of a softmax, up to the third order of the scores."""
    mixer, x = mixer_of(True, feature="taylor"), torch.randn(2, 7, D, dtype=torch.float64)
    soft = stirred(Attention(context(causal=True)))
    soft.load_state_dict({name: value for name, value in mixer.state_dict().items() if name.startswith("proj")})
    queries, apart = mixer.proj_in.weight[:D].detach().clone(), []
    for size in (0.1, 0.01):
        with torch.no_grad():
            for each in (mixer, soft):
                each.proj_in.weight[:D] = size * queries
        apart.append((mixer(x, sequence(7)) - soft(x, sequence(7))).abs().max())
    assert apart[0] > 300 * apart[1] > 0


def by_maps(mixer: LinearAttention, x: Tensor, y: Tensor, causal: bool, segment: Tensor | None = None) -> Tensor:
    """`written_out` with the features of Hedgehog."""

    def weight(q: Tensor, k: Tensor, w: Tensor, u: Tensor) -> Tensor:
        q, k = w @ q, u @ k
        return q.softmax(-1) @ k.softmax(-1) + (-q).softmax(-1) @ (-k).softmax(-1)

    out = torch.zeros_like(x)
    identity = torch.eye(D, dtype=x.dtype)
    for h in range(HEADS):
        w, u = mixer.q_map.weight[h], mixer.k_map.weight[h]
        only = LinearAttention(context(causal=causal)).double()
        only.load_state_dict({"proj_in.weight": mixer.proj_in.weight, "proj_out.weight": identity})
        read = written_out(only, x, y, causal, segment, lambda q, k, _, w=w, u=u: weight(q, k, w, u))
        out[..., h * K : (h + 1) * K] = read[..., h * K : (h + 1) * K]
    return out @ mixer.proj_out.weight.T


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_hedgehog_written_out(causal: bool) -> None:
    """With documents, and over a memory."""
    mixer, x = mixer_of(causal, feature="hedgehog", chunk=3), torch.randn(2, 7, D, dtype=torch.float64)
    segment = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 2, 2, 2]])
    for documents in (None, segment):
        assert_close(mixer(x, sequence(7, segment=documents)), by_maps(mixer, x, x, causal, documents))
    y = torch.randn(2, 5, D, dtype=torch.float64)
    assert_close(mixer(x, sequence(7), memory=Memory(y, sequence(5))), by_maps(mixer, x, y, causal=False))
    mixer.q_map.weight.copy_(mixer.k_map.weight)  # planted in the formula: one map for both
    out = mixer(x, sequence(7))
    mixer.q_map.weight.mul_(-1)
    with pytest.raises(AssertionError):
        assert_close(out, by_maps(mixer, x, x, causal))


def test_hedgehog_starts_with_the_softmax_of_the_vectors() -> None:
    mixer = initialise(LinearAttention(context(causal=True), feature="hedgehog"), 0)
    x = torch.randn(2, HEADS, 5, K)
    assert_close(mixer.q_map(x), torch.cat([x.softmax(-1), (-x).softmax(-1)], -1))
    assert_close(mixer.q_map(x).sum(-1), torch.full((2, HEADS, 5), 2.0))


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_random_features_written_out(causal: bool) -> None:
    mixer, x = mixer_of(causal, feature="random", chunk=3), torch.randn(2, 7, D, dtype=torch.float64)

    def weight(q: Tensor, k: Tensor, feature: str) -> Tensor:
        q, k, directions = q / K**0.25, k / K**0.25, mixer.q_map.directions
        return sum(torch.exp(w @ q - q @ q / 2) * torch.exp(w @ k - k @ k / 2) for w in directions) / len(directions)

    assert_close(mixer(x, sequence(7)), written_out(mixer, x, x, causal, weight_of=weight))
    mixer.q_map.shrink = 1.0  # planted: other scores
    with pytest.raises(AssertionError):
        assert_close(mixer(x, sequence(7)), written_out(mixer, x, x, causal, weight_of=weight))


def test_random_features_have_the_mean_of_the_exponential() -> None:
    """Over many directions, which are orthogonal in blocks, products of features are e^s."""
    features = initialise(RandomFeatures(K, 40_000, K**0.25), 0).double()
    q, k = torch.randn(2, 5, K, dtype=torch.float64).unbind()
    estimate = features(q) @ features(k).T
    assert_close(estimate, (q @ k.T / math.sqrt(K)).exp(), rtol=0.1, atol=0.02)
    block = F.normalize(features.directions[:K], dim=-1)
    assert_close(block @ block.T, torch.eye(K, dtype=torch.float64), rtol=0, atol=1e-6)
    lengths = features.directions.square().sum(-1)
    assert_close(lengths.mean().item(), float(K), rtol=0.05, atol=0.0)


def test_random_directions_are_fixed_and_saved() -> None:
    """Drawn by the seed, in the checkpoint, and not among the parameters."""
    one, other = (initialise(LinearAttention(context(), feature="random"), seed) for seed in (0, 1))
    assert "q_map.directions" in one.state_dict()
    assert not torch.equal(one.q_map.directions, other.q_map.directions)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.q_map.directions, other.q_map.directions)
    assert {name for name, _ in one.named_parameters()} == {"proj_in.weight", "proj_out.weight"}


@pytest.mark.parametrize("feature", ["hedgehog", "random"])
def test_features_without_rotation_have_the_declared_properties(feature: str) -> None:
    for chunk in (2, 64):
        options = {"token_mixer": {"feature": feature, "chunk": chunk}}
        for prefix in (Prefix(), Prefix(registers=2)):
            model = tiny(causal=True, prefix=prefix, token_mixer="linear_attention", options=options)
            for promise in (causality, padding, packing, cached_decoding):
                promise(model, 6)
        padding(tiny(token_mixer="linear_attention", options=options), 6)
        packing(tiny(token_mixer="linear_attention", options=options), 6)
    reasons = check(compose(["token_mixer=linear_attention", f"token_mixer.feature={feature}", "position=rope"]))
    assert any("rope" in str(issue) for issue in reasons)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_memory(feature: str) -> None:
    mixer = mixer_of(True, feature=feature)
    x, y = torch.randn(2, 3, D, dtype=torch.float64), torch.randn(2, 5, D, dtype=torch.float64)
    assert_close(mixer(x, sequence(3), memory=Memory(y, sequence(5))), written_out(mixer, x, y, causal=False))


@pytest.mark.parametrize("position", ["none", "rope"])
@pytest.mark.parametrize("feature", FEATURES)
def test_parallel_chunked_and_recurrent_forms_agree(feature: str, position: str) -> None:
    scheme = factory("position", position)(context(causal=True))
    x, n = torch.randn(2, 13, D, dtype=torch.float64), 13
    segment = torch.tensor([[0] * 6 + [1] * 7, [0] * 2 + [1] * 3 + [2] * 8])
    for documents in (None, segment):
        whole = mixer_of(True, feature=feature, chunk=n)(x, sequence(n, segment=documents, position=scheme))
        for chunk in (1, 2, 5, 12):
            chunked = mixer_of(True, feature=feature, chunk=chunk)(x, sequence(n, segment=documents, position=scheme))
            assert_close(chunked, whole, rtol=1e-9, atol=1e-9)
    mixer, parts = mixer_of(True, feature=feature), []
    cache = mixer.init_cache(2)
    for start, size in ((0, 1), (1, 4), (5, 1), (6, 7)):
        parts.append(mixer(x[:, start : start + size], sequence(size, start=start, position=scheme), cache))
    assert_close(
        torch.cat(parts, 1), mixer_of(True, feature=feature)(x, sequence(n, position=scheme)), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("feature", FEATURES)
def test_the_state_does_not_grow(feature: str) -> None:
    mixer = mixer_of(True, feature=feature).float()
    cache, sizes = mixer.init_cache(2), []
    for t in range(20):
        mixer(torch.randn(2, 1, D), sequence(1, start=t), cache)
        sizes.append(cache.bytes)
    features = 1 + 2 * K + K * (K - 1) // 2 if feature in ("polynomial", "taylor") else K
    assert set(sizes) == {2 * HEADS * features * (K + 1) * 4}


def test_the_state_can_be_reordered() -> None:
    mixer, x = mixer_of(True), torch.randn(2, 6, D, dtype=torch.float64)
    cache, order = mixer.init_cache(2), torch.tensor([1, 1])
    mixer(x[:, :5], sequence(5), cache)
    cache.reorder(order)
    expected = mixer(torch.cat([x[order, :5], x[:, 5:]], 1), sequence(6))[:, 5:]
    assert_close(mixer(x[:, 5:], sequence(1, start=5), cache), expected)


@pytest.mark.sampled(100)
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_map_has_the_declared_properties(feature: str) -> None:
    for chunk in (2, 64):
        options = {"token_mixer": {"feature": feature, "chunk": chunk}}
        for position in ("none", "rope"):
            picks = {"token_mixer": "linear_attention", "position": position, "options": options}
            for prefix in (Prefix(), Prefix(registers=2)):
                model = tiny(causal=True, prefix=prefix, **picks)
                for promise in (causality, padding, packing, cached_decoding):
                    promise(model, 6)
            padding(tiny(**picks), 6)
            packing(tiny(**picks), 6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature", FEATURES)
def test_rotation_makes_it_relative(feature: str, causal: bool) -> None:
    options = {"token_mixer": {"feature": feature}}
    relative(tiny(causal=causal, token_mixer="linear_attention", position="rope", options=options), 6)


@pytest.mark.parametrize("feature", FEATURES)
def test_half_precision_keeps_sums_exact(feature: str) -> None:
    """Under autocast only the projections are in bfloat16, so sums do not depend on the chunk size."""
    h = torch.randn(1, 512, 3 * D, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    outs = []
    for chunk in (1, 64, 512):
        mixer = mixer_of(True, feature=feature, chunk=chunk).float()
        with torch.autocast("cpu", torch.bfloat16):
            outs.append(mixer.mix(h, sequence(512)))
        assert outs[-1].dtype == torch.bfloat16
        exact = mixer.mix(h.float(), sequence(512))
        assert_close(outs[-1].float(), exact, rtol=2**-8, atol=1e-4)  # half a step of bfloat16
    for out in outs[1:]:
        assert (out != outs[0]).float().mean() < 0.01  # a number may lie where rounding turns


def test_planted_leak_between_documents_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the state carries over from one document to the next."""
    plain = linear_attention.chunked_sums
    model = tiny(causal=True, token_mixer="linear_attention", options={"token_mixer": {"chunk": 2}})
    packing(model, 6)
    monkeypatch.setattr(
        "blockyard.token_mixer.linear_attention.chunked_sums",
        lambda parts, base, segment, chunk: plain(parts, base, None, chunk),
    )
    assert model(token_ids(2, 6)).isfinite().all()
    with pytest.raises(AssertionError):
        packing(model, 6)
