"""Which tensors a model takes of a source, and what becomes of tables of positions over another grid."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from blockyard.contracts import Embedder, Seq
from blockyard.errors import UserError
from blockyard.model._embedding import scaled_coords
from blockyard.position.learned import Learned
from blockyard.weights.lora import Lora, add_lora
from blockyard.weights.transfer import WeightLayout, compare, load
from tests.support.every import every
from tests.support.helpers import context, tiny


def table(grid: tuple[int, ...], *, causal: bool = False, beyond: str = "refuse") -> Learned:
    """Learned positions over a grid, with values of their own."""
    scheme = Learned(context(axes=len(grid), grid=grid, causal=causal), beyond=beyond)
    nn.init.normal_(scheme.table, generator=torch.Generator().manual_seed(0))
    return scheme


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("old", "new"), [((3,), (7,)), ((2, 3), (4, 5)), ((2, 2), (2, 6))])
def test_a_larger_table_says_what_the_old_one_said_of_larger_inputs(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    trained, larger = table(old), table(new)
    ctx = context(axes=len(old), grid=old)
    sides = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in new), indexing="ij")
    coords = torch.stack([side.flatten() for side in sides], -1)[None]  # (1, N, A)
    seq = Seq(torch.arange(coords.shape[1]), coords, grid=new)
    expected = trained.encoding(scaled_coords(ctx, trained, seq, 0), coords)[0]
    actual = larger.resized("table", trained.table.detach(), old)
    assert actual is not None
    torch.testing.assert_close(actual, expected.detach())


def test_a_line_of_two_becomes_a_line_of_four() -> None:
    value = torch.tensor([[0.0], [1.0]]).expand(2, 16)
    actual = table((4,)).resized("table", value, (2,))
    torch.testing.assert_close(actual, torch.tensor([0.0, 0.25, 0.75, 1.0])[:, None].expand(4, 16))


def test_of_a_causal_sequence_the_first_positions_are_taken() -> None:
    trained = table((6,), causal=True)
    torch.testing.assert_close(table((4,), causal=True).resized("table", trained.table, (6,)), trained.table[:4])
    assert table((8,), causal=True).resized("table", trained.table, (6,)) is None
    assert table((8,), causal=True, beyond="interpolate").resized("table", trained.table, (6,)) is not None


def test_a_grid_that_is_not_known_is_a_square_and_one_that_is_counts() -> None:
    value = torch.randn(4, 16)
    assert table((3, 3)).resized("table", value, None) is not None
    assert table((3, 3)).resized("table", torch.randn(6, 16), None) is None
    assert table((2, 2)).resized("table", value, None) is None  # it is the same already
    assert table((2, 2)).resized("table", value, (4, 1)) is not None


def test_parts_names_and_shapes_decide_what_is_taken() -> None:
    source, model = tiny(sizes={"depth": 3}), tiny(sizes={"depth": 2, "outputs": 5})
    there = shapes(source) | {"mask_token.vector": (1, 16)}
    transfer = compare(model, there, None, head=True)
    assert transfer.differing == {
        name: ((11, *shape[1:]), shape) for name, shape in shapes(model).items() if name.startswith("head.")
    }
    assert not transfer.missing
    assert not transfer.outside
    assert {name.rpartition(".")[0].split(".")[0] for name in transfer.unused} == {"mask_token", "blocks", "head"}
    problems = " ".join(transfer.problems(None, strict=True))
    assert "head.proj.weight (11 x 16 there, 5 x 16 here)" in problems
    assert "blocks.2" in problems
    assert "mask_token" not in problems
    assert not list(transfer.problems(None, strict=False))
    remade = compare(model, there, None, head=False)
    assert every(name.startswith("head.") for name in remade.outside)
    assert remade.taken == transfer.taken
    only = compare(model, there, ("blocks.1",), head=True)
    assert {name.split(".")[1] for name in only.taken} == {"1"}
    assert not list(only.problems(("blocks.1",), strict=False))


def test_names_that_fit_nothing_are_refused_whatever_strict_says() -> None:
    transfer = compare(tiny(), {"transformer.wte.weight": (11, 16)}, None, head=True)
    (problem,) = transfer.problems(None, strict=False)
    assert "transformer.wte.weight" in problem


def test_a_table_that_the_head_shares_is_one_tensor() -> None:
    model = tiny(options={"head": {"tied": True}})
    transfer = compare(model, shapes(model), None, head=False)
    assert "embedder.table" in transfer.taken
    assert not transfer.unused
    assert not transfer.outside


def test_the_weights_are_loaded_and_the_rest_stays() -> None:
    source, model = tiny(), tiny(sizes={"outputs": 5})
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1.0)
    add_lora(model, Lora(rank=2), 0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    transfer = compare(model, shapes(source), None, head=False)
    load(model, source.state_dict(), transfer)
    for name, tensor in model.state_dict().items():
        plain = name.replace(".parametrizations.weight.original", ".weight")
        kept = name.startswith("head.") or ".parametrizations.weight.0." in name
        assert torch.equal(tensor, before[name] if kept else source.state_dict()[plain]), name


def test_values_that_are_not_finite_are_refused() -> None:
    source, model = tiny(), tiny()
    state = source.state_dict()
    state["final_norm.weight"] = state["final_norm.weight"] * float("nan")
    with pytest.raises(UserError, match=r"final_norm\.weight"):
        load(model, state, compare(model, shapes(source), None, head=True))


def test_a_table_of_positions_is_resized_into_a_model() -> None:
    source, model = (tiny(axes=2, position="learned", sizes={"grid": grid}) for grid in ((2, 3), (4, 6)))
    transfer = compare(model, shapes(source), None, head=True, source_layout=WeightLayout((2, 3)))
    assert transfer.resized == {"position.table": ((6, 16), (24, 16))}
    load(model, source.state_dict(), transfer, source_layout=WeightLayout((2, 3)))
    expected = model.position.resized("table", source.position.table, (2, 3))
    torch.testing.assert_close(model.position.table, expected)


@pytest.mark.parametrize(("in_source", "in_model"), [(True, False), (False, True)])
def test_the_row_of_the_mask_is_left_out_or_stays(in_source: bool, in_model: bool) -> None:
    source, model = nn.Sequential(Lookup(6 + in_source)), nn.Sequential(Lookup(6 + in_model))
    before = model[0].symbols.weight.detach().clone()
    layouts = {"source_layout": WeightLayout(mask=in_source), "target_layout": WeightLayout(mask=in_model)}
    transfer = compare(model, shapes(source), None, head=True, **layouts)
    assert transfer.resized == {"0.symbols.weight": ((6 + in_source, 4), (6 + in_model, 4))}
    load(model, source.state_dict(), transfer, **layouts)
    assert torch.equal(model[0].symbols.weight[:6], source[0].symbols.weight[:6])
    assert torch.equal(model[0].symbols.weight[6:], before[6:])
    assert compare(model, shapes(source), None, head=True).differing  # a file does not say that it has a mask
    other = nn.Sequential(Lookup(8 + in_model))
    assert compare(other, shapes(source), None, head=True, **layouts).differing


class Lookup(Embedder):
    """A table of token ids, as embedders of texts have it."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(vocabulary, 4)

    @property
    def table(self) -> nn.Parameter:  # type: ignore[override]
        return self.symbols.weight


def test_a_head_of_its_own_is_not_dropped_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """A model whose head is its table has no place for it."""
    model = nn.ModuleDict({"table": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    source = {name: torch.randn(5, 3) for name in ("table.weight", "head.weight")}
    model["head"].weight = model["table"].weight
    for own, warnings in ((source["table.weight"], 0), (source["head.weight"], 1)):
        caplog.clear()
        source["head.weight"] = own
        transfer = compare(model, {name: tuple(each.shape) for name, each in source.items()}, None, head=True)
        load(model, source, transfer)
        assert len(caplog.records) == warnings
    assert "head.weight of the source is left out: the model ties it to table.weight" in caplog.text
