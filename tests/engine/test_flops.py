"""FLOPs of a model against formulas and plain steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from blockyard.config import build
from blockyard.config.compose import compose
from blockyard.contracts import auxiliary_loss
from blockyard.engine import cost_card
from blockyard.ops import flops
from tests.support.engine_runs import config

STILL = ("token_mixer.dropout=0.0", "data.shift=0", "trainer.max_steps=12")


@pytest.mark.parametrize("kv", [4, 1])
def test_flops_are_those_of_the_formula(kv: int, tmp_path: Path) -> None:
    dim, depth, heads, side, classes, expansion = 64, 3, 4, 4, 10, 4
    overrides = (f"model.dim={dim}", f"model.depth={depth}", f"model.heads={heads}", f"token_mixer.num_kv_heads={kv}")
    more = (f"tokenizer.size={8 // side}", "channel_mixer=mlp", f"channel_mixer.expansion={expansion}")
    components = build.Components(config(tmp_path, *STILL, *overrides, *more)[0])
    batch = components.data.load(components.tokenizer).train.batch(torch.arange(2), None)
    flops = cost_card.flops_per_sample(components.model(0), components.objective, batch)
    tokens, patch = side * side, (8 // side) ** 2
    projections = dim * (dim + 2 * dim * kv // heads) + dim * dim + 2 * expansion * dim * dim
    attention = 2 * tokens * tokens * dim
    forward = 2 * (tokens * patch * dim + depth * (tokens * projections + attention) + dim * classes)
    assert flops["forward"] == forward
    # Backward is twice each matmul, but nothing flows into the image; attention takes 5 matmuls to 2.
    backward = 2 * forward - 2 * tokens * patch * dim + depth * attention
    assert flops["training"] == forward + backward


@pytest.mark.parametrize("head", ["head=multi_token head.further=3", "head=mtp_modules head.further=2"])
def test_a_step_is_counted_with_the_losses_of_further_tokens(head: str, tmp_path: Path) -> None:
    """A forward pass is that of evaluation, which has none of them."""
    overrides = (*head.split(), "model.dim=16", "model.depth=1", "model.heads=2", "logger=none", "trainer=cpu")
    composed = compose(["experiment=gpt_code_small", *overrides, f"outputs={tmp_path}"])
    assert not composed.issues, composed.issues
    components = build.Components(composed.config)
    splits = components.data.load(components.tokenizer)
    model, batch = components.model(0), splits.train.batch(torch.arange(2), None)
    own = cost_card.flops_per_sample(model, components.objective, batch)
    assert model.training
    batch = components.objective.ready(batch)
    with flops.counter() as step:
        loss = components.objective.loss(model(batch), batch.target)
        auxiliary = auxiliary_loss(model.modules())
        assert auxiliary is not None
        (loss + auxiliary).backward()
    assert own["training"] == step.get_total_flops() // 2
    with torch.no_grad(), flops.counter() as forward:
        model.eval()(batch)
    assert own["forward"] == forward.get_total_flops() // 2
    assert own["training"] > 3.2 * own["forward"]


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
def test_fused_cells_are_counted_like_their_steps(cell: type[nn.RNNBase]) -> None:
    """torch's own counter knows the steps that the meta device takes, and leaves out what CPU and cuDNN fuse."""
    gates = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}[cell]
    wanted = 2 * 2 * 5 * gates * 16 * (12 + 16)  # of 2 rows of 5 tokens
    for device in ("meta", "cpu"):
        layer, x = cell(12, 16, batch_first=True).to(device), torch.zeros(2, 5, 12, device=device)
        with flops.counter() as forward:
            states = layer(x)[0]
        with flops.counter() as backward:
            states.sum().backward()
        assert forward.get_total_flops() == wanted
        assert wanted < backward.get_total_flops() <= 2 * wanted
    sizes = [torch.Size(size) for size in ((gates * 16, 12), (gates * 16, 16), (gates * 16,), (gates * 16,))]
    assert flops._recurrent(torch.Size((5, 2, 12)), sizes, 4) == wanted  # as cuDNN is called
