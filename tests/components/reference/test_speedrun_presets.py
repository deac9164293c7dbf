"""The presets nanochat and modded_nanogpt: whole decoders against their equations, written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.config.build import Components
from tests.support.helpers import stir, token_ids
from tests.support.tiny import configured

D, H, DEPTH, CONTEXT = 32, 2, 4, 8
# How many of a head's channels rotate, and the base of the slowest.
ROTATION = {"nanochat": (16, 10000.0), "modded_nanogpt": (8, 1024.0)}


def decoder(preset: str) -> nn.Module:
    """A preset in float64, every trained number away from its first value but the gains, which neither model has."""
    sizes = (f"model.dim={D}", f"model.depth={DEPTH}", f"model.heads={H}", f"data.context={CONTEXT}")
    model = stir(Components(configured(f"preset={preset}", "data=code", "tokenizer=char", *sizes)[0]).model(0))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.fill_(1.0)
    return model.double().eval()


def norm(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def rotated(x: Tensor, count: int, base: float) -> Tensor:
    """x (B, N, H, K): of the first `count` channels, c turns with c + count / 2 by n base^(-2c / count)."""
    half = count // 2
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * base ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    a, b, rest = x[..., :half], x[..., half:count], x[..., count:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)


def formula(model: Any, ids: Tensor, preset: str) -> Tensor:
    """The logits of ids (B, N): what forward of the authors' GPT computes."""
    x = norm(model.embedder.table[ids])
    later = torch.full((ids.shape[1],) * 2, -torch.inf, dtype=x.dtype).triu(1)
    outputs: list[Tensor] = []
    for layer, block in enumerate(model.blocks):
        if preset == "modded_nanogpt" and layer >= DEPTH // 2:
            x = x + model.residual.weights[layer - DEPTH // 2] * outputs[DEPTH - 1 - layer]
        mixer, channels = block.token_mixer, block.channel_mixer
        q, k, v = ((norm(x) @ w.T).unflatten(-1, (H, -1)) for w in mixer.proj_in.weight.chunk(3))
        if mixer.value_sources is not None:
            own, of_ids = mixer.value_sources.table_weights
            v = own * v + of_ids * mixer.value_sources.table[ids].unflatten(-1, (H, -1))
        q, k = (rotated(norm(part), *ROTATION[preset]) for part in (q, k))
        scores = torch.einsum("bnhk,bmhk->bhnm", q, k) / math.sqrt(D / H) + later
        attended = torch.einsum("bhnm,bmhk->bnhk", scores.softmax(-1), v).flatten(2)
        x = x + attended @ mixer.proj_out.weight.T
        x = x + (norm(x) @ channels.proj_in.weight.T).relu().square() @ channels.proj_out.weight.T
        outputs.append(x)
    logits = norm(x) @ model.head.proj.weight.T
    return 15.0 * torch.tanh(logits / 15.0)


@pytest.mark.parametrize("preset", ROTATION)
def test_the_whole_model(preset: str) -> None:
    model, ids = decoder(preset), token_ids(2, CONTEXT)
    assert_close(model(ids), formula(model, ids, preset))


def test_which_layers_have_vectors_of_token_ids() -> None:
    """Every second one, the last among them."""
    have = [block.token_mixer.value_sources is not None for block in decoder("modded_nanogpt").blocks]
    assert have == [False, True, False, True]


@pytest.mark.parametrize("preset", ROTATION)
@pytest.mark.parametrize("part", ["embed_norm", "softcap", "q_norm", "activation", "position"])
def test_a_planted_difference_is_caught(preset: str, part: str) -> None:
    model: Any = decoder(preset)
    ids = token_ids(2, CONTEXT)
    expected = formula(model, ids, preset)
    if part == "embed_norm":
        model.embed_norm = nn.Identity()
    elif part == "softcap":
        model.head.softcap = 30.0
    elif part == "q_norm":
        model.blocks[0].token_mixer.q_norm = nn.Identity()
    elif part == "activation":
        model.blocks[1].channel_mixer.activation = nn.GELU()
    else:
        model.position = decoder("nanochat" if preset == "modded_nanogpt" else "modded_nanogpt").position
    assert (model(ids) - expected).abs().max() > 1e-4
