"""Images as sequences of token ids: orders, start tokens, coordinates, likelihoods, and what is refused."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, DataSpec, Parts, Seq, TokenSpec
from blockyard.data.digits import Digits
from blockyard.model._embedding import add_position
from blockyard.model.decoder import Decoder
from blockyard.objective.next_token import NextToken
from blockyard.position.rope import Rope
from blockyard.token_mixer._neighbours import at_offset
from blockyard.tokenizer.levels import Levels
from blockyard.weight_init import initialise
from tests.components.properties.checks import EXACT, differs
from tests.support.helpers import DEFAULT_PARTS, choices, context, factory, has, stir, traits

ORDERS = ("row", "column", "snake", "random")
GENERATE = ("data=digits", "tokenizer=levels", "objective=next_token", "model=decoder", "head=token", "logger=none")


def spec(height: int = 3, width: int = 4, levels: int = 5, classes: int | None = 7) -> DataSpec:
    return DataSpec("image", (1, height, width), target="class", classes=classes, levels=levels)


def pixels_in(order: str, height: int, width: int) -> list[tuple[int, int]]:
    """The row and column of each pixel, by loops."""
    if order == "column":
        return [(row, column) for column in range(width) for row in range(height)]
    rows = [[(row, column) for column in range(width)] for row in range(height)]
    if order == "snake":
        rows = [line[::-1] if row % 2 else line for row, line in enumerate(rows)]
    return [pixel for line in rows for pixel in line]


def decoder(tokenizer: Levels, data: DataSpec, **picks: str) -> nn.Module:
    """A tiny model of the tokens, in float64 with weights large enough to matter."""
    plan, tokens = Decoder(dim=16, depth=2, heads=4), tokenizer.spec(data)
    ctx = plan.context(data, tokens, NextToken().outputs(data, tokens))
    parts = {**DEFAULT_PARTS, "position": "learned", **picks}
    if picks.get("token_mixer") == "monet":
        parts |= {"block": "single", "channel_mixer": "none"}
    built = Parts(embedder=tokenizer.embedder, **{family: factory(family, name) for family, name in parts.items()})
    return stir(initialise(plan.build(ctx, built), 0)).double().eval()


@pytest.mark.parametrize("order", ORDERS)
def test_tokens_follow_their_order_and_give_the_image_back(order: str) -> None:
    tokenizer = Levels(order=order)  # type: ignore[arg-type]
    tokenizer.spec(spec(5, 6, levels=30))
    images = torch.arange(30, dtype=torch.uint8).view(1, 1, 5, 6)
    token_ids = tokenizer.encode(images)
    if order != "random":
        assert token_ids[0].tolist() == [6 * row + column for row, column in pixels_in(order, 5, 6)]
    assert token_ids.unique().tolist() == list(range(30))
    assert torch.equal(tokenizer.decode(token_ids), images)


@pytest.mark.parametrize("order", ORDERS)
def test_a_token_lies_at_the_pixel_that_it_predicts(order: str) -> None:
    tokenizer, data = Levels(order=order), spec(5, 6, levels=30)  # type: ignore[arg-type]
    model = decoder(tokenizer, data)
    images = torch.arange(30, dtype=torch.uint8).view(1, 1, 5, 6)
    target = tokenizer.encode(images)
    seq = model.embedder(torch.zeros_like(target))[1]
    where = seq.coords[0].flip(1) if order == "column" else seq.coords[0]  # column is row of the transposed image
    assert [6 * row + column for row, column in where.long().tolist()] == target[0].tolist()
    part = model.embedder(torch.zeros_like(target[:, :3]), start=4)[1]
    assert_close(part.coords, seq.coords[:, 4:7])
    assert part.grid is None


@pytest.mark.parametrize("order", ["snake", "random"])
@pytest.mark.parametrize("mixer", [name for name in choices("token_mixer") if traits(name).causal])
@pytest.mark.sampled(2)
def test_no_order_lets_a_mixer_see_later_tokens(mixer: str, order: str) -> None:
    if 2 not in traits(mixer).axes or traits(mixer).reads_features or traits(mixer).reads_pairs:
        return
    model = decoder(Levels(order=order), spec(), token_mixer=mixer)  # type: ignore[arg-type]
    inputs = torch.randint(5, (2, 12), generator=torch.Generator().manual_seed(0))
    before = model(inputs)
    for t in range(1, 12):
        changed = inputs.clone()
        changed[:, t:] = (changed[:, t:] + 1) % 5
        after = model(changed)
        assert_close(after[:, :t], before[:, :t], **EXACT)
        differs(after[:, t], before[:, t])
    if has(mixer, "init_cache"):
        cache = model.init_cache(2)
        parts = [model(inputs[:, first:last], cache=cache) for first, last in ((0, 3), (3, 4), (4, 9), (9, 12))]
        assert_close(torch.cat(parts, 1), before, **EXACT)


@pytest.mark.parametrize("mixer", ["depthwise_conv", "conv", "pool", "shift"])
def test_coordinates_that_vary_in_training_move_no_neighbour(mixer: str) -> None:
    """DINOv3 stretches coordinates for the rotation alone; in snake order a mixer finds neighbours by coordinates."""
    tokens = TokenSpec((4, 4), vocabulary=17, predicted=16, ahead=True, raster=False)
    ctx = replace(context(causal=mixer != "pool"), tokens=tokens)
    rope, part = Rope(ctx, rescale=2.0, jitter=1.0), stir(initialise(factory("token_mixer", mixer)(ctx), 0)).double()
    coords = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).double()
    order = torch.tensor([6 - 2 * (n % 4) - 3 + n if n // 4 % 2 else n for n in range(16)])
    x = torch.randn(1, 16, 16, dtype=torch.float64)

    def mixed(training: bool) -> Tensor:
        seq = Seq(torch.arange(16), coords[order][None])
        add_position(ctx, rope.train(training), x, seq)
        assert (seq.unvaried is not None) == training
        return part(x, seq)

    wanted = mixed(False)
    for _ in range(6):
        assert_close(mixed(True), wanted)


def test_neighbours_by_coordinates_alone_would_see_later_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(x: Tensor, seq: Seq, offset: tuple[int, ...], k_seq: Seq, causal: bool) -> tuple[Tensor, Tensor]:
        return at_offset(x, seq, offset, k_seq)

    monkeypatch.setattr("blockyard.token_mixer._convolution.at_offset", planted)
    with pytest.raises(AssertionError):
        test_no_order_lets_a_mixer_see_later_tokens("conv", "snake")


@pytest.mark.parametrize("order", ORDERS)
def test_the_probabilities_of_all_images_sum_to_one(order: str) -> None:
    data = spec(2, 3, levels=2, classes=3)
    tokenizer, objective = Levels(order=order, condition="class"), NextToken()  # type: ignore[arg-type]
    model = decoder(tokenizer, data)
    images = torch.tensor(list(itertools.product((0, 1), repeat=6)), dtype=torch.uint8).view(-1, 1, 2, 3)
    start = tokenizer.start(torch.full((64,), 2))[:, None]
    assert start.unique().tolist() == [4]
    batch = objective.ready(Batch(torch.cat([start, tokenizer.encode(images)], 1)))
    nats = torch.stack([objective.loss(model(batch.inputs[[n]]), batch.target[[n]]) for n in range(64)])  # type: ignore[index]
    assert_close((-6 * nats).exp().sum(), torch.ones((), dtype=torch.float64))


def test_fewer_levels_are_steps_of_equal_size() -> None:
    two, four = Levels(levels=2), Levels(levels=4)
    images = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    for tokenizer in (two, four):
        tokenizer.spec(spec(4, 4, levels=16))
    assert two.encode(images)[0].tolist() == [0] * 8 + [1] * 8
    assert two.decode(two.encode(images)).unique().tolist() == [0, 15]
    assert four.encode(images)[0].bincount().tolist() == [4, 4, 4, 4]
    assert four.decode(torch.tensor([[0, 1, 2, 3] * 4]))[0, 0, 0].tolist() == [0, 5, 10, 15]


def test_baselines_and_metrics_of_digits() -> None:
    data, tokenizer, objective = Digits(), Levels(condition="class"), NextToken()
    train, _, test = data.load(tokenizer)
    batch = test.batch(torch.arange(len(test)), None)
    classes = data.load(Levels()).test.images.batch(torch.arange(len(test)), None).target  # type: ignore[attr-defined]
    assert torch.equal(batch.inputs[:, 0], 17 + classes)
    baselines = objective.baselines(test)
    assert baselines["uniform"]["bits_per_dim"] == pytest.approx(math.log2(17))
    seen = train.batch(torch.arange(len(train)), None).inputs[:, 1:]
    total = 0.0
    for pixel in range(64):
        counts = [(seen[:, pixel] == level).sum().item() + 1 for level in range(17)]
        shown = batch.inputs[:, 1 + pixel].tolist()
        total -= sum(math.log2(counts[level] / (len(train) + 17)) for level in shown)
    assert baselines["independent"]["bits_per_dim"] == pytest.approx(total / 64 / len(test))
    assert baselines["independent"]["bits_per_dim"] == pytest.approx(2.43, abs=0.01)
    logits = torch.randn(3, 64, 17)
    metrics = objective.metrics(test)
    assert list(metrics) == ["loss", "bits_per_dim"]
    target = batch.inputs[:3, 1:]
    for metric in metrics.values():
        metric.update(logits, target)
    nats = -logits.log_softmax(-1).gather(2, target[..., None]).mean()
    assert_close(metrics["bits_per_dim"].compute(), nats / math.log(2))


def test_augmented_images_stay_levels() -> None:
    train = Digits(shift=1, crop=0.2, flip=True).load(Levels()).train
    tokens = train.batch(torch.arange(50), 3).inputs[:, 1:]
    assert tokens.min() >= 0
    assert tokens.max() <= 16


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("tokenizer.levels=32",), "tokenizer.levels=32 is more than the 17 gray levels"),
        (("objective=classify", "model=encoder", "head=mean_pool"), "each token predicts the next one"),
        (("tokenizer=patch",), "predicts token ids; tokenizer=patch gives none"),
        (("data=digit_canvas",), "reads gray levels; data=digit_canvas gives images without them"),
        (("head.tied=true",), "table of 18 token ids, but the head has 17 outputs"),
        (("tokenizer.order=spiral",), "spiral"),
    ],
)
def test_what_does_not_fit_is_refused(overrides: tuple[str, ...], expected: str) -> None:
    families = {override.partition("=")[0] for override in overrides}
    issues = check(
        compose([*(argument for argument in GENERATE if argument.partition("=")[0] not in families), *overrides])
    )
    assert any(expected in str(issue) for issue in issues), [str(issue) for issue in issues]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (DataSpec("image", (3, 32, 32), levels=256), "3 x 32 x 32 = 3,072 in all"),
        (DataSpec("image", (1, 224, 224), levels=256), "224 x 224 = 50,176 tokens"),
        (DataSpec("image", (1, 8, 8), levels=256), "condition=class needs images with classes"),
    ],
)
def test_images_that_do_not_fit_are_refused(data: DataSpec, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Levels(condition="class").spec(data)


def test_more_tokens_than_an_image_has_are_refused() -> None:
    model = decoder(Levels(), spec())
    with pytest.raises(ValueError, match="at most 12 tokens"):
        model(torch.zeros(1, 13, dtype=torch.long))
