"""Synthetic tasks: each rule checked by a plain loop; disjoint splits; the same sequences on every machine."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch

from blockyard.config.build import Components
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.untrusted.targets import locate
from blockyard.contracts import Batch, DataSpec, Splits
from blockyard.data.associative_recall import AssociativeRecall
from blockyard.data.compression import Compression
from blockyard.data.context_recall import ContextRecall
from blockyard.data.copy import Copy
from blockyard.data.induction import Induction
from blockyard.data.listops import CLOSE, DIGITS, OPERATORS, ListOps
from blockyard.data.long_agreement import ARE, COMMA, IS, WHO, WORDS, LongAgreement
from blockyard.data.memorisation import Memorisation
from blockyard.data.needle import Needle
from blockyard.data.parity import Parity
from blockyard.data.selective_copy import SelectiveCopy
from blockyard.data.splits import synthetic
from blockyard.data.splits.synthetic import SyntheticTask
from blockyard.data.state_tracking import Group, StateTracking, products_of
from blockyard.objective.answer import Answer
from blockyard.tokenizer.symbols import Symbols
from tests.support.every import every

FEW_SAMPLES = {"samples": 300, "eval_samples": 60}


EVERY = [
    pytest.param(locate(choice.target), id=name)
    for name, choice in catalog.choices("data").items()
    if issubclass(locate(choice.target), SyntheticTask)
]


Rule = Callable[[list[int]], list[int] | int]  # the answers that follow from a sequence's token ids


def load(task: SyntheticTask) -> Splits:
    return task.load(Symbols())


def samples_of(task: SyntheticTask, part: int = 0) -> list[tuple[list[int], list[int] | int]]:
    split = load(task)[part]
    batch = split.batch(torch.arange(len(split)), None)
    lengths = batch.lengths.tolist() if batch.lengths is not None else [batch.inputs.shape[1]] * len(batch)
    return [(ids[:n], t) for ids, t, n in zip(batch.inputs.tolist(), batch.target.tolist(), lengths, strict=True)]


def assert_follows(task: SyntheticTask, rule: Rule) -> None:
    for ids, target in samples_of(task):
        assert rule(ids) == target


def targets(answers: dict[int, int], length: int) -> list[int]:
    return [answers.get(position, Batch.ignore) for position in range(length)]


def recall(ids: list[int], pairs: int = 4) -> list[int]:
    table = dict(zip(ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2], strict=True))
    return targets({n: table[s] for n, s in enumerate(ids) if n >= 2 * pairs and s in table}, len(ids))


def agreement(ids: list[int]) -> list[int]:
    subject = ids[ids.index(WHO) - 2]
    assert ids[-1] == COMMA == ids[ids.index(WHO) - 1]
    return targets({len(ids) - 1: ARE if (subject - len(WORDS)) % 2 else IS}, len(ids))


def copied(alphabet: int) -> Rule:
    def rule(ids: list[int]) -> list[int]:
        kept = [token_id for token_id in ids if token_id < alphabet]
        return targets({len(ids) - len(kept) + n: token_id for n, token_id in enumerate(kept)}, len(ids))

    return rule


def value(ids: list[int]) -> int:
    """A list's value, by recursion."""

    def read(start: int) -> tuple[int, int]:
        if ids[start] < DIGITS:
            return ids[start], start + 1
        name, arguments, start = OPERATORS[ids[start] - DIGITS], [], start + 1
        while ids[start] != CLOSE:
            result, start = read(start)
            arguments.append(result)
        assert 2 <= len(arguments) <= 5
        worth = {"MAX": max, "MIN": min, "MED": lambda a: int(statistics.median(a)), "SM": lambda a: sum(a) % 10}
        return worth[name](arguments), start + 1

    result, end = read(0)
    assert end == len(ids)
    return result


