"""Shapes beyond one stack of blocks: what a perceiver, two rows and sets of views promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.contracts import DataSpec, Inputs, TokenSpec
from blockyard.model.encoder import Encoder
from blockyard.model.perceiver import Perceiver
from blockyard.tokenizer._views import ViewEmbedder
from blockyard.tokenizer.view_cnn import ViewCNN, ViewCNNEmbedder
from blockyard.tokenizer.view_timm import ViewTimm
from blockyard.weight_init import initialise
from tests.components.model.tiny_models import blocks_with_cross, tiny_encoder_decoder, tiny_parts
from tests.components.properties.checks import differs
from tests.support.helpers import node, stir, token_ids
from tests.support.tolerances import float32

EXACT = {"rtol": 1e-9, "atol": 1e-9}


# What an order of adding up costs, a few units in the last place; it is not bitwise equal the same.
ROUNDING = {torch.float64: {"rtol": 1e-12, "atol": 1e-12}, torch.float32: float32(terms=9 * 512, layers=10)}


@torch.no_grad()
@pytest.mark.parametrize("block", blocks_with_cross())
@pytest.mark.parametrize("position", ["rope", "learned", "alibi"])
@pytest.mark.sampled(2)
def test_two_rows(block: str, position: str) -> None:
    """The target looks back only, all of it sees all of the source; padding of either is not there."""
    model = tiny_encoder_decoder(block=block, position=position)
    inputs, source = token_ids(2, 6), token_ids(2, 7, 1)
    before = model(Inputs(inputs, source=source))
    for t in range(6):
        changed = inputs.clone()
        changed[:, t:] = (changed[:, t:] + 1) % 11
        after = model(Inputs(changed, source=source))
        assert_close(after[:, :t], before[:, :t], **EXACT)
        differs(after[:, t], before[:, t])
    for t in range(7):
        changed = source.clone()
        changed[:, t] = (changed[:, t] + 1) % 11
        assert (model(Inputs(inputs, source=changed)) - before).abs().amax((0, 2)).min() > 1e-7
    lengths, source_lengths = torch.tensor([6, 4]), torch.tensor([3, 7])
    padded = model(Inputs(inputs, lengths=lengths, source=source, source_lengths=source_lengths))
    for row, (count, size) in enumerate(zip(lengths.tolist(), source_lengths.tolist(), strict=True)):
        alone = model(Inputs(inputs[row : row + 1, :count], source=source[row : row + 1, :size]))
        assert_close(padded[row, :count], alone[0], **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("block", blocks_with_cross())
def test_two_rows_from_a_cache(block: str) -> None:
    model = tiny_encoder_decoder(block=block, position="rope")
    inputs, source, lengths = token_ids(2, 6), token_ids(2, 7, 1), torch.tensor([5, 7])
    full = model(Inputs(inputs, source=source, source_lengths=lengths))
    memory = model.encode(source, lengths)
    assert_close(model(Inputs(inputs, memory=memory)), full, **EXACT)
    cache = model.init_cache(2)
    outputs = [model(Inputs(inputs[:, :2], source=source, source_lengths=lengths), cache=cache)]
    outputs += [model(inputs[:, t : t + 1], cache=cache) for t in range(2, 4)]
    order = torch.tensor([1, 0])
    cache.reorder(order)
    outputs += [model(inputs[order, t : t + 1], cache=cache)[order] for t in range(4, 6)]
    assert_close(torch.cat(outputs, 1), full, **EXACT)
    for bad, kept in (({}, None), ({"source": source, "memory": memory}, None), ({"source": source}, cache)):
        with pytest.raises(ValueError, match="reads one source"):
            model(Inputs(inputs, **bad), kept)


def test_positions_do_not_reach_across() -> None:
    """Moving the source's coordinates changes nothing where positions are relative."""
    model = tiny_encoder_decoder(position="rope")
    inputs, source = token_ids(2, 6), token_ids(2, 7, 1)
    before = model(Inputs(inputs, source=source))
    memory = model.encode(source)
    memory.seq.coords = memory.seq.coords + 5
    assert_close(model(Inputs(inputs, memory=memory)), before, **EXACT)
    memory.seq.position, memory.seq.memo = model.position, {}  # planted: one scheme for both rows
    differs(model(Inputs(inputs, memory=memory)), before)


def perceiver(head: str, variable: bool = False, **picks: str) -> nn.Module:
    """A perceiver of 3 latents over rows of 6 symbols."""
    plan = Perceiver(dim=16, depth=2, heads=4, num_latents=3)
    tokens = TokenSpec((6,), vocabulary=11, variable=variable)
    ctx = plan.context(DataSpec("text", (6,), variable=variable), tokens, 11)
    return stir(initialise(plan.build(ctx, tiny_parts(head=head, **picks)), 0)).double().eval()


@torch.no_grad()
@pytest.mark.parametrize("head", ["mean_pool", "token"])
def test_perceiver(head: str) -> None:
    """Every answer sees every token, any number of them; padding is not there; order needs a position."""
    model = perceiver(head, variable=True)
    inputs = token_ids(2, 6)
    before = model(inputs)
    assert before.shape == ((2, 11) if head == "mean_pool" else (2, 6, 11))
    for t in range(6):
        changed = inputs.clone()
        changed[:, t] = (changed[:, t] + 1) % 11
        assert (model(changed) - before).flatten(1).abs().amax(1).min() > 1e-7
    padded = model(Inputs(inputs, lengths=torch.tensor([6, 4])))
    alone = model(inputs[1:, :4])
    assert_close(padded[1] if head == "mean_pool" else padded[1, :4], alone[0], **EXACT)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    assert_close(model(inputs[:, order]), before if head == "mean_pool" else before[:, order], **EXACT)
    placed = perceiver(head, position="learned")
    differs(placed(inputs[:, order]), placed(inputs) if head == "mean_pool" else placed(inputs)[:, order])
    assert model(token_ids(1, 40)).shape[-1] == 11
    with pytest.raises(ValueError, match="carry one document into another"):
        model(Inputs(inputs, segment=torch.zeros(2, 6, dtype=torch.long)))


