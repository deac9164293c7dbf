"""Mixtures of data sets: the shares of parts, what a batch holds, evaluation part by part, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Split, TextTokenizer
from blockyard.data.mixture import Mixture
from blockyard.data.splits.mixed import MixedOrder, MixedSplit, WeightCurve, apportioned
from blockyard.data.splits.order import EvalOrder, eval_indices, eval_steps, take
from blockyard.data.table import Table
from blockyard.evaluate.loop import evaluate
from tests.support.every import every
from tests.support.tiny import ONE_LAYER, configured

TEXTS = ("a.txt", "abc ace bed " * 60), ("b.txt", "xyz \N{GREEK SMALL LETTER ALPHA}\N{GREEK SMALL LETTER BETA} " * 25)
TWO_TEXTS = (
    *("data=mixture", "data.parts={first: text_file, second: text_file}", "tokenizer=char", "position=rope"),
    *("data.members.first.path=a.txt", "data.members.second.path=b.txt", "data.eval_batch_size=4"),
    *("data.members.first.context=8", "data.members.second.context=8", *ONE_LAYER, "logger=none", "trainer=cpu"),
)
NEXT_TOKEN = ("model=decoder", "head=token", "objective=next_token")
MASKED = ("model=encoder", "head=token", "objective=masked_token")


@pytest.fixture(autouse=True)
def texts() -> None:
    for name, text in TEXTS:
        Path(name).write_text(text)


def split_of(*counts: int, weights: WeightCurve | None = None) -> MixedSplit:
    components = Components(configured("data=digits")[0])
    whole = components.load().train

    class First:
        def __init__(self, count: int) -> None:
            self.count, self.batch = count, whole.batch

        def __len__(self) -> int:
            return self.count

    return MixedSplit({f"part{number}": First(count) for number, count in enumerate(counts)}, 1, weights)


CURVES = [
    WeightCurve((0.0,), ((0.7, 0.3),)),
    WeightCurve((0.0, 0.5), ((1.0, 0.0), (0.5, 0.5))),
    WeightCurve((0.2, 0.6, 0.8), ((5.0, 1.0, 1e-3), (0.0, 1.0, 2.0), (1.0, 0.0, 0.0))),
    WeightCurve((0.0,), ((0.001, 1.0, 1.0, 0.2),)),
]


def by_the_formula(curve: WeightCurve, share: float) -> list[float]:
    """Weights of sum one, interpolated by torch one part at a time."""
    weights = torch.tensor(curve.weights, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    points = torch.tensor(curve.points, dtype=torch.float64)
    after = int((points <= share).sum())
    if after in (0, len(points)):
        return weights[min(after, len(points) - 1)].tolist()
    there = (share - points[after - 1]) / (points[after] - points[after - 1])
    return torch.lerp(weights[after - 1], weights[after], there).tolist()


@pytest.mark.parametrize("curve", CURVES)
def test_counts_follow_the_weights(curve: WeightCurve) -> None:
    """After every step each part has had the sum of its weights, give or take a sample; sizes of batches may change."""
    parts, total = len(curve.weights[0]), 40
    sizes = [4 + step % 3 for step in range(total)]
    order = MixedOrder(split_of(*[9] * parts), curve, seed=1, total=total, samples=sizes.__getitem__)
    due = [0.0] * parts
    for step in range(total):
        weights = by_the_formula(curve, (step + 0.5) / total)
        assert sum(weights) == pytest.approx(1)
        due = [old + sizes[step] * weight for old, weight in zip(due, weights, strict=True)]
        drawn = list(order.drawn(step + 1).values())
        assert sum(drawn) == sum(sizes[: step + 1])
        assert max(abs(a - b) for a, b in zip(due, drawn, strict=True)) < 1
        before = list(order.drawn(step).values())
        assert every(new >= old for old, new in zip(before, drawn, strict=True))
        assert every(new == old or weight for old, new, weight in zip(before, drawn, weights, strict=True))


def test_apportioned_takes_back_where_too_many_are_due() -> None:
    assert apportioned([5.8, -0.9, -0.9], [1.0, 0.0, 0.0], 4) == [4, 0, 0]
    assert apportioned([0.5, 0.5, 1.0], [0.25, 0.25, 0.5], 2) in ([1, 0, 1], [0, 1, 1])


def test_each_part_goes_through_all_its_samples() -> None:
    """In every turn each sample once, and in another order; the samples of a part do not depend on the other parts."""
    split = split_of(5, 11)
    order = MixedOrder(split, WeightCurve((0.0,), ((1.0, 1.0),)), seed=3, total=20, samples=lambda step: 4)
    numbers = torch.cat([order(step) for step in range(20)])
    epochs, samples = numbers // len(split), numbers % len(split)
    small = samples < 5
    assert [sorted(samples[small & (epochs == epoch)].tolist()) for epoch in range(8)] == [list(range(5))] * 8
    assert len({tuple(samples[small & (epochs == epoch)].tolist()) for epoch in range(8)}) > 3
    assert sorted(samples[~small & (epochs == 0)].tolist()) == list(range(5, 16))
    other = MixedOrder(split_of(5, 30), WeightCurve((0.0,), ((1.0, 1.0),)), seed=3, total=20, samples=lambda step: 4)
    of_other = torch.cat([other(step) for step in range(20)])
    assert sorted((of_other % 35)[of_other % 35 < 5].tolist()) == sorted(samples[small].tolist())
    assert torch.equal(MixedOrder(split, order.curve, seed=3, total=20, samples=order.samples)(13), order(13))
    assert not torch.equal(MixedOrder(split, order.curve, seed=4, total=20, samples=order.samples)(13), order(13))


@pytest.mark.parametrize("objective", [NEXT_TOKEN, MASKED], ids=["next_token", "masked_token"])
def test_a_part_is_evaluated_as_if_it_were_alone(objective: tuple[str, ...]) -> None:
    """The same model over each part's own split, by loops over the parts: equal to the last digit, in any world."""
    components = Components(configured(*TWO_TEXTS, *objective)[0])
    splits = components.load()
    model, split = components.model(0), splits.validation
    assert isinstance(split, MixedSplit)
    settings = {"batch_size": 4, "slices": components.data.spec.slices}
    values = evaluate(model, split, components.objective, **settings)
    for name, part in split.parts.items():
        alone = evaluate(model, part, components.objective, batch_size=4)
        assert {key: values[f"{key}@{name}"] for key in alone} == alone
    sizes = [len(part) for part in split.parts.values()]
    assert sizes[0] != sizes[1]
    if objective is NEXT_TOKEN:  # every sample has as many targets, and the texts different bytes a token
        losses = [values[f"loss@{name}"] for name in split.parts]
        mean = sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)
        assert values["loss"] == pytest.approx(mean, rel=1e-6)
        nats = values["loss"] * sum(sizes) * 8
        num_bytes = sum(size * 8 * part.bytes_per_token for size, part in zip(sizes, split.parts.values(), strict=True))
        assert values["bits_per_byte"] == pytest.approx(nats / num_bytes / 0.6931471805599453, rel=1e-6)


