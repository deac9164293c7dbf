"""What every choice of `residual` holds: the traits of mixers stay, and training passes every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from blockyard.contracts import Block, Inputs, Residual, iter_blocks
from blockyard.ops.linear import Linear
from blockyard.residual.x0 import EmbeddedTokens, State
from blockyard.weight_init import initialise
from tests.components.model.tiny_models import build_tiny
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.support.every import every
from tests.support.helpers import LENGTH, blocks, choices, node, tiny, token_ids

RESIDUALS = choices("residual")
# Each mixing of streams, with and without what depends on the token.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in RESIDUALS),
    ("hyper", {"mixing": "sinkhorn"}),
    ("hyper", {"dynamic": False, "streams": 3}),
    ("dense", {"dilation": 2, "period": 2}),
]
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda value: str(value))
# A block that is visited twice among others.
LOOPED = {"depth": 4, "order": (0, 1, 2, 1, 2, 3)}


@each_variant
@pytest.mark.sampled(2)
def test_traits_of_mixers_stay(name: str, options: dict[str, Any]) -> None:
    """Causality, padding, packing and a cache, in a model that visits blocks twice."""
    for causal in (False, True):
        model = tiny(causal=causal, residual=name, position="rope", sizes=LOOPED, options={"residual": options})
        padding(model, LENGTH)
        packing(model, LENGTH)
    causality(model, LENGTH)
    cached_decoding(model, LENGTH)


@each_variant
def test_every_weight_has_a_gradient(name: str, options: dict[str, Any]) -> None:
    """Also where blocks are checkpointed, with the same values."""
    gradients = []
    for checkpointed in (False, True):
        model = tiny(residual=name, sizes=LOOPED, options={"residual": options})
        if checkpointed:
            for block in iter_blocks(model):
                block.forward = lambda *args, of=block.forward: checkpoint(of, *args, use_reentrant=False)  # type: ignore[method-assign,misc]
        model(token_ids(2, LENGTH)).square().sum().backward()
        gradients.append({path: parameter.grad for path, parameter in model.named_parameters()})
    for path, gradient in gradients[0].items():
        assert gradient is not None, path
        assert gradient.abs().max() > 0, path
        assert_close(gradients[1][path], gradient)


STARTS_AS_ADD = ["x0", "dense", "hyper"]


@pytest.mark.parametrize("name", STARTS_AS_ADD)
def test_starts_as_add(name: str) -> None:
    """Before training, with equal weights elsewhere; stirred weights give something else."""
    inputs = token_ids(2, LENGTH)

    def fresh(residual: str) -> torch.nn.Module:
        return initialise(tiny(residual=residual, sizes={"depth": 3}), 5).double()

    assert_close(fresh(name)(inputs), fresh("add")(inputs))
    stirred = [tiny(residual=residual, sizes={"depth": 3})(inputs) for residual in (name, "add")]
    assert (stirred[0] - stirred[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", blocks())
def test_blocks_add_as_declared(name: str) -> None:
    """With the last maps of all branches at zero, a block that adds returns its input, and another does not."""
    model = tiny(block=name, norm="rms")
    block: Block = model.blocks[0]
    for module in block.modules():
        if isinstance(module, Linear):
            torch.nn.init.zeros_(module.weight)
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, seq = model.embed_tokens(Inputs(token_ids(2, LENGTH)))
    unchanged = bool((block(x, seq, None, None) - x).abs().max() < 1e-12)
    assert unchanged == node("block", name)[0].adds


@pytest.mark.parametrize("name", [name for name in RESIDUALS if node("residual", name)[0].of_additions])
@pytest.mark.parametrize("block", [name for name in blocks() if not node("block", name)[0].adds])
def test_additions_need_a_block_that_adds(name: str, block: str) -> None:
    with pytest.raises(ValueError, match="residual"):
        tiny(residual=name, block=block)


@pytest.mark.parametrize("name", ["perceiver", "encoder_decoder", "joint"])
@pytest.mark.parametrize("residual", [name for name in RESIDUALS if name != "add"])
def test_every_model_with_blocks_has_it(name: str, residual: str) -> None:
    """An encoder-decoder has one in each stack."""
    model = build_tiny(name, residual=residual)
    kinds = [module for module in model.modules() if isinstance(module, Residual)]
    assert len(kinds) == (2 if name == "encoder_decoder" else 1)
    assert every(isinstance(kind, node("residual", residual)[0]) for kind in kinds)


# One that keeps a list of outputs and one that keeps streams; the full suite traces every variant.
TRACED = [("dense", {}), ("hyper", {"dynamic": False, "streams": 3})]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "options"),
    VARIANTS,
    ids=str,
)
def test_one_graph(name: str, options: dict[str, Any]) -> None:
    """torch.export and torch.compile take the whole model, and their programs give the same outputs."""
    model = tiny(residual=name, options={"residual": options}).float()
    inputs = token_ids(2, LENGTH)
    program = torch.export.export(model, (inputs,), strict=False)
    assert_close(program.module()(inputs), model(inputs))
    torch._dynamo.reset()
    assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(inputs), model(inputs))


class Later(EmbeddedTokens):
    """Planted: the tokens that are added are those of the next position."""

    def open(self, x: Tensor) -> State:
        return x, x.roll(-1, dims=1)


def test_planted_leak_is_caught() -> None:
    with pytest.raises(AssertionError):
        causality(tiny(causal=True, replace={"residual": Later}), LENGTH)
