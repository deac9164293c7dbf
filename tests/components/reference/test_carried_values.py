"""What layers read of earlier ones: values against x-transformers and formulas, keys against Gemma 3n's attention."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import Gemma3nTextConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextAttention
from x_transformers.x_transformers import AttentionLayers

from blockyard.contracts import Inputs
from blockyard.token_mixer._values import Values
from tests.support.helpers import LENGTH, VOCABULARY, tiny, token_ids
from tests.support.tolerances import FLOAT32_STEPS

D, HEADS, K, DEPTH = 16, 4, 4, 3


def built(mixer: str = "attention", **options: Any) -> nn.Module:
    """A decoder of three blocks of attention alone, without positions."""
    sizes = {"depth": DEPTH}
    return tiny(causal=True, token_mixer=mixer, channel_mixer="none", sizes=sizes, options={"token_mixer": options})


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, K)).transpose(1, 2)  # (B, H', N, K)


def finished(model: nn.Module, attend: Any) -> None:
    """Assert that the model's own pass is `x + attend(layer, norm(x), ids)` in every layer."""
    ids = token_ids(2, LENGTH)
    x, _ = model.embed_tokens(Inputs(ids))
    for layer, block in enumerate(model.blocks):
        x = x + block.token_mixer.proj_out(attend(layer, block.token_norm(x), ids).transpose(1, 2).flatten(2))
    assert_close(model.steps(ids)["normed"], model.final_norm(x))


class Reference:
    """Attention by the formula, with the values of a layer as `values` makes them."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.first = model, None

    def values(self, layer: int, v: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def __call__(self, layer: int, x: Tensor, ids: Tensor) -> Tensor:
        weight = self.model.blocks[layer].token_mixer.proj_in.weight
        q, k, v = (heads(x @ part.T) for part in weight[: 3 * D].split(D))
        v = self.values(layer, v, x, ids)
        scores = (q @ k.mT / math.sqrt(K)).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf)
        return scores.softmax(-1) @ v


class Joined(Reference):
    """Value residuals, as Zhou et al. write them."""

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__(model)
        self.kind = kind

    def values(self, layer: int, v: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        if layer == 0:
            self.first = v
            return v
        if self.kind == "mixed":
            return 0.5 * self.first + 0.5 * v
        mixer = self.model.blocks[layer].token_mixer
        if self.kind == "learned":
            return mixer.value_sources.weights[0] * self.first + mixer.value_sources.weights[1] * v
        gate = (x @ mixer.proj_in.weight[3 * D :].T).sigmoid().transpose(1, 2)[..., None]  # (B, H, N, 1)
        return (1 - gate) * self.first + gate * v


@pytest.mark.parametrize("kind", ["mixed", "learned", "gated"])
def test_value_residual(kind: str) -> None:
    model = built(value_residual=kind)
    finished(model, Joined(model, kind))


@pytest.mark.parametrize(("kind", "layers"), [("all", (0, 1, 2)), ("alternate", (0, 2))])
def test_value_embedding(kind: str, layers: tuple[int, ...]) -> None:
    model = built(value_embedding=kind)

    class Looked(Reference):
        def values(self, layer: int, v: Tensor, x: Tensor, ids: Tensor) -> Tensor:
            sources = self.model.blocks[layer].token_mixer.value_sources
            assert (sources is not None) == (layer in layers)
            if sources is None:
                return v
            one_hot = F.one_hot(ids, VOCABULARY).double()
            return sources.table_weights[0] * v + sources.table_weights[1] * heads(one_hot @ sources.table)

    finished(model, Looked(model))


def test_value_residual_and_embedding_combine_by_formula() -> None:
    """What the first layer gives has its vectors of token ids in it, and a later layer adds its own before the mix."""
    model = built(value_residual="mixed", value_embedding="all")

    class Both(Joined):
        def values(self, layer: int, v: Tensor, x: Tensor, ids: Tensor) -> Tensor:
            sources = self.model.blocks[layer].token_mixer.value_sources
            v = sources.table_weights[0] * v + sources.table_weights[1] * heads(sources.table[ids])
            return super().values(layer, v, x, ids)

    finished(model, Both(model, "mixed"))


@pytest.mark.parametrize(
    "mixer", ["linear_attention", "gated_attention_unit", "non_local", "hard_attention", "sigmoid_attention"]
)
def test_of_other_mixers(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mixer returns is affine in its values: for a mean of two, the mean of what it returns for each."""
    model = built(mixer, value_residual="mixed")
    first, second, _ = (block.token_mixer for block in model.blocks)
    x, seq = model.embed_tokens(Inputs(token_ids(2, LENGTH)))
    giving = replace(seq, given={})
    first(x, giving)
    assert giving.given.keys() >= {"values"}
    taking = replace(seq, carry=dict(giving.given))
    mixed = second(x, taking)
    monkeypatch.setattr(Values, "forward", lambda self, v, seq, gate=None: v)
    own = second(x, taking)
    monkeypatch.setattr(Values, "forward", lambda self, v, seq, gate=None: seq.carry["values"])
    of_first = second(x, taking)
    assert_close(mixed, (own + of_first) / 2)
    assert (own - of_first).abs().max() > 1e-2