def recalled(keys: int, values: int, task: ContextRecall) -> Rule:
    """A run of key tokens, then of value tokens, sets; a run of key tokens, then of GOs, asks."""
    go, blank = task.vocabulary - 2, task.vocabulary - 1

    def kind(token_id: int) -> str:
        if token_id < keys:
            return "key"
        if token_id < keys + values:
            return "value"
        return {go: "go", blank: "blank"}.get(token_id, "noise")

    def rule(ids: list[int]) -> list[int]:
        table, answers, key = {}, {}, ()
        for name, run in itertools.groupby(enumerate(ids), lambda pair: kind(pair[1])):
            run = list(run)
            tokens = tuple(token_id for _, token_id in run)
            if name == "key":
                key = tokens
            elif name == "value":
                table[key] = tokens
            elif name == "go":
                assert len(table[key]) == len(run)
                answers |= {position: value for (position, _), value in zip(run, table[key], strict=True)}
        return targets(answers, len(ids))

    return rule


def cycles(permutation: tuple[int, ...]) -> int:
    left, count = set(range(len(permutation))), 0
    while left:
        place, count = left.pop(), count + 1
        while permutation[place] in left:
            place = permutation[place]
            left.remove(place)
    return count


def tracked(name: str) -> Rule:
    """Each place is moved by one element after the other; even permutations by their cycles."""
    positions = range(int(name[1]))
    listed = sorted(
        p for p in itertools.permutations(positions) if name[0] == "s" or (len(positions) - cycles(p)) % 2 == 0
    )

    def rule(ids: list[int]) -> list[int]:
        now, states = list(positions), []
        for token_id in ids:
            now = [listed[token_id][place] for place in now]
            states.append(listed.index(tuple(now)))
        return states

    return rule


def summed(modulus: int) -> Rule:
    return lambda ids: [sum(ids[: n + 1]) % modulus for n in range(len(ids))]


def induced(ids: list[int]) -> list[int]:
    assert ids.count(16) == 2
    return targets({len(ids) - 1: ids[ids.index(16) + 1]}, len(ids))


def needle_answer(ids: list[int]) -> list[int]:
    """By the text: the number after the first "of NAME is", where the question is about NAME."""
    text = " ".join(map(Needle().token_name, ids))
    name = re.search(r"what is the number of (\w+) ( ?\?)+$", text).group(1)
    (number,) = re.findall(rf"the number of {name} is ([\d ]+?) \.", text)
    digits = [int(digit) + Needle().vocabulary - 10 for digit in number.split()]
    return targets({len(ids) - len(digits) + n: digit for n, digit in enumerate(digits)}, len(ids))


def memorised(task: Memorisation) -> Rule:
    seen: dict[int, int] = {}

    def rule(ids: list[int]) -> list[int]:
        """The same value for a key whatever the sequence, read off the table as a list."""
        table = task.table.tolist()
        answers = {n + 1: seen.setdefault(ids[n], table[ids[n]]) for n in range(0, len(ids), 2)}
        assert every(answers[n + 1] == table[ids[n]] for n in range(0, len(ids), 2))
        return targets(answers, len(ids))

    return rule


def kept(alphabet: int) -> Rule:
    def rule(ids: list[int]) -> list[int]:
        assert ids.index(alphabet) == len(ids) - 1
        return [*ids[:-1], Batch.ignore]

    return rule


