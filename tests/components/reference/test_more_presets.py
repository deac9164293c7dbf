"""Presets against a library's model with the same weights, or the paper's formula written out, in float64."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling

from tests.components.reference.inputs import images, preset
from tests.components.reference.preset_weights import IMAGE, TEXT, differ, renamed, token_ids
from tests.support.helpers import stir

HEADLESS = ["model.dim=16", "model.depth=3", "logger=none"]


def test_imagegpt() -> None:
    model = preset("preset=imagegpt", "data=digits")
    config = ImageGPTConfig(vocab_size=18, n_positions=64, n_embd=16, n_layer=2, n_head=4, tie_word_embeddings=False)
    theirs = stir(ImageGPTForCausalImageModeling(config)).double().eval()
    names = {
        "transformer.wte": "embedder.symbols",
        "lm_head": "head.proj",
        "ln_1": "token_norm",
        "attn.c_attn": "token_mixer.proj_in",
        "attn.c_proj": "token_mixer.proj_out",
        "ln_2": "channel_norm",
        "mlp.c_fc": "channel_mixer.proj_in",
        "mlp.c_proj": "channel_mixer.proj_out",
        "transformer.ln_f": "final_norm",
    }
    copied = renamed(theirs.state_dict(), names, r"transformer\.h\.(\d+)")
    copied = {name: value for name, value in copied.items() if not name.endswith("token_mixer.bias")}
    # The matrices of its blocks are stored transposed.
    copied = {k: v.T if k.startswith("blocks") and v.ndim == 2 else v for k, v in copied.items()}
    model.load_state_dict(copied | {"position.table": theirs.transformer.wpe.weight})
    inputs = torch.randint(17, (3, 64), generator=torch.Generator().manual_seed(0))
    inputs[:, 0] = 17  # the start token, the last of the vocabulary as theirs
    expected = theirs(inputs).logits
    assert_close(model(inputs), expected)
    differ(model, partial(model, inputs), expected)


def patches(model: nn.Module, pixels: Tensor) -> Tensor:
    """The tokens of images (B, 1, 8, 8) by patches of 2, by loops: (B, 16, D)."""
    flat = [pixels[:, 0, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2].flatten(1) for r in range(4) for c in range(4)]
    return torch.stack(flat, 1) @ model.embedder.proj.weight.T + model.embedder.proj.bias


def moved(x: Tensor) -> Tensor:
    """Algorithm 1 of S2-MLP: x (B, rows, columns, C), quarters of the channels come from four sides."""
    out, c = x.clone(), x.shape[-1]
    parts = torch.arange(c).tensor_split(4)
    out[:, 1:, :, parts[0]] = x[:, :-1, :, parts[0]]
    out[:, :-1, :, parts[1]] = x[:, 1:, :, parts[1]]
    out[:, :, 1:, parts[2]] = x[:, :, :-1, parts[2]]
    out[:, :, :-1, parts[3]] = x[:, :, 1:, parts[3]]
    return out


def shifted(x: Tensor) -> Tensor:
    """The same of tokens (B, 16, C) on a grid of 4 x 4."""
    return moved(x.unflatten(1, (4, 4))).flatten(1, 2)


def pooled(model: nn.Module, x: Tensor) -> Tensor:
    """The class of the mean token."""
    return model.head.proj(model.final_norm(x).mean(1))


def test_s2_mlp() -> None:
    model = stir(preset("preset=s2_mlp", *IMAGE))
    x = patches(model, images())
    for block in model.blocks:
        token, channel = block.token_mixer, block.channel_mixer
        x = x + token.proj_out(shifted(F.gelu(token.proj_in(block.token_norm(x)))))
        x = x + channel.proj_out(F.gelu(channel.proj_in(block.channel_norm(x))))
    expected = pooled(model, x).detach()
    assert_close(model(images()), expected)
    differ(model, lambda: model(images()), expected)


def test_monet() -> None:
    model = stir(preset("preset=monet", *IMAGE, sizes=[*HEADLESS, "model.heads=1"]))
    x = patches(model, images())
    for layer, block in enumerate(model.blocks):
        unit = block.token_mixer
        move = shifted if layer in (0, 2) else torch.nn.Identity()
        both = block.token_norm(x) @ unit.proj_in.weight.T + unit.proj_in.bias
        a, b = move(both[..., :48]), unit.expand(move(both[..., 48:]))
        a, b = F.layer_norm(a, (48,), unit.first_norm.weight, unit.first_norm.bias, 1e-6), unit.second_norm(b)
        x = x + unit.proj_out(a + unit.alpha * a * b)
    expected = pooled(model, x).detach()
    assert_close(model(images()), expected)
    differ(model, lambda: model(images()), expected)


def test_flash() -> None:
    model = stir(preset("preset=flash", *TEXT, sizes=[*HEADLESS, "model.heads=1"]))
    inputs = token_ids(model)
    x = model.embedder.symbols(inputs)  # (3, 6, 16)
    for block in model.blocks:
        unit, h = block.token_mixer, block.token_norm(x)
        u, v, z = F.silu(unit.proj_in(h)).split([32, 32, 128], dim=-1)
        q, k = (z * unit.offsets.gain[i] + unit.offsets.offset[i] for i in range(2))
        read = torch.zeros_like(v)
        for i in range(6):
            for j in range(i + 1):
                # Six tokens: every distance has a bucket of its own.
                score = (q[:, i] * k[:, j]).sum(-1) / (i + 1) + model.position.table[0, 0, i - j]
                read[:, i] += F.relu(score)[:, None] ** 2 * v[:, j]
        x = x + unit.proj_out(u * read)
    expected = model.head.proj(model.final_norm(x)).detach()
    assert_close(model(inputs), expected)
    differ(model, partial(model, inputs), expected)
