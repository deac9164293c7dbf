"""parametrization=mup against the package mup, on a plain transformer with equal initial weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.config.build import Components
from blockyard.config.compose import compose

BASE, DIM, HEADS, LENGTH, LR, DECAY = 32, 96, 4, 8, 0.01, 0.1
OVERRIDES = (
    *("data=code", "tokenizer=byte", f"data.context={LENGTH}", "objective=next_token", "head=token", "logger=none"),
    *("model=decoder", f"model.dim={DIM}", "model.depth=2", f"model.heads={HEADS}", "position=learned"),
    *("parametrization=mup", f"parametrization.base_dim={BASE}", "parametrization.output=0.7", "seed=1"),
    # The package leaves epsilon alone.
    *(f"optimizer.lr={LR}", f"optimizer.weight_decay={DECAY}", "optimizer.eps=1e-30", "optimizer.betas=[0.9,0.95]"),
)


class Plain(nn.Module):
    """A decoder as a user of the package writes it: MuReadout for the head, and scores over K in place of sqrt(K)."""

    def __init__(self, mup: Any, dim: int, vocabulary: int) -> None:
        super().__init__()
        self.symbols, self.position = nn.Embedding(vocabulary, dim), nn.Embedding(LENGTH, dim)
        names = ("proj_in", "proj_out", "expand", "contract")
        sizes = ((dim, 3 * dim), (dim, dim), (dim, 4 * dim), (4 * dim, dim))
        self.layers = nn.ModuleList()
        for _ in range(2):
            maps = {name: nn.Linear(*size, bias=False) for name, size in zip(names, sizes, strict=True)}
            norms = {f"norm{number}": nn.LayerNorm(dim) for number in (1, 2)}
            self.layers.append(nn.ModuleDict({**maps, **norms}))
        self.norm = nn.LayerNorm(dim)
        self.head = mup.MuReadout(dim, vocabulary, bias=False, output_mult=0.7)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (B, N) -> logits (B, N, V)."""
        x = self.symbols(ids) + self.position.weight  # (B, N, D)
        width, base = x.shape[-1] // HEADS, BASE // HEADS
        for layer in self.layers:
            heads = layer["proj_in"](layer["norm1"](x)).unflatten(-1, (3, HEADS, width))
            q, k, v = heads.permute(2, 0, 3, 1, 4)  # (B, H, N, K)
            scores = q @ k.transpose(-1, -2) * base**0.5 / width
            hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
            read = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
            x = x + layer["proj_out"](read.transpose(1, 2).flatten(2))
            x = x + layer["contract"](F.gelu(layer["expand"](layer["norm2"](x))))
        return self.head(self.norm(x))


def pairs(ours: nn.Module, theirs: Plain) -> list[tuple[str, nn.Parameter, nn.Parameter]]:
    """Each weight of ours by its name, and theirs."""
    matches = [("embedder.symbols.weight", theirs.symbols.weight), ("position.table", theirs.position.weight)]
    for number, layer in enumerate(theirs.layers):
        of_block = {
            "token_norm": layer["norm1"],
            "token_mixer.proj_in": layer["proj_in"],
            "token_mixer.proj_out": layer["proj_out"],
            "channel_norm": layer["norm2"],
            "channel_mixer.proj_in": layer["expand"],
            "channel_mixer.proj_out": layer["contract"],
        }
        for name, module in of_block.items():
            matches += [(f"blocks.{number}.{name}.{key}", value) for key, value in module.named_parameters()]
    matches += [(f"final_norm.{key}", value) for key, value in theirs.norm.named_parameters()]
    matches += [("head.proj.weight", theirs.head.weight)]
    assert {name for name, _ in matches} == {name for name, _ in ours.named_parameters()}
    return [(name, ours.get_parameter(name), value) for name, value in matches]


def package(decays: set[str], ours: nn.Module) -> tuple[Plain, Any]:
    """The package's model, with our weights, and its optimizer."""
    mup = pytest.importorskip("mup")
    vocabulary = ours.ctx.outputs
    theirs = Plain(mup, DIM, vocabulary)
    mup.set_base_shapes(theirs, Plain(mup, BASE, vocabulary), delta=Plain(mup, 2 * BASE, vocabulary))
    theirs.double()
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, p, q in pairs(ours, theirs):
        with torch.no_grad():
            q.copy_(p)
        groups[name in decays].append(q)
    settings = [{"params": of, "lr": LR, "weight_decay": DECAY * decayed} for decayed, of in groups.items()]
    return theirs, mup.MuAdamW(settings, lr=LR, betas=(0.9, 0.95), eps=1e-30)


def test_rates_and_updates_are_those_of_the_package() -> None:
    built = Components(compose(OVERRIDES).config)
    ours = built.model(1).double()
    optimizer = built.optimizer.build(ours)
    names = {id(p): name for name, p in ours.named_parameters()}
    ours_by_name = {names[id(p)]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    theirs, reference = package({name for name, (_, decay) in ours_by_name.items() if decay}, ours)
    wanted = {id(q): (g["lr"], g["weight_decay"]) for g in reference.param_groups for q in g["params"]}
    for name, _, q in pairs(ours, theirs):
        assert ours_by_name[name] == pytest.approx(wanted[id(q)]), name
    assert ours_by_name["blocks.0.token_mixer.proj_in.weight"] == pytest.approx((LR / 3, DECAY * 3))
    ids = torch.randint(11, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        for model, steps in ((ours, optimizer), (theirs, reference)):
            steps.zero_grad()
            F.cross_entropy(model(ids).flatten(0, 1), ids.roll(1, 1).flatten()).backward()
            steps.step()
    for name, p, q in pairs(ours, theirs):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
    torch.testing.assert_close(ours(ids), theirs(ids), rtol=1e-7, atol=1e-9)
    with torch.no_grad():
        ours.head.proj.factor *= 3  # planted: a head without the factor 1/m
    assert not torch.allclose(ours(ids), theirs(ids))