def test_parts_are_evaluated_in_turns() -> None:
    """Each sample once over all processes, and any number of batches has its share of every part."""
    split = split_of(10, 21)
    orders = [EvalOrder(split, 4, rank, 2) for rank in range(2)]
    batches = [torch.cat([order(step) for order in orders]) for step in range(len(orders[0]))]
    assert sorted(i for batch in batches for i in batch.tolist() if i >= 0) == list(range(31))
    of_first = [bool((batch[batch >= 0] < 10).all()) for batch in batches]
    assert every(first or bool((batch[batch >= 0] >= 10).all()) for first, batch in zip(of_first, batches, strict=True))
    assert list(itertools.accumulate(of_first))[2] == 1
    assert orders[0].samples(None) == 31
    assert orders[0].samples(1) == 4
    plain: Split = split.parts["part1"]
    for step in range(eval_steps(21, 4)):
        assert torch.equal(EvalOrder(plain, 4)(step), eval_indices(step, num_samples=21, batch_size=4))


def test_one_tokenizer_of_all_texts() -> None:
    """Its characters are those of both texts, and each part is what it is alone with that tokenizer."""
    components = Components(configured(*TWO_TEXTS, *NEXT_TOKEN)[0])
    data, tokenizer = components.data, components.tokenizer
    assert isinstance(data, Mixture)
    assert isinstance(tokenizer, TextTokenizer)
    splits = components.load()
    characters = tokenizer.state()["symbols"]
    assert set(characters) == set("abcde xyz\N{GREEK SMALL LETTER ALPHA}\N{GREEK SMALL LETTER BETA}")
    alone = data.members["second"].load(tokenizer).train
    assert isinstance(splits.train, MixedSplit)
    start = splits.train.starts[1]
    order = torch.tensor([0, 3, 1])
    batch = take(splits.train, order + start, None)
    assert torch.equal(batch.inputs, alone.batch(order, None).inputs)
    assert batch.slice is not None
    assert batch.slice.tolist() == [1, 1, 1]
    first = data.fingerprint()
    Path("b.txt").write_text(TEXTS[1][1] + "x")
    again = Components(configured(*TWO_TEXTS, *NEXT_TOKEN)[0])
    again.load()
    assert again.data.fingerprint() != first


