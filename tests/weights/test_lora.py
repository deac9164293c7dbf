"""LoRA against its formula, and weights with the additions merged."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrize

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.weights.lora import Lora, LowRank, add_lora, added_parameters, linear_layers, merged_state_dict
from tests.support.every import every
from tests.support.helpers import stir, tiny, token_ids
from tests.support.tiny import TEXT

LORA = Lora(rank=3, alpha=6.0)


@pytest.mark.parametrize("block", ["pre_norm", "parallel"])
def test_additions_are_zero_at_first_and_count_wherever_a_weight_is_read(block: str) -> None:
    plain = tiny(block=block)
    model = copy.deepcopy(plain)
    add_lora(model, LORA, 0)
    inputs = token_ids(2, 6)
    assert torch.equal(model(inputs), plain(inputs))
    with torch.no_grad():
        for parameter in added_parameters(model):
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    additions = {path: module for path, module in model.named_modules() if isinstance(module, LowRank)}
    assert additions
    for path, addition in additions.items():  # W + (alpha / rank) B A, put into the plain model by hand
        layer = plain.get_submodule(path.removesuffix(".parametrizations.weight.0"))
        with torch.no_grad():
            layer.weight += (LORA.alpha / LORA.rank) * torch.einsum("or,ri->oi", addition.b, addition.a)
    torch.testing.assert_close(model(inputs), plain(inputs))
    assert not torch.equal(model(inputs), tiny(block=block)(inputs))


def test_merged_weights_load_into_a_model_without_additions() -> None:
    model, plain = tiny(), tiny()
    add_lora(model, LORA, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    state = merged_state_dict(model)
    assert state.keys() == plain.state_dict().keys()
    plain.load_state_dict(state)
    torch.testing.assert_close(plain(token_ids(2, 6)), model(token_ids(2, 6)))
    assert merged_state_dict(plain).keys() == state.keys()


def test_layers_are_chosen_by_parts_of_their_paths() -> None:
    model = tiny()
    everywhere = linear_layers(model, ("blocks", "head"))
    assert any(path.startswith("head.") for path in everywhere)
    mixers = linear_layers(model, ("token_mixer",))
    assert mixers
    assert every("token_mixer" in path.split(".") for path in mixers)
    assert {path.split(".")[1] for path in linear_layers(model, ("blocks.1",))} == {"1"}
    assert not linear_layers(model, ("block",))  # a part of a name is no part of a path


def test_first_values_depend_on_the_seed_and_the_path() -> None:
    def first(seed: int) -> list[torch.Tensor]:
        model = tiny()
        add_lora(model, LORA, seed)
        return [each.detach().clone() for each in added_parameters(model)]

    assert every(map(torch.equal, first(0), first(0)))
    matrices = [each for each in first(0) if each.abs().sum() > 0]
    assert not torch.equal(matrices[0], next(each for each in first(1) if each.abs().sum() > 0))
    assert len({float(each.flatten()[0]) for each in matrices}) == len(matrices)


def test_any_linear_layer_gets_one_tied_tables_do_not() -> None:
    model = stir(nn.Sequential(nn.Linear(4, 3), nn.Embedding(5, 4)))
    add_lora(model, Lora(rank=1, layers=("0",)), 0)
    assert parametrize.is_parametrized(model[0], "weight")
    assert not linear_layers(model, ("1",))


def test_a_tied_head_stays_shared_and_frozen(tmp_path: Path) -> None:
    """LoRA where the head is the table of tokens: `check` accepts it, the table is one frozen tensor, and it merges."""
    base = (*TEXT, "tokenizer=byte", "head.tied=true")
    drawn = Components(compose([*base]).config).model(0)
    save_file({name: value.clone() for name, value in drawn.state_dict().items()}, tmp_path / "w.safetensors")
    overrides = [*base, f"init.from={tmp_path / 'w.safetensors'}", "init.lora.rank=2"]
    composed = compose(overrides)
    assert not check(composed)
    components = Components(composed.config)
    model, init = components.model(1), components.node("init")
    init.load(components, model)
    assert model.head.proj.weight is model.embedder.table
    assert not model.head.proj.weight.requires_grad
    assert torch.equal(model.embedder.table, drawn.embedder.table)
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert {id(parameter) for parameter in added_parameters(model)} <= trained
    with torch.no_grad():
        for parameter in added_parameters(model):
            parameter.add_(0.1)
    drawn.load_state_dict(merged_state_dict(model))
    assert drawn.head.proj.weight is drawn.embedder.table
    torch.testing.assert_close(drawn.eval()(token_ids(2, 6)), model.eval()(token_ids(2, 6)))
    (issue,) = check(compose([*overrides, "init.lora.layers=[blocks,head]"]))
    assert issue.key == "init.lora.layers"


def test_products_with_int8_weights_have_no_gradient_yet() -> None:
    """Why there is no int8 base (docs/weights.md). Where this fails, torch offers what it would need on a CPU."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(4, 32, generator=generator), torch.randn(16, 32, generator=generator)
    scale = weight.abs().amax(1) / 127
    stored = (weight / scale[:, None]).round().to(torch.int8)
    # A weight is off by half a step, at most 1/254 of the largest of its row.
    bound = (x.abs().sum(1, keepdim=True) * scale / 2).max().item()
    product = torch._weight_int8pack_mm(x, stored, scale)
    torch.testing.assert_close(product, x @ weight.T, atol=bound, rtol=0)
    with pytest.raises(RuntimeError, match="derivative for aten::_weight_int8pack_mm is not implemented"):
        torch._weight_int8pack_mm(x.requires_grad_(), stored, scale).sum().backward()
    whole = torch.ones(32, 32, dtype=torch.int8)
    assert torch._int_mm(whole, whole).dtype == torch.int32  # of whole numbers on both sides: nothing to differentiate