def test_the_depth_of_a_perceiver_does_not_see_the_length() -> None:
    seen = perceiver("mean_pool").steps(token_ids(2, 50))
    assert seen["placed"].shape == (2, 50, 16)
    assert seen["read"].shape == seen["block.1"].shape == (2, 3, 16)


VIEWS = {"view_cnn": ViewCNN(), "view_timm": ViewTimm(name="resnet10t")}


def views(tokenizer: Any, mixer: str = "attention", head: str = "mean_pool") -> nn.Module:
    """A model of sets of views of 8 x 8 pixels."""
    data = DataSpec("views", (4, 1, 8, 8), target="class", classes=5)
    plan = Encoder(dim=16, depth=2, heads=4, prefix=node_prefix(head))
    ctx = plan.context(data, tokenizer.spec(data), 5)
    return (
        stir(initialise(plan.build(ctx, tiny_parts(tokenizer.embedder, token_mixer=mixer, head=head)), 0))
        .double()
        .eval()
    )


def node_prefix(head: str) -> Any:
    """The prefix that a head needs."""
    from blockyard.model._prefix import Prefix

    return Prefix(class_token=node("head", head)[0].needs_class_token)


@torch.no_grad()
def order_of_views(model: nn.Module) -> None:
    """Any order of any number of views gives one answer, up to rounding, and every view counts."""
    generator = torch.Generator().manual_seed(0)
    for count in (1, 4, 7):
        sets = torch.rand(2, count, 1, 8, 8, dtype=torch.float64, generator=generator)
        before = model(sets)
        any_order(model, sets)
        for view in range(count):
            changed = sets.clone()
            changed[:, view] = torch.rand(2, 1, 8, 8, dtype=torch.float64, generator=generator)
            differs(model(changed), before)
    padded = model(Inputs(sets, lengths=torch.tensor([7, 3])))
    assert_close(padded, torch.cat([model(sets[:1]), model(sets[1:, :3])]), **EXACT)


@torch.no_grad()
def any_order(model: nn.Module, sets: Tensor) -> None:
    """Turning the views round, or drawing an order for each set, moves answers no further than rounding does."""
    generator = torch.Generator().manual_seed(1)
    before = model(sets)
    orders = torch.rand(sets.shape[:2], generator=generator).argsort(1)
    for other in (sets.flip(1), sets[torch.arange(len(sets))[:, None], orders]):
        assert_close(model(other), before, **ROUNDING[sets.dtype])


@torch.no_grad()
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_the_order_of_views_in_training_and_in_single_precision(name: str, training: bool, dtype: torch.dtype) -> None:
    """Batch norm of a network in training takes its figures over all views of a batch, which have no order either.

    They tie an answer to the other sets of the batch, which nothing else does; what pads a set is not among them.
    """
    model = views(VIEWS[name]).to(dtype).train(training)
    sets = torch.rand(3, 5, 1, 8, 8, dtype=dtype, generator=torch.Generator().manual_seed(0))
    any_order(model, sets)
    before, other = model(sets), sets.clone()
    other[1:] = 1 - other[1:] ** 2
    if training and name == "view_timm":
        differs(model(other)[:1], before[:1])
    else:
        assert_close(model(other)[:1], before[:1], **ROUNDING[dtype])
    lengths = torch.tensor([5, 2, 4])
    padded, other = model(Inputs(sets, lengths=lengths)), sets.clone()
    other[1, 2:], other[2, 4:] = 7.0, -7.0
    assert_close(model(Inputs(other, lengths=lengths)), padded, **ROUNDING[dtype])


@pytest.mark.parametrize("head", ["mean_pool", "class_token"])
@pytest.mark.parametrize("name", VIEWS)
def test_the_order_of_views_says_nothing(name: str, head: str) -> None:
    order_of_views(views(VIEWS[name], head=head))


@torch.no_grad()
def test_deep_sets_add_up_views() -> None:
    """Without mixing, the answer to a set is the mean of the answers to its views."""
    model = views(VIEWS["view_cnn"], mixer="none")
    order_of_views(model)
    sets = torch.rand(2, 4, 1, 8, 8, dtype=torch.float64)
    assert_close(model(sets), torch.stack([model(sets[:, [w]]) for w in range(4)]).mean(0), **EXACT)
    mixing = views(VIEWS["view_cnn"])
    differs(mixing(sets), torch.stack([mixing(sets[:, [w]]) for w in range(4)]).mean(0))


class Numbered(ViewCNN):
    """Planted: adds the number of the view to its vector."""

    def embedder(self, ctx: Any) -> ViewEmbedder:
        class Counts(ViewCNNEmbedder):
            def forward(self, *args: Any, **named: Any) -> Any:
                x, seq = super().forward(*args, **named)
                return x + seq.index[:, None] * torch.eye(x.shape[-1])[0].to(x.dtype), seq

        return Counts(ctx, self.layers)


def test_planted_number_of_a_view_is_caught() -> None:
    with pytest.raises(AssertionError):
        order_of_views(views(Numbered()))
