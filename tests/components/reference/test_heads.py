"""Heads against timm, transformers, formulas and each other."""

from __future__ import annotations

import pytest
import torch
from timm.layers.attention_pool import AttentionPoolLatent
from torch import Tensor
from torch.nn import functional as F
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

from blockyard.contracts import Head, Seq
from blockyard.model._prefix import NO_PREFIX, Prefix
from tests.support.helpers import choices, context, factory, node, stir
from tests.support.tolerances import FLOAT64

LENGTH = 6  # of the tests' context
POOLED = [name for name in choices("head") if node("head", name)[0].gives == "sequence"]


def make(name: str, prefix: Prefix = NO_PREFIX, **options: object) -> Head:
    return stir(factory("head", name, options)(context(prefix=prefix))).double().eval()  # type: ignore[return-value]


def sequence(valid: Tensor | None = None, num_prefix: int = 0, tokens: int = LENGTH) -> Seq:
    return Seq(torch.arange(num_prefix + tokens), torch.zeros(1, num_prefix + tokens, 1), valid, num_prefix=num_prefix)


def inputs(tokens: int = LENGTH) -> Tensor:
    return torch.randn(3, tokens, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_attention_pool_is_timms() -> None:
    ours, reference = make("attention_pool"), AttentionPoolLatent(16, num_heads=4).double().eval()
    with torch.no_grad():
        reference.q.weight.copy_(torch.eye(16))
        reference.q.bias.zero_()
        reference.latent.copy_(ours.query[None, None])
        reference.kv.load_state_dict(ours.proj_in.state_dict())
        reference.proj.load_state_dict(ours.proj_out.state_dict())
        reference.mlp.fc2.weight.zero_()  # timm adds a residual MLP, which ours is without
        reference.mlp.fc2.bias.zero_()
    x = inputs()
    torch.testing.assert_close(ours(x, sequence()), ours.proj(reference(x)))


@torch.no_grad()
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_capped_logits_are_gemmas(softcap: float | None) -> None:
    """The logits of a whole model of theirs, with and without the cap, from what its last layer gives."""
    config = Gemma2Config(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=softcap,
        pad_token_id=None,
        attn_implementation="eager",
    )
    theirs = stir(Gemma2ForCausalLM(config)).double().eval()
    ours = make("token", softcap=softcap)
    ours.proj.weight.copy_(theirs.lm_head.weight)
    token_ids = torch.arange(LENGTH)[None]
    x = theirs.model(token_ids).last_hidden_state
    expected = theirs(token_ids).logits
    assert float(expected.abs().max()) > 1.5
    torch.testing.assert_close(ours(x, sequence()), expected, **FLOAT64)


@torch.no_grad()
def test_scaled_logits_are_coheres() -> None:
    """The factor comes before the cap, which no class of the library has beside it."""
    config = CohereConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        logit_scale=0.25,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = stir(CohereForCausalLM(config)).double().eval()
    token_ids = torch.arange(LENGTH)[None]
    x, expected = theirs.model(token_ids).last_hidden_state, theirs(token_ids).logits
    for softcap in (None, 0.5):
        ours = make("token", scale=0.25, softcap=softcap)
        ours.proj.weight.copy_(theirs.lm_head.weight)
        capped = expected if softcap is None else softcap * torch.tanh(expected / softcap)
        torch.testing.assert_close(ours(x, sequence()), capped, **FLOAT64)


def test_sum_pool_is_the_mean_times_the_number_of_tokens() -> None:
    total, mean = make("sum_pool"), make("mean_pool")
    mean.load_state_dict(total.state_dict())
    x = inputs()
    valid = torch.arange(LENGTH) < torch.tensor([[6], [2], [1]])
    scaled = F.linear((x * valid[:, :, None]).sum(1), total.proj.weight, total.proj.bias)
    torch.testing.assert_close(total(x, sequence(valid)), scaled)
    torch.testing.assert_close(mean(x * LENGTH, sequence()), total(x, sequence()))


def test_last_reads_the_last_token_that_is_real() -> None:
    head, x = make("last"), inputs()
    valid = torch.arange(LENGTH) < torch.tensor([[6], [2], [0]])
    picked = torch.stack([x[0, 5], x[1, 1], torch.zeros(16, dtype=torch.float64)])
    torch.testing.assert_close(head(x, sequence(valid)), head.proj(picked))
    torch.testing.assert_close(head(x, sequence())[1], head.proj(x[1, 5]))


def test_flatten_is_a_matrix_for_each_token() -> None:
    head, x = make("flatten"), inputs()
    matrices = head.proj.weight.unflatten(1, (LENGTH, 16))  # (V, N, D)
    expected = torch.einsum("bnd,vnd->bv", x, matrices) + head.proj.bias
    torch.testing.assert_close(head(x, sequence()), expected)


def test_flatten_refuses_other_lengths() -> None:
    with pytest.raises(ValueError, match="needs sequences of one length"):
        factory("head", "flatten")(context(variable=True))
    with pytest.raises(ValueError, match="exactly 6 tokens and gets 5 tokens"):
        make("flatten")(inputs(5), sequence(tokens=5))
    with pytest.raises(ValueError, match="gets padded sequences"):
        make("flatten")(inputs(), sequence(torch.ones(3, LENGTH, dtype=torch.bool)))


@pytest.mark.parametrize("tokens_out", [1, 4, 9])
@pytest.mark.parametrize("token_bias", [True, False])
def test_token_pool_is_a_matrix_over_tokens(tokens_out: int, token_bias: bool) -> None:
    """y_i = sum_j P_ij x_j + b_i token by token, and a matrix of its own for each of them."""
    head, x = make("token_pool", Prefix(registers=1), tokens_out=tokens_out, token_bias=token_bias), inputs(LENGTH + 1)
    assert head.weight.shape == (tokens_out, LENGTH)
    matrices = head.proj.weight.unflatten(1, (tokens_out, 16))  # (V, N2, D)
    expected = head.proj.bias.repeat(3, 1)
    for i in range(tokens_out):
        mixed = sum(head.weight[i, j] * x[:, 1 + j] for j in range(LENGTH))
        mixed = mixed + (head.token_bias[i] if token_bias else 0.0)
        expected = expected + mixed @ matrices[:, i].T
    torch.testing.assert_close(head(x, sequence(num_prefix=1)), expected, **FLOAT64)


def test_token_pool_of_as_many_tokens_is_flatten() -> None:
    pool, flat, x = make("token_pool", tokens_out=LENGTH, token_bias=False), make("flatten"), inputs()
    with torch.no_grad():
        pool.weight.copy_(torch.eye(LENGTH))
        pool.proj.load_state_dict(flat.proj.state_dict())
    torch.testing.assert_close(pool(x, sequence()), flat(x, sequence()), **FLOAT64)


def test_token_pool_refuses_what_it_has_no_weights_for() -> None:
    with pytest.raises(ValueError, match="needs sequences of one length"):
        factory("head", "token_pool")(context(variable=True))
    with pytest.raises(ValueError, match="in a causal one the last token has read the others: head=last"):
        factory("head", "token_pool")(context(causal=True))
    with pytest.raises(ValueError, match="exactly 6 tokens and gets 5 tokens"):
        make("token_pool")(inputs(5), sequence(tokens=5))
    with pytest.raises(ValueError, match="gets padded sequences"):
        make("token_pool")(inputs(), sequence(torch.ones(3, LENGTH, dtype=torch.bool)))


@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("hidden", ["gelu", "relu"])
def test_a_hidden_layer_is_an_mlp_on_the_pooled_vector(name: str, hidden: str) -> None:
    prefix = Prefix(class_token=node("head", name)[0].needs_class_token, registers=1)
    head, x = make(name, prefix, hidden=hidden, width=24), inputs(LENGTH + len(prefix))
    seq = sequence(num_prefix=len(prefix))
    assert head.hidden.weight.shape[0] == 24
    expected = head.proj(getattr(F, hidden)(head.hidden(head.pool(x, seq))))
    torch.testing.assert_close(head(x, seq), expected)


@pytest.mark.parametrize("name", POOLED)
def test_a_width_without_a_hidden_layer_is_refused(name: str) -> None:
    prefix = Prefix(class_token=node("head", name)[0].needs_class_token)
    with pytest.raises(ValueError, match=r"head\.width=24 is the width of a hidden layer"):
        make(name, prefix, width=24)


@pytest.mark.parametrize("name", [name for name in POOLED if name != "class_token"])
def test_prefix_tokens_are_not_pooled(name: str) -> None:
    head, x = make(name, Prefix(registers=2)), inputs(LENGTH + 2)
    changed = torch.cat([x[:, :2] + 1, x[:, 2:]], 1)
    seq = sequence(num_prefix=2)
    torch.testing.assert_close(head(changed, seq), head(x, seq), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["sum_pool", "last", "attention_pool", "mean_pool"])
def test_a_sequence_without_tokens_pools_to_a_constant(name: str) -> None:
    head, x = make(name), inputs()
    valid = torch.tensor([[False] * LENGTH, [True] * LENGTH, [False] * LENGTH])
    out = head(x, sequence(valid))
    assert out.isfinite().all()
    torch.testing.assert_close(out[0], out[2], rtol=0, atol=0)