HARDER = [
    ContextRecall(length=40, **FEW_SAMPLES),
    ContextRecall(length=64, noise=6, **FEW_SAMPLES),
    ContextRecall(length=128, motif=3, keys=8, **FEW_SAMPLES),
    ContextRecall(length=64, compositional=True, pairs=9, **FEW_SAMPLES),
    ContextRecall(length=64, updates=4, values=3, **FEW_SAMPLES),
    ContextRecall(length=128, motif=2, noise=3, updates=2, **FEW_SAMPLES),
]
FACTS = Memorisation(keys=40, values=30, **FEW_SAMPLES)
RULES = [
    *((task, recalled(task.keys, task.values, task)) for task in HARDER),
    *((StateTracking(group=name, **FEW_SAMPLES), tracked(name)) for name in ("s3", "a4", "s4", "a5", "s5")),
    (StateTracking(group="a5", draw="generators", **FEW_SAMPLES), tracked("a5")),
    (StateTracking(group="s4", draw="swaps", **FEW_SAMPLES), tracked("s4")),
    (StateTracking(group="s5", ask="row", **FEW_SAMPLES), lambda ids: tracked("s5")(ids)[-1]),
    (StateTracking(group="cyclic", modulus=7, **FEW_SAMPLES), summed(7)),
    (StateTracking(group="cyclic", draw="generators", **FEW_SAMPLES), summed(5)),
    (Compression(length=12, alphabet=5, **FEW_SAMPLES), kept(5)),
    (Induction(length=24, **FEW_SAMPLES), induced),
    (Needle(length=60, **FEW_SAMPLES), needle_answer),
    (Needle(length=127, needles=5, digits=4, **FEW_SAMPLES), needle_answer),
    (FACTS, memorised(FACTS)),
    (AssociativeRecall(pairs=4, length=40, symbols=32, **FEW_SAMPLES), recall),
    (Copy(length=30, **FEW_SAMPLES), copied(8)),
    (SelectiveCopy(length=40, **FEW_SAMPLES), copied(16)),
    (Parity(length=20, **FEW_SAMPLES), lambda ids: sum(ids) % 2),
    (Parity(length=20, ask="each", **FEW_SAMPLES), lambda ids: [sum(ids[: n + 1]) % 2 for n in range(len(ids))]),
    (LongAgreement(length=24, **FEW_SAMPLES), agreement),
    (LongAgreement(length=24, clauses=5, **FEW_SAMPLES), agreement),
    (ListOps(length=40, **FEW_SAMPLES), value),
]


@pytest.mark.parametrize(("task", "rule"), RULES, ids=lambda v: type(v).__name__ if not callable(v) else "")
@pytest.mark.sampled(2)
def test_every_target_follows_from_its_sequence(task: SyntheticTask, rule: Rule) -> None:
    assert_follows(task, rule)


def test_a_wrong_answer_is_caught() -> None:
    class Late(Copy):
        def generate(self, random: synthetic.SampleRandom) -> synthetic.TaskBatch:
            inputs, target, *_ = super().generate(random)
            return synthetic.TaskBatch(inputs, target.roll(1, 1))

    with pytest.raises(AssertionError):
        assert_follows(Late(length=30, **FEW_SAMPLES), copied(8))


def test_every_task_has_a_rule_here() -> None:
    assert {type(task) for task, _ in RULES} == {each.values[0] for each in EVERY}
    groups = {task.group for task, _ in RULES if isinstance(task, StateTracking)}
    assert groups == set(get_args(Group))


def test_the_order_of_a_product_matters() -> None:
    """Planted: the last element acts first, which is another product in every group that is not commutative."""

    class Backwards(StateTracking):
        def generate(self, random: synthetic.SampleRandom) -> synthetic.TaskBatch:
            inputs, *_ = super().generate(random)
            states = [inputs[:, 0]]
            for step in range(1, inputs.shape[1]):
                states.append(products_of(self.group)[states[-1], inputs[:, step]])
            return synthetic.TaskBatch(inputs, torch.stack(states, 1))

    with pytest.raises(AssertionError):
        assert_follows(Backwards(group="s3", **FEW_SAMPLES), tracked("s3"))


@pytest.mark.parametrize("group", get_args(Group))
def test_two_generators_give_the_whole_group(group: str) -> None:
    task = StateTracking(group=group, draw="generators", length=200, samples=50, eval_samples=10)
    sequences = load(task).train.sequences
    assert sequences.target.unique().numel() == task.elements
    assert sequences.inputs.unique().numel() == 2


@pytest.mark.parametrize(("group", "swaps"), [("s3", 3), ("s4", 6), ("s5", 10)])
def test_swaps_exchange_two_places_and_give_the_whole_group(group: str, swaps: int) -> None:
    task = StateTracking(group=group, draw="swaps", length=200, samples=50, eval_samples=10)
    sequences = load(task).train.sequences
    names = {task.token_name(token_id) for token_id in sequences.inputs.unique().tolist()}
    assert sorted(sum(int(to) != place for place, to in enumerate(name)) for name in names) == [0] + [2] * swaps
    assert sequences.target.unique().numel() == task.elements
    with pytest.raises(ValueError, match=r"draw=swaps is for data.group=s3, s4 or s5; group=a5"):
        StateTracking(group="a5", draw="swaps")


