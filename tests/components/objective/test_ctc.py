"""CTC as an objective: what counts, what is left out, error rates, and the rules about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torchmetrics.text
from torch import Tensor
from torch.nn import functional as F

from blockyard.config.check import reasons
from blockyard.config.compose import compose
from blockyard.contracts import Batch, DataSpec, Splits, TokenSpec
from blockyard.data.dial_tones import DialTones
from blockyard.data.splits.order import take
from blockyard.data.splits.recordings import Recording, RecordingSplit
from blockyard.errors import UserError
from blockyard.objective.ctc import CTC, Labels
from blockyard.tokenizer.char import Char

START, END = 5, 6
DATA = DataSpec("text", (8,), variable=True, source=DataSpec("audio", (40,), variable=True, rate=8000))
TOKENS = TokenSpec((8,), variable=True, vocabulary=7, start=START, end=END)
SOURCE = TokenSpec((10,), variable=True, shrink=((4, 4, 0),))


def objective() -> CTC:
    task = CTC()
    task.tokens(TOKENS)
    task.source_tokens(SOURCE)
    assert task.outputs(DATA, TOKENS) == START + 1
    return task


def batch() -> Batch:
    """Four texts, of which the last needs five tokens, a blank between its repeats, and has four."""
    inputs = torch.tensor([[5, 1, 2, 6, 0], [5, 3, 6, 0, 0], [5, 1, 4, 2, 6], [5, 1, 1, 2, 2]])
    inputs = torch.cat([inputs, torch.tensor([[0], [0], [0], [6]])], 1)
    lengths = torch.tensor([4, 3, 5, 6])
    return Batch(inputs, lengths=lengths, source=torch.zeros(4, 40), source_lengths=torch.tensor([40, 9, 24, 20]))


def logits(tokens: int = 10, seed: int = 0) -> Tensor:
    return torch.randn(4, tokens, START + 1, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def test_labels_are_the_text_without_its_ends() -> None:
    ready = objective().ready(batch())
    assert isinstance(ready.target, Labels)
    assert set(ready.facts()) == {"inputs", "lengths"}
    assert ready.target.tokens.tolist() == [10, 2, 6, 5]
    assert ready.target.labels.tolist() == [[1, 2, -100, -100], [3, -100, -100, -100], [1, 4, 2, -100], [-100] * 4]
    assert objective().count(ready) == 6
    longer = replace(batch(), source_lengths=torch.tensor([40, 9, 24, 24]))
    assert objective().ready(longer).target[0][3].tolist() == [1, 1, 2, 2]  # type: ignore[index]


def test_the_loss_is_that_of_torch_over_the_labels_that_count() -> None:
    ready, prediction = objective().ready(batch()), logits()
    loss = objective().loss(prediction, ready.target)
    samples = [([1, 2], 10), ([3], 2), ([1, 4, 2], 6)]
    nats = [
        F.ctc_loss(
            prediction[row, :count, None].log_softmax(2),
            torch.tensor([labels]),
            torch.tensor([count]),
            torch.tensor([len(labels)]),
            blank=START,
            reduction="sum",
        )
        for row, (labels, count) in enumerate(samples)
    ]
    torch.testing.assert_close(loss, sum(nats) / 6)  # type: ignore[arg-type]
    loss.backward()
    assert prediction.grad is not None
    assert prediction.grad.isfinite().all()
    assert prediction.grad[3].abs().max() == 0
    assert prediction.grad[1, 2:].abs().max() == 0


def test_a_batch_without_labels_has_a_loss_of_zero() -> None:
    ready = objective().ready(replace(batch(), source_lengths=torch.tensor([3, 0, 4, 4])))
    prediction = logits()
    loss = objective().loss(prediction, ready.target)
    loss.backward()
    assert loss.item() == 0
    assert prediction.grad is not None
    assert prediction.grad.abs().max() == 0


def test_sources_that_are_too_short_are_counted_before_training() -> None:
    task, tokenizer, sound = objective(), Char(), torch.zeros(9, dtype=torch.int16)
    tokenizer.fit(["aab"])
    recordings = [Recording("long", sound.repeat(4), "aab"), Recording("short", sound, "aab")]
    parts = (recordings, recordings[1:], recordings[:1])
    split, short, long = (RecordingSplit(part, tokenizer, (START, END)) for part in parts)
    assert split.least_tokens.tolist() == [4, 4]
    assert list(task.remarks(Splits(split, split, long))) == [
        f"1 of 2 {name} sources have fewer tokens than an alignment of their labels, and do not count"
        for name in ("train", "validation")
    ]
    with pytest.raises(UserError, match=r"1 of 1 test sources have fewer tokens .* a source_tokenizer with more"):
        list(task.remarks(Splits(split, split, short)))


def test_dummies_of_other_processes_do_not_count() -> None:
    data, task = DialTones(samples=8, eval_samples=3), objective()
    tokenizer = Char()
    splits = data.load(tokenizer)
    task.tokens(tokenizer.spec(data.spec))
    task.source_tokens(replace(SOURCE, shrink=((400, 400, 0),)))
    order = torch.tensor([0, 1, 2, -1])
    padded = task.ready(take(splits.test, order, None))
    assert isinstance(padded.target, Labels)
    assert padded.target.labels[3].tolist() == [-100] * padded.target.labels.shape[1]
    whole = task.ready(take(splits.test, order[:3], None))
    tokens, vocabulary = int(padded.target.tokens.max()), task.blank + 1
    prediction = torch.randn(4, tokens, vocabulary, generator=torch.Generator().manual_seed(0))
    values = []
    for each, size in ((padded, 4), (whole, 3)):
        metrics = task.metrics(splits.test)
        for metric in metrics.values():
            metric.update(prediction[:size], each.target)
        values.append({name: float(metric.compute()) for name, metric in metrics.items()})
    assert values[0] == pytest.approx(values[1])
    torch.testing.assert_close(task.loss(prediction, padded.target), task.loss(prediction[:3], whole.target))


def test_error_rates_are_those_of_torchmetrics() -> None:
    task = objective()
    ready, prediction = task.ready(batch()), logits(seed=4).detach()
    metrics = task.metrics(Texts())
    for metric in metrics.values():
        metric.update(prediction, ready.target)
    assert isinstance(ready.target, Labels)
    written = [Texts().decode(ids) for ids in task.transcribe(prediction, ready.target.tokens)][:3]
    references = ["a b", "c", "a da b"]
    for name, theirs in (("cer", torchmetrics.text.CharErrorRate()), ("wer", torchmetrics.text.WordErrorRate())):
        assert float(metrics[name].compute()) == pytest.approx(float(theirs(written, references)))
    assert float(metrics["empty"].compute()) == 0
    blank = F.one_hot(torch.full((4, 10), START), START + 1).float()
    silent = task.metrics(Texts())
    for metric in silent.values():
        metric.update(blank, ready.target)
    assert [float(silent[name].compute()) for name in ("cer", "wer", "empty")] == [1, 1, 1]


class Texts:
    """Decodes label 2 as a space and an a."""

    def decode(self, ids: list[int]) -> str:
        return "".join({1: "a", 2: " b", 3: "c", 4: " da"}.get(i, "?") for i in ids).strip()


def test_a_search_may_write_what_the_best_alignment_does_not() -> None:
    task, probabilities = objective(), torch.full((1, 2, START + 1), 1e-9)
    probabilities[..., 1], probabilities[..., START] = 0.4, 0.6
    made_of = task.transcribe(probabilities.log(), torch.tensor([2]))
    assert made_of == [[]]
    assert task.transcribe(probabilities.log(), torch.tensor([2]), beam=4) == [[1]]


WORDS = ("data=dial_tones", "tokenizer=char", "objective=ctc", "head=token", "model=encoder", "position=rope")


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (("source_tokenizer=log_mel",), None),
        (("source_tokenizer=waveform", "position=conv"), None),
        (("source_tokenizer=waveform", "model=decoder"), None),
        (("source_tokenizer=log_mel", "head=mean_pool"), "needs one prediction per token"),
        (("source_tokenizer=patch",), "source_tokenizer=patch reads images"),
        (("source_tokenizer=log_mel", "token_mixer=fourier"), "cannot ignore padding"),
        (("source_tokenizer=log_mel", "model=decoder", "position=conv"), "reads the neighbours of a token"),
        (("source_tokenizer=log_mel", "data=digits", "tokenizer=patch"), "objective=ctc"),
    ],
)
def test_rules_of_sound(overrides: tuple[str, ...], refused: str | None) -> None:
    issues = reasons(compose([*WORDS, *overrides, "logger=none"]))
    assert bool(issues) == (refused is not None), issues
    assert refused is None or any(refused in text for text in issues), issues