def test_lines_of_different_lengths_are_padded() -> None:
    """Windows of 9 token ids beside lines: each sample is what its own part gives."""
    Path("b.txt").write_text("xyz\nx y\n" * 40)
    config = configured(*TWO_TEXTS, *NEXT_TOKEN, "data.members.second.sample=line")[0]
    split = Components(config).load().train
    assert isinstance(split, MixedSplit)
    order = torch.tensor([split.starts[1], 0, split.starts[1] + 2])
    batch = split.batch(order, None)
    assert batch.lengths is not None
    for row, index in enumerate(order.tolist()):
        name = "second" if index >= split.starts[1] else "first"
        own = split.parts[name].batch(
            torch.tensor([index % split.starts[1] if name == "first" else index - split.starts[1]]), None
        )
        length = int(batch.lengths[row])
        assert length == own.inputs.shape[1]
        assert torch.equal(batch.inputs[row, :length], own.inputs[0])
    assert split.lengths.tolist()[0] == 9


RECALL = (
    *("data=mixture", "data.parts={easy: associative_recall, hard: associative_recall}", "tokenizer=symbols"),
    *("data.members.easy.pairs=2", "model=decoder", "head=token", "objective=answer", "logger=none", "trainer=cpu"),
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.weights={easy: 1}"], "the parts are easy, hard, and each needs a weight"),
        (["data.weights={easy: 0, hard: 0}"], "all weights are 0"),
        (["data.weights={easy: 1, hard: 2}", "data.temperature=2"], "use one"),
        (["data.schedule=[{at: 0.5, weights: {easy: 1, hard: 1}}]"], "expected two or more, increasing"),
        (["data.members.easy.pairs=40"], "easy: data.pairs=40 needs data.length=64"),
        (["data.members.easy.symbols=40"], "vocabulary is 40 in easy and 256 in hard"),
        (["data.members.easy.batch_size=4"], "data.members.easy.batch_size=4 has no effect"),
        (["data.parts={easy: associative_recall, hard: associative_recal}"], "neither a data nor one of data.members"),
        (["data.parts={easy: associative_recall, hard: co2}"], "hard has series"),
        (["data.parts={easy: associative_recall, hard: translation}"], "hard has a source beside each sample"),
        (["data.parts={easy: associative_recall, hard: digits_views}"], "hard has views"),
        (["trainer.sampling=balanced"], "use trainer.sampling=random"),
        (["data.members.third._target_=blockyard.data.copy.Copy"], "data.members.third is not in data.parts"),
    ],
)
def test_refusals(overrides: list[str], message: str) -> None:
    issues = [str(each) for each in check(compose([*RECALL, *overrides]))]
    assert len([each for each in issues if message in each]) == 1, issues


def test_token_ids_of_images_are_refused() -> None:
    overrides = ("data=mixture", "data.parts={a: digits, b: digits}", "tokenizer=levels", *NEXT_TOKEN, "logger=none")
    with pytest.raises(ValueError, match="does not make token ids of images"):
        Components(configured(*overrides)[0]).load()


def test_a_message_names_the_option_of_the_part() -> None:
    Path("b.txt").unlink()
    (issue,) = check(compose([*TWO_TEXTS, *NEXT_TOKEN]))
    assert "second: nothing at" in str(issue)
    assert "set data.members.second.path=FILE" in str(issue)


def test_parts_of_other_classes_are_refused(tmp_path: Path) -> None:
    """Class 1 would be b in one part and z in the other."""
    members = {}
    for name, labels in (("one", "ab"), ("two", "bz"), ("three", "ab")):
        (tmp_path / f"{name}.csv").write_text(
            "text,label\n" + "".join(f"word {n},{labels[n % 2]}\n" for n in range(40))
        )
        members[name] = Table(path=str(tmp_path / f"{name}.csv"))
    with pytest.raises(ValueError, match=r"the classes of parts differ: a, b; b, z; parts need the same"):
        _ = Mixture(parts=("one", "two"), members={name: members[name] for name in ("one", "two")}).spec
    assert Mixture(parts=("one", "three"), members={name: members[name] for name in ("one", "three")}).spec.classes == 2


def test_one_part_is_no_mixture() -> None:
    with pytest.raises(ValueError, match="expected two or more different names"):
        Mixture(
            parts=("code",),
            members={"code": Components(configured("data=code", "tokenizer=char", *NEXT_TOKEN)[0]).data},
        )
