"""The order of layers of one mixer each against x-transformers, a norm of embeddings against ModernBERT's.

Its layers hold one mixer each, as ours do with `layers=single_mixers`; an index of its order is one of ours. Its
`num_residual_streams` is no reference for residual=hyper: release 2.31.10 normalises each row of the mixing matrix as a
matrix of one row, which leaves ones everywhere.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import ModernBertConfig
from transformers.models.modernbert.modeling_modernbert import ModernBertEmbeddings
from x_transformers import Decoder

from blockyard.contracts import Kind
from blockyard.layers.pattern import Pattern
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.parametrization.mup import MuP
from tests.support.helpers import LENGTH, VOCABULARY, factory, tiny, token_ids

SINGLE_MIXERS = Pattern(
    pattern=("tokens", "channels"),
    kinds={
        "tokens": Kind(channel_mixer=factory("channel_mixer", "none")),
        "channels": Kind(token_mixer=factory("token_mixer", "none")),
    },
)
SINGLE = {"rtol": 1e-4, "atol": 1e-5}  # theirs computes the softmax in float32


def ours(**picks: Any) -> nn.Module:
    """A decoder of four layers of one mixer each."""
    options = {"channel_mixer": {"bias": False}, **picks.pop("options", {})}
    sizes = {"depth": 4, **picks.pop("sizes", {})}
    return tiny(causal=True, replace={"layers": SINGLE_MIXERS}, options=options, sizes=sizes, **picks)


def theirs(model: nn.Module, **options: Any) -> nn.Module:
    """Their decoder with our weights. Theirs add one to the gains of norms, which have no bias."""
    decoder = Decoder(
        dim=16, heads=4, attn_dim_head=4, ff_no_bias=True, disable_abs_pos_emb=True, verbose=False, **options
    ).double()
    weights: dict[str, Tensor] = {"final_norm.gamma": model.final_norm.weight - 1}
    model.final_norm.bias.data.zero_()
    for layer, block in enumerate(model.blocks):
        norm = block.token_norm if block.channel_norm is None else block.channel_norm
        norm.bias.data.zero_()
        weights[f"layers.{layer}.0.0.gamma"] = norm.weight - 1
        if block.channel_norm is None:
            q, k, v = block.token_mixer.proj_in.weight.chunk(3)
            own = {"to_q": q, "to_k": k, "to_v": v, "to_out": block.token_mixer.proj_out.weight}
        else:
            mixer = block.channel_mixer
            own = {"ff.0.0": mixer.proj_in.weight, "ff.2": mixer.proj_out.weight}
        weights |= {f"layers.{layer}.1.{name}.weight": value for name, value in own.items()}
    missing, unexpected = decoder.load_state_dict(weights, strict=False)
    assert not missing
    assert not unexpected
    return decoder.eval()


@torch.no_grad()
@pytest.mark.parametrize("prefix", [NO_PREFIX, Prefix(class_token=True)])
def test_embed_norm_is_modernberts(prefix: Prefix) -> None:
    """On tokens and prefix, before the factor of the parametrization."""
    model = tiny(embed_norm=True, prefix=prefix, sizes={"parametrization": MuP(base_dim=16, embedding=3.0)})
    config = ModernBertConfig(vocab_size=VOCABULARY, hidden_size=16, norm_bias=True, pad_token_id=0)
    theirs = ModernBertEmbeddings(config).double().eval()
    theirs.tok_embeddings.weight.copy_(model.embedder.table)
    theirs.norm.load_state_dict(model.embed_norm.state_dict())
    ids = token_ids(2, LENGTH)
    stream, expected = model.steps(ids)["stream"], theirs(ids)
    assert_close(stream[:, len(prefix) :], 3 * expected)
    if prefix:
        assert_close(stream[0, 0], 3 * model.embed_norm(model.prefix.class_token[0]).squeeze())
    model.embed_norm = None
    with pytest.raises(AssertionError):
        assert_close(model.steps(ids)["stream"][:, len(prefix) :], 3 * expected)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 2, 1, 2, 3), (0, 0, 1, 2, 3, 3), (0, 2, 1, 3)])
def test_order(order: tuple[int, ...]) -> None:
    model = ours(sizes={"order": order})
    decoder = theirs(model, depth=2, layers_execute_order=order)
    record = model.steps(token_ids(2, LENGTH))
    assert_close(record["normed"], decoder(record["stream"]), **SINGLE)
    with torch.no_grad():
        model.blocks[1].channel_norm.weight[::2] += 0.5
    with pytest.raises(AssertionError):
        assert_close(model.steps(token_ids(2, LENGTH))["normed"], decoder(record["stream"]), **SINGLE)
