"""Gradient checkpointing: the same bits as without, in gradients and in runs, and less that is kept."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from blockyard.config.build import Components
from blockyard.contracts import Batch
from blockyard.engine.module import checkpoint_blocks
from tests.support.engine_runs import assert_same_bits, run
from tests.support.every import every
from tests.support.tiny import DECODER, configured

SHAPE = ("model.dim=16", "model.depth=3", "model.heads=2")
DROPOUT = ("token_mixer.dropout=0.2", "channel_mixer.dropout=0.2", "block.drop_path=0.3")
MODELS = {
    "vit": ("data=digits", *DROPOUT),
    "batch_norm": ("data=digits", "norm=batch"),
    "parallel": ("data=digits", "block=parallel", *DROPOUT),
    "bias_table": ("data=digits", "position=bias_table", *DROPOUT),
    "decoder": ("data=code", "data.context=12", "tokenizer=byte", "position=rope", *DECODER, *DROPOUT),
    "translation": ("experiment=translate_dates", "data.batch_size=4"),
    "perceiver": ("data=digits", "model=perceiver", "model.num_latents=3", "head=mean_pool"),
}


def gradients(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], int]:
    """The gradient of each parameter, and the bytes that are kept for the backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(batch).float().square().mean()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, sum(kept.values())


@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_statistics_have_the_same_bits_and_less_is_kept(name: str) -> None:
    components = Components(configured("logger=none", "trainer=cpu", *MODELS[name], *SHAPE)[0])
    split = components.load().train
    batch = components.objective.ready(split.batch(torch.arange(4), 1))
    plain = components.model(0).train()
    with torch.no_grad():  # a branch that begins at zero has no gradient inside
        for parameter in plain.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    again = copy.deepcopy(plain)
    checkpoint_blocks(again)
    again = copy.deepcopy(again)  # which must compute with its own weights
    expected, kept = gradients(plain, batch)
    recomputed, less = gradients(again, batch)
    assert expected.keys() == recomputed.keys()
    assert every(torch.equal(recomputed[key], expected[key]) for key in expected)
    assert less < 0.6 * kept, (less, kept)
    for (key, weight), expected in zip(again.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(weight, expected), key


def test_a_run_has_the_same_bits_and_the_same_identity(tmp_path: Path) -> None:
    short = ("trainer.max_steps=6", "trainer.eval_every=3", "block.drop_path=0.2")
    plain = run(tmp_path / "plain", *short)
    again = run(tmp_path / "again", *short, "trainer.checkpoint_blocks=true")
    assert plain.identity == again.identity
    assert_same_bits(plain, again)


def test_a_model_without_blocks_is_refused() -> None:
    bare = ("token_mixer=none", "channel_mixer=none", "norm=none", "block=none", "model=bare", "head=token")
    overrides = ("data=code", "tokenizer=byte", "position=none", *bare, "objective=next_token", "logger=none")
    with pytest.raises(AssertionError, match=r"trainer.checkpoint_blocks=true: this model has no blocks"):
        configured(*overrides, "trainer.checkpoint_blocks=true")