@pytest.mark.parametrize("gated", [False, True])
def test_value_residual_is_x_transformers(gated: bool) -> None:
    """On equal weights; its gate, one for each token and head, has a bias, which is zero here."""
    model = built(value_residual="gated" if gated else "mixed")
    theirs = AttentionLayers(
        dim=D,
        depth=DEPTH,
        heads=HEADS,
        attn_dim_head=K,
        causal=True,
        custom_layers=("a",) * DEPTH,
        add_value_residual=True,
        learned_value_residual_mix=gated,
    ).double()
    with torch.no_grad():
        for norm in [block.token_norm for block in model.blocks] + [model.final_norm]:
            norm.bias.zero_()
        for block, (norms, attention, _) in zip(model.blocks, theirs.layers, strict=True):
            norms[0].gamma.copy_(block.token_norm.weight - 1)  # theirs are how far a gain is from one
            weights = block.token_mixer.proj_in.weight
            for part, weight in zip("qkv", weights[: 3 * D].split(D), strict=True):
                getattr(attention, f"to_{part}").weight.copy_(weight)
            attention.to_out.weight.copy_(block.token_mixer.proj_out.weight)
            if len(weights) > 3 * D:
                gate = attention.to_value_residual_mix[0]
                gate.weight.copy_(weights[3 * D :])
                gate.bias.zero_()
        theirs.final_norm.gamma.copy_(model.final_norm.weight - 1)
    ids = token_ids(2, LENGTH)
    record = model.steps(ids)
    assert_close(record["normed"], theirs(record["stream"]), **FLOAT32_STEPS)  # their softmax is in float32
    with torch.no_grad():
        model.blocks[0].token_mixer.proj_in.weight[-1] += 0.1  # a value of the first layer
    with pytest.raises(AssertionError):
        assert_close(model.steps(ids)["normed"], theirs(record["stream"]), rtol=1e-3, atol=1e-3)


def test_shared_keys_are_gemmas() -> None:
    """Two layers of Gemma 3n, the second without keys. Its norm of values and its missing scale are undone here."""
    options = {"kv_every": 2, "num_kv_heads": 2, "qk_norm": True}
    model = tiny(causal=True, channel_mixer="none", norm="rms", options={"token_mixer": options})
    config = Gemma3nTextConfig(
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        head_dim=K,
        num_kv_shared_layers=1,
        layer_types=["full_attention", "full_attention"],
        attn_implementation="eager",
    )
    theirs = [Gemma3nTextAttention(config, layer).double().eval() for layer in (0, 1)]
    for block, attention in zip(model.blocks, theirs, strict=True):
        mixer, attention.scaling = block.token_mixer, K**-0.5
        parts = mixer.proj_in.weight.split([size for size in mixer.widths if size])
        state = {f"{name}_proj.weight": part for name, part in zip("qkv", parts, strict=False)}
        state |= {"o_proj.weight": mixer.proj_out.weight, "q_norm.weight": mixer.q_norm.weight}
        if hasattr(attention, "k_norm"):
            state["k_norm.weight"] = mixer.k_norm.weight
            attention.v_norm = nn.Identity()
        attention.load_state_dict(state)
    record = model.steps(token_ids(2, LENGTH))
    still = (torch.ones(1, LENGTH, K).double(), torch.zeros(1, LENGTH, K).double())
    later = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    x, shared = record["stream"], {}
    for block, attention in zip(model.blocks, theirs, strict=True):
        h = block.token_norm(x)
        x = x + attention(h, still, later, shared_kv_states=shared)[0]
    # Their norms and softmax are in float32.
    assert_close(record["block.1"], x, **FLOAT32_STEPS)
    with torch.no_grad():
        model.blocks[0].token_mixer.proj_in.weight[D] += 0.5  # a key of the first layer
    x = model.steps(token_ids(2, LENGTH))["block.1"]
    assert (x - record["block.1"]).abs().max() > 1e-3