def test_an_update_is_another_value_and_neither_half_of_a_key_tells_it() -> None:
    (ids, _), *_ = samples_of(HARDER[4])
    shown = [ids[n : n + 2] for n in range(64 - 8 - 16, 64 - 8, 2)]
    first, second = dict(shown[:4]), dict(shown[4:])
    assert first.keys() == second.keys()
    assert every(first[key] != second[key] for key in first)
    (ids, _), *_ = samples_of(HARDER[3])
    keys = {tuple(ids[n : n + 2]) for n in range(64 - 9 * 6, 64 - 9 * 3, 3)}
    assert len(keys) == 9
    assert [len({key[half] for key in keys}) for half in (0, 1)] == [3, 3]


def test_slices_of_needles_are_by_depth() -> None:
    task = Needle(length=220, needles=3, samples=800, eval_samples=10)
    split = load(task).train
    batch = split.batch(torch.arange(800), None)
    for ids, part in zip(batch.inputs.tolist(), batch.slice.tolist(), strict=True):
        text = " ".join(map(task.token_name, ids))
        name = re.search(r"of (\w+) \?", text).group(1)
        start = text[: text.index(f"the number of {name} is")].count(" ")
        assert part == 4 * start // (220 - 9)
    assert batch.slice.bincount(minlength=4).min() > 120
    assert task.spec.slices == ("first_quarter", "second_quarter", "third_quarter", "last_quarter")


def assert_disjoint(splits: Splits) -> None:
    seen = [{tuple(ids) for ids in part.sequences.inputs.tolist()} for part in splits]
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2], "a sequence is in two splits"


@pytest.mark.parametrize("task_class", EVERY)
def test_splits_are_disjoint_and_of_the_given_size(task_class: type[SyntheticTask]) -> None:
    task = task_class(**FEW_SAMPLES)
    splits = load(task)
    assert [len(part) for part in splits] == [300, 60, 60]
    assert_disjoint(splits)
    assert task.spec.vocabulary > max(int(part.sequences.inputs.max()) for part in splits)


