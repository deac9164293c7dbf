"""FLOPs of a model against formulas and plain steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from blockyard.config import build
from blockyard.config.compose import compose
from blockyard.config.size_matching import compiled_remark, flops_by_module
from blockyard.contracts import auxiliary_loss
from blockyard.engine import cost_card
from blockyard.ops import flops
from tests.support.engine_runs import config, run

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


EXPERTS = (
    *("channel_mixer=experts", "channel_mixer.count=4", "channel_mixer.active=1", "model.dim=16", "model.depth=1"),
    *("model.heads=2", "token_mixer.dropout=0.0", "data.shift=0"),
)


@pytest.mark.parametrize("shared", [0, 1])
def test_compiled_experts_are_counted_as_what_the_graph_runs(shared: int, tmp_path: Path) -> None:
    """In a compiled block every expert computes every token."""
    composed = config(tmp_path, *EXPERTS, f"channel_mixer.shared={shared}", "trainer.compile=true")[0]
    components = build.Components(composed)
    model, batch = components.model(0), components.data.load(components.tokenizer).train.batch(torch.arange(2), None)
    ran: list[int] = []

    def counting(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with flops.counter() as counted:
                outputs = graph(*args)
            ran.append(counted.get_total_flops())
            return outputs

        return call

    with torch.no_grad():
        torch.compile(model.eval(), backend=counting, fullgraph=True)(batch)
    eager = cost_card.flops_per_sample(model, components.objective, batch)
    compiled = cost_card.flops_per_sample(model, components.objective, batch, compiled=True)
    assert compiled["forward"] == sum(ran) // 2
    assert compiled["training"] > eager["training"]
    tokens, expert = components.tokens().max_len, model.blocks[0].channel_mixer.expert[0]
    maps = sum(weight.numel() for weight in expert.parameters() if weight.ndim == 2)
    assert compiled["forward"] - eager["forward"] == 2 * tokens * 3 * maps  # three of four experts more
    meta, ctx = components.meta_model(), components.context()
    assert flops_by_module(meta, ctx, compiled=True)[""] - flops_by_module(meta, ctx)[""] == 2 * tokens * 3 * maps


def test_a_run_with_compiled_experts_says_so_once_and_records_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocks are not compiled here, which takes a minute and changes no number that is recorded."""
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: None)
    folder = run(tmp_path, *EXPERTS, "trainer.compile=true", "trainer.max_steps=1")
    remarks = [text for text in caplog.messages if "every expert computes every token" in text]
    assert len(remarks) == 1
    components = build.Components(folder.config)
    meta, ctx = components.meta_model(), components.context()
    recorded, eager = folder.summary()["flops_per_sample"]["forward"], flops_by_module(meta, ctx)[""]
    assert recorded == flops_by_module(meta, ctx, compiled=True)[""]
    assert f"{recorded / eager:.2f} times the FLOPs" in remarks[0]
    assert recorded / eager > 1.5
    for others in (EXPERTS, ("trainer.compile=true",)):
        assert compiled_remark(build.Components(config(tmp_path, *others)[0])) is None


def test_a_budget_of_flops_is_of_the_experts_that_tokens_are_sent_to() -> None:
    """So that a machine that compiles gets the same model."""
    budget = ("experiment=vit_digits", *EXPERTS[:3], "match.flops=3e6")
    widths = {each: compose([*budget, f"trainer.compile={each}"]).config["model"]["dim"] for each in ("true", "false")}
    assert widths["true"] == widths["false"]