def test_splits_of_short_sequences_are_disjoint_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each split has its own of the 1,024 bit sequences, however often they are drawn."""
    short = {"length": 10, "samples": 2000, "eval_samples": 200}
    assert_disjoint(load(Parity(**short)))
    with pytest.raises(ValueError, match="too few different sequences"):
        load(Parity(length=1, **FEW_SAMPLES))
    # The planted bug: a sequence's number decides its split, not its content.
    monkeypatch.setattr(synthetic, "hash_sequences", lambda inputs: torch.arange(len(inputs)) % 10 / 10.0)
    with pytest.raises(AssertionError, match="in two splits"):
        assert_disjoint(load(Parity(**short)))


@pytest.mark.parametrize("task_class", EVERY)
@pytest.mark.sampled(2)
def test_sequences_are_a_function_of_the_seed(task_class: type[SyntheticTask]) -> None:
    one, two, other = task_class(**FEW_SAMPLES), task_class(**FEW_SAMPLES), task_class(data_seed=1, **FEW_SAMPLES)
    parts, again = load(one), load(two)
    load(other)
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()
    order = torch.tensor([5, 0, 17])
    for left, right in zip(parts, again, strict=True):
        torch.testing.assert_close(left.batch(order, 3).inputs, right.batch(order, None).inputs)
    # A smaller split is the start of a larger one.
    fewer = load(task_class(samples=50, eval_samples=60)).train.sequences.inputs
    torch.testing.assert_close(fewer, parts.train.sequences.inputs[:50])


# A machine with other fingerprints would train on other sequences.
FINGERPRINTS = {
    "AssociativeRecall": "ea12e35370038dd3",
    "Compression": "85eaed9823813dbe",
    "ContextRecall": "8713dc2b71fcba43",
    "Copy": "f4505a88fd739f68",
    "Induction": "302c820f5d22b505",
    "ListOps": "68a01461b9779845",
    "LongAgreement": "ce6323ea8e056075",
    "Memorisation": "0be2375cef6e2cb7",
    "Needle": "02171bfb2665a912",
    "Parity": "04f5be5cb62f7136",
    "SelectiveCopy": "c1eb89bd5a086d43",
    "StateTracking": "8698e4b5748acb36",
}


@pytest.mark.parametrize("task_class", EVERY)
def test_sequences_are_the_same_on_every_machine(task_class: type[SyntheticTask]) -> None:
    task = task_class(**FEW_SAMPLES)
    load(task)
    assert task.fingerprint()[:16] == FINGERPRINTS[task_class.__name__]


def test_distances_of_recall_queries_follow_the_power_law() -> None:
    task = AssociativeRecall(pairs=4, samples=4000, eval_samples=10)
    target = load(task).train.sequences.target
    share = (target != Batch.ignore).float().mean(0)[8::2]  # by gap, from 1
    weights = np.arange(1, 29) ** (0.01 - 1.0)
    random = np.random.default_rng(0)
    drawn = [random.choice(28, 4, replace=False, p=weights / weights.sum()) for _ in range(4000)]
    expected = torch.from_numpy(np.bincount(np.concatenate(drawn), minlength=28) / 4000).float()
    torch.testing.assert_close(share, expected, rtol=0, atol=0.04)
    even = AssociativeRecall(pairs=4, power=1.0, samples=4000, eval_samples=10)
    flat = (load(even).train.sequences.target != Batch.ignore).float().mean(0)[8::2]
    torch.testing.assert_close(flat, torch.full_like(flat, 4 / 28), rtol=0, atol=0.03)
    assert ((target != Batch.ignore).sum(1) == 4).all()


def test_classes_are_fair() -> None:
    target = load(Parity(samples=4000, eval_samples=10)).train.sequences.target
    torch.testing.assert_close(target.float().mean(), torch.tensor(0.5), rtol=0, atol=0.03)
    last = load(LongAgreement(samples=4000, eval_samples=10)).train.sequences.target[:, -1]
    torch.testing.assert_close((last == IS).float().mean(), torch.tensor(0.5), rtol=0, atol=0.03)
    values = load(ListOps(samples=3000, eval_samples=10)).train.sequences.target.bincount(minlength=10)
    assert values.min() > 150


def test_token_ids_pass_through() -> None:
    tokens = Symbols().spec(AssociativeRecall().spec)
    assert (tokens.grid, tokens.vocabulary, tokens.variable) == ((64,), 256, False)
    assert Symbols().spec(ListOps().spec).variable
    with pytest.raises(ValueError, match="the data gives texts"):
        Symbols().spec(DataSpec("text", (8,)))


def test_ignored_targets_do_not_count() -> None:
    objective, prediction = Answer(), torch.randn(2, 3, 7)
    target = torch.tensor([[-100, 4, -100], [2, -100, 6]])
    logs = prediction.log_softmax(-1)
    expected = -(logs[0, 1, 4] + logs[1, 0, 2] + logs[1, 2, 6]) / 3
    torch.testing.assert_close(objective.loss(prediction, target), expected)
    guess = torch.tensor([[0, 4, 0], [2, 0, 5]])
    metrics = objective.metrics()
    for metric in metrics.values():
        metric.update(torch.nn.functional.one_hot(guess, 7).float(), target)
    torch.testing.assert_close(metrics["accuracy"].compute(), torch.tensor(2 / 3))
    torch.testing.assert_close(metrics["exact"].compute(), torch.tensor(0.5))
    assert objective.best() == ("accuracy", "max")


def test_the_mask_is_wired_through_the_plan() -> None:
    plan = Components(compose(["logger=none", "experiment=bert_code", "tokenizer=byte"]).config)
    assert (plan.tokens().vocabulary, plan.tokens().mask, plan.context().outputs) == (257, 256, 257)
    assert plan.meta_model().embedder.table.shape[0] == 257
    plain = Components(compose(["logger=none", "experiment=gpt_code", "tokenizer=byte"]).config)
    assert (plain.tokens().vocabulary, plain.tokens().mask) == (256, None)
