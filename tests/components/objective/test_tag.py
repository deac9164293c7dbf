"""objective=tag and data=tagged_text: spans by a reference of conlleval's rules, pieces of words, files, and runs."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from blockyard.cli import main
from blockyard.contracts import Batch, DataSpec, TextTokenizer, TokenSpec
from blockyard.data import tagged_text
from blockyard.data.files.conll import Sentence, read_conll
from blockyard.data.splits.tagged import Cutter, TaggedSplit, bracketed
from blockyard.data.tagged_text import TaggedText
from blockyard.errors import UserError
from blockyard.evaluate.span_types import table_of_types
from blockyard.objective._tags import Tags
from blockyard.objective.tag import Tag
from blockyard.tokenizer.bpe import BPE
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.word import Word
from tests.support.engine_runs import run
from tests.support.every import every
from tests.support.tiny import ON_CPU, ONE_LAYER, steps

Span = tuple[int, int, str]
NAMES = ("O", *(f"{mark}-{kind}" for kind in ("LOC", "PER", "of_art") for mark in "BIESLU"))
IOB2 = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def reference_spans(names: list[str]) -> set[Span]:
    """The spans of a sentence by the two questions that conlleval asks at each word, one after the other."""
    mapped = [{"L": "E", "U": "S"}.get(name[0], name[0]) + name[1:] for name in names]
    before_mark, before_kind, start, spans = "O", "", 0, set()
    for index, name in enumerate([*mapped, "O"]):
        mark, _, kind = name.partition("-")
        ended = before_mark in ("E", "S") or (before_mark in ("B", "I") and mark in ("B", "S", "O"))
        ended = ended or (before_mark != "O" and before_kind != kind)
        begun = mark in ("B", "S") or (before_mark in ("E", "S", "O") and mark in ("E", "I"))
        begun = begun or (mark != "O" and before_kind != kind)
        if ended and before_mark != "O":
            spans.add((start, index, before_kind))
        if begun:
            start = index
        before_mark, before_kind = mark, kind
    return spans


def reference_scores(there: list[set[Span]], written: list[set[Span]], kind: str | None = None) -> tuple[float, ...]:
    def of_kind(spans: set[Span]) -> set[Span]:
        return {span for span in spans if kind in (None, span[2])}

    right = sum(len(of_kind(a) & of_kind(b)) for a, b in zip(there, written, strict=True))
    precision = right / max(sum(len(of_kind(b)) for b in written), 1)
    recall = right / max(sum(len(of_kind(a)) for a in there), 1)
    return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0


def objective(names: tuple[str, ...] = IOB2, **options: str) -> Tag:
    built = Tag(**options)
    data = DataSpec("text", (9,), variable=True, target="tags", classes=len(names), class_names=names)
    assert built.outputs(data, TokenSpec((9,), variable=True, vocabulary=50)) == len(names)
    return built


@pytest.mark.parametrize("names", [NAMES, IOB2])
def test_spans_and_their_scores_are_those_of_the_reference(names: tuple[str, ...]) -> None:
    """Of tags in any order, legal or not, between tokens without a target and padding, in two updates."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(len(names), (40, 15), generator=generator)
    logits = torch.randn(40, 15, len(names), generator=generator)
    right = torch.rand(40, 15, generator=generator) < 0.6
    logits = logits.masked_fill(torch.nn.functional.one_hot(target, len(names)).bool() & right[..., None], 9.0)
    counted = torch.rand(40, 15, generator=generator) < 0.7
    counted[3] = False  # a dummy
    metrics = objective(names).metrics()
    for part in (slice(0, 13), slice(13, None)):
        for metric in metrics.values():
            metric.update(logits[part], target.where(counted, Batch.ignore)[part])
    tags = Tags(names)
    there, written = (
        [[names[tag] for tag in row[keep].tolist()] for row, keep in zip(indices, counted, strict=True)]
        for indices in (target, logits.argmax(-1))
    )
    spans = [[reference_spans(row) for row in sample] for sample in (there, written)]
    assert sum(map(len, spans[0])) > 50
    for row, expected in zip(there, spans[0], strict=True):
        assert set(tags.spans_of([names.index(name) for name in row])) == expected
    for kind in (None, *tags.types):
        values = [metrics[s if kind is None else f"{s}@{kind}"].compute() for s in ("precision", "recall", "f1")]
        assert [float(value) for value in values] == pytest.approx(reference_scores(*spans, kind), rel=1e-6)
    macro = [reference_scores(*spans, kind)[2] for kind in tags.types]
    assert float(metrics["macro_f1"].compute()) == pytest.approx(sum(macro) / len(macro), rel=1e-6)
    hits = (logits.argmax(-1) == target)[counted]
    assert float(metrics["accuracy"].compute()) == pytest.approx(float(hits.double().mean()))


def test_the_first_example_of_the_rules() -> None:
    """I- behind O and behind another type begins a span; B- ends the one before."""
    names = ["B-PER", "I-PER", "O", "I-LOC", "I-LOC", "B-LOC", "I-PER"]
    spans = Tags(IOB2).spans_of([IOB2.index(name) for name in names])
    assert spans == [(0, 2, "PER"), (3, 5, "LOC"), (5, 6, "LOC"), (6, 7, "PER")]
    assert bracketed(tuple("abcdefg"), spans) == "[a b]PER c [d e]LOC [f]LOC [g]PER"


@pytest.mark.parametrize("marks", ["BIES", "BMES", "BMEW", "BILU"])
def test_every_scheme_of_spans_is_read(marks: str) -> None:
    begin, inside, end, single = (f"{mark}-PER" for mark in marks)
    names = ("O", begin, inside, end, single)
    sentence = (begin, inside, end, single, "O", begin, end, begin, inside, end)
    assert Tags(names).spans_of([names.index(name) for name in sentence]) == [
        (0, 3, "PER"), (3, 4, "PER"), (5, 7, "PER"), (7, 10, "PER"),
    ]  # fmt: skip
    assert Tags(names).types == ("PER",)


def test_a_type_without_spans_is_left_out_of_the_mean() -> None:
    metrics = objective().metrics()
    for metric in metrics.values():
        metric.update(torch.eye(5)[torch.tensor([[1, 2, 0]])], torch.tensor([[1, 2, 0]]))
    assert float(metrics["f1@PER"].compute()) != float(metrics["f1@PER"].compute())  # NaN
    assert float(metrics["macro_f1"].compute()) == float(metrics["f1"].compute()) == 1


def test_tags_of_single_words_have_an_f1_that_is_their_accuracy() -> None:
    metrics = objective(("ADJ", "NOUN", "O-zone")).metrics()
    target, logits = (
        torch.tensor([[0, 1, 2, 1], [1, 1, -100, -100]]),
        torch.eye(3)[torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0]])],
    )
    for metric in metrics.values():
        metric.update(logits, target)
    assert float(metrics["f1"].compute()) == pytest.approx(4 / 6) == float(metrics["accuracy"].compute())
    assert "f1@ADJ" not in metrics
    assert float(metrics["macro_f1"].compute()) == pytest.approx((2 * 1 / 3 + 2 * 3 / 8 + 0) / 3)


SENTENCES = [
    Sentence(("Ada", "Lovelace", "wrote", "."), ("B-PER", "I-PER", "O", "O")),
    Sentence(("Ada",), ("B-PER",)),
    Sentence(("Love", "co-operates", "(", "o"), ("O", "B-LOC", "I-LOC", "O")),
]


def split_of(tokenizer: TextTokenizer, context: int = 99) -> TaggedSplit:
    cut = Cutter(tokenizer, context)
    counts = torch.tensor([5, 1, 1, 3, 1])
    return TaggedSplit(SENTENCES, [cut(each.forms, "here") for each in SENTENCES], IOB2, counts)


@pytest.mark.parametrize("tokenizer", [Char(), Word(), BPE(vocab_size=270)], ids=["char", "word", "bpe"])
@pytest.mark.parametrize("carrier", ["first", "last"])
def test_one_piece_of_each_word_carries_its_tag(tokenizer: TextTokenizer, carrier: str) -> None:
    """The text before and with that piece holds none of the word's other letters, or all of them."""
    tokenizer.fit([" ".join(each.forms) for each in SENTENCES])
    split = split_of(tokenizer)
    batch = split.batch(torch.arange(3), None)
    prepared = objective(piece=carrier).prepare(batch)
    assert prepared.inputs is batch.inputs
    for row, sentence in enumerate(SENTENCES):
        length = int(batch.lengths[row])
        assert tokenizer.decode(batch.inputs[row, :length].tolist()) == " ".join(sentence.forms)
        positions = (prepared.target[row] != Batch.ignore).nonzero()[:, 0].tolist()
        assert [IOB2[tag] for tag in prepared.target[row][positions].tolist()] == list(sentence.tags)
        ends = [len(" ".join(sentence.forms[: number + 1])) for number in range(len(sentence.forms))]
        starts = [end - len(form) for end, form in zip(ends, sentence.forms, strict=True)]
        for position, start, end in zip(positions, starts, ends, strict=True):
            before, through = (len(tokenizer.decode(batch.inputs[row, :n].tolist())) for n in (position, position + 1))
            assert (start - 1 <= before <= start < through) if carrier == "first" else (before < end == through)


def test_the_causal_model_reads_the_last_piece_unless_told_otherwise() -> None:
    for causal, options, last in ((False, {}, False), (True, {}, True), (True, {"piece": "first"}, False)):
        built = objective(**options)
        built.causal = causal
        assert built.reads_last == last


def test_a_sentence_is_cut_between_words() -> None:
    tokenizer = Char()
    tokenizer.fit([" ".join(each.forms) for each in SENTENCES])
    split = split_of(tokenizer, context=13)
    assert [split.read_forms(sample) for sample in range(3)] == [("Ada", "Lovelace"), ("Ada",), ("Love",)]
    assert split.batch(torch.arange(3), None).inputs.shape == (3, 12)
    with pytest.raises(UserError, match=r"here: the word 'Lovelace' has more than data\.context=5 tokens"):
        Cutter(tokenizer, 5)(("Lovelace",), "here")


FILE = """\
-DOCSTART- -X- O

# a comment
# NN O
Ada NNP B-PER

Love  NN  I-LOC
# NN O
"""
UNIVERSAL = (
    "# text = vámonos al mar\n1-2\tvámonos\t_\t_\n1\tvamos\tir\tVERB\n2\tnos\tyo\tPRON\n2.1\tx\tx\tX\n"
    "\n1\tmar\tmar\tNOUN\n"
)


def test_files_with_a_word_in_each_line(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(FILE)
    (tmp_path / "b.conllu.gz").write_bytes(gzip.compress(UNIVERSAL.encode()))
    sentences = read_conll(tmp_path / "a.conll", None, None)
    assert [(each.forms, each.tags, each.lines) for each in sentences] == [
        (("Ada",), ("B-PER",), (5,)),
        (("Love", "#"), ("I-LOC", "O"), (7, 8)),
    ]
    assert read_conll(tmp_path / "a.conll", 1, 2, comments=False)[0].forms == ("#", "#", "Ada")
    assert read_conll(tmp_path / "a.conll", 2, 1)[1].tags == ("Love", "#")
    universal = read_conll(tmp_path / "b.conllu.gz", None, None)
    assert [(each.forms, each.tags) for each in universal] == [
        (("vamos", "nos"), ("VERB", "PRON")),
        (("mar",), ("NOUN",)),
    ]
    assert read_conll(tmp_path / "b.conllu.gz", None, 3)[0].tags == ("ir", "yo")


def test_columns_are_parted_by_blanks_alone(tmp_path: Path) -> None:
    """A no-break space or a line separator is a part of a word."""
    (tmp_path / "x.conll").write_text("10\u00a0000  O\nAda\u2028x B-PER\n")
    (sentence,) = read_conll(tmp_path / "x.conll", None, None)
    assert (sentence.forms, sentence.tags) == (("10\u00a0000", "Ada\u2028x"), ("O", "B-PER"))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    def refused(content: bytes, message: str, **options: int) -> None:
        (tmp_path / "x.conll").write_bytes(content)
        with pytest.raises(UserError, match=message):
            TaggedText(path=str(tmp_path / "x.conll"), **options).load(Char())

    refused(b"Ada B-PER\nAda\n", r"line 2: no column for a tag behind the word 'Ada'")
    refused(b"Ada B-PER\n", r"line 1: 2 columns, and data\.token=1 data\.tag=4 need 4", tag=4)
    refused(b"Ada\t\t\n", r"line 1: 'Ada' has no tag", tag=2)
    refused(b"\xff\xfe O\n", "cannot be read as UTF-8")
    refused(b"\n# x\n", "has no sentence")
    refused(b"a O\n\n" * 9 + b"b O\n\n" * 9, "1 different tags; expected 2 to 1000")
    refused(b"a O\n\nb X\n", "no row is left for the validation split")
    with pytest.raises(ValueError, match="are one column"):
        TaggedText(path="x", token=2, tag=2)
    with pytest.raises(ValueError, match="are about files"):
        TaggedText(tag=2)


def test_tags_that_are_not_of_spans_among_spans_are_refused_with_their_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each word would be a span of its own, and F1 the accuracy."""
    path = tmp_path / "x.conll"

    def read(*sentences: str) -> TaggedText:
        blocks = ["".join(f"w {tag}\n" for tag in sentence.split()) for sentence in sentences]
        path.write_text("\n".join(blocks))
        return TaggedText(path=str(path))

    sentences = ["B-PER M-PER E-PER O"] * 20
    assert read(*sentences).names == ("O", "B-PER", "E-PER", "M-PER")
    with pytest.raises(UserError, match=r"line 10: the tag 'o'; .*, line 11: the tag 'BPER'\. Most"):
        read("O O O", *sentences[:1], "o BPER O", *sentences).load(Char())
    with pytest.raises(UserError, match="lines 3, 7: the tag 'o'"):
        read("B-PER I-PER o", "B-PER I-PER o").load(Char())
    assert not caplog.messages
    assert read(*["B-PER I-per O"] * 9).names == ("O", "B-PER", "I-per")
    assert read(*["B-PER B-Per O"] * 9).names == ("O", "B-PER", "B-Per")
    assert "has classes that look alike: 'B-PER' (9) and 'B-Per' (9)" in caplog.text
    assert read(*["DT NN VB", "NN I-x"] * 9).names == ("DT", "I-x", "NN", "VB")  # parts of speech


def test_a_folder_has_a_file_for_each_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("en-ud-train.conllu", "en-ud-dev.conllu"):
        (tmp_path / name).write_text("1\tgo\tgo\tVERB\n2\tup\tup\tADV\n")
    data = TaggedText(path=str(tmp_path))
    assert "has no file of the test split" in (data.missing() or "")
    (tmp_path / "en-ud-test.conllu").write_text("1\tgo\tgo\tVERB\n\n1\tred\tred\tADJ\n")
    (tmp_path / "README.md").write_text("train")
    data = TaggedText(path=str(tmp_path), context=4)
    assert data.spec.class_names == ("ADJ", "ADV", "VERB")
    splits = data.load(Char())
    assert [len(split) for split in splits] == [1, 1, 2]
    assert "no word of the training split has the tag ADJ" in caplog.text
    assert "2 of 4 sentences are longer than data.context=4; the median has 4 tokens" in caplog.text
    assert data.test_texts([0, 1], Char()) == ["go", "red"]


@pytest.mark.full
def test_generated_sentences_need_their_context() -> None:
    """Names of all types share most words; no sentence is in two splits; the same seed gives the same ones."""
    data = TaggedText()
    splits = data._splits()
    forms = [{each.forms for each in split} for split in splits]
    assert not forms[0] & forms[1] | forms[0] & forms[2] | forms[1] & forms[2]
    kinds: dict[str, set[str]] = {}
    for split in splits:
        for each in split:
            assert reference_spans(list(each.tags)) == set(Tags(data.names).spans_of(map(data.names.index, each.tags)))
            for form, tag in zip(each.forms, each.tags, strict=True):
                kinds.setdefault(form, set()).add(tag)
    assert sum(kinds[name] >= {"B-PER", "B-LOC", "B-ORG"} for name in ("Lincoln", "Paris", "Wayne", "York")) == 4
    assert {"B-PER", "B-DATE"} <= kinds["May"]
    assert data.names == ("O", *(f"{mark}-{kind}" for mark in "BI" for kind in ("DATE", "LOC", "ORG", "PER")))
    again, other = TaggedText(), TaggedText(split_seed=1)
    prints = [each.load(Word()) and each.fingerprint() for each in (data, again, other)]
    assert prints[0] == prints[1] != prints[2]


def test_sentences_are_generated_once_for_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules about data ask modules of their own for the spec, hundreds of times where a sweep is planned."""
    before = TaggedText(split_seed=7).parts
    monkeypatch.setattr(tagged_text, "_Writer", None)
    after = TaggedText(split_seed=7, context=16)
    assert after.spec.class_names == TaggedText(split_seed=7).names
    assert after.parts == before


def test_a_model_without_words_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "data=code", "objective=tag", "head=token"]) == 2
    assert "objective=tag needs a tag for each word; data=code has none" in capsys.readouterr().err
    assert main(["check", "experiment=tag_names", "objective=classify", "head=mean_pool"]) == 2
    assert "needs a class for each sample" in capsys.readouterr().err
    assert main(["check", "experiment=tag_names", "data.path=none.conll"]) == 2
    assert "nothing at" in capsys.readouterr().err


@pytest.mark.sampled(100)
@pytest.mark.parametrize(("model", "tokenizer"), [("encoder", "word"), ("decoder", "char")])
def test_a_file_from_training_to_tags(
    model: str, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The word before says the type; a decoder of characters reads it at the last letter."""
    lines = []
    for n in range(240):
        before, kind, form = "ab"[n % 2], ("LOC", "PER")[n % 2], "xyz"[n % 3] * (1 + n // 12 % 4)
        lines += [f"{before} O", f"{form}{n} B-{kind}", f"{form} I-{kind}", ""]
    (tmp_path / "x.conll").write_text("\n".join(lines))
    overrides = (
        "data=tagged_text",
        f"data.path={tmp_path / 'x.conll'}",
        "data.batch_size=16",
        f"tokenizer={tokenizer}",
    )
    shape = (f"model={model}", "head=token", "position=rope", "objective=tag", *ON_CPU, *ONE_LAYER, "optimizer.lr=0.02")
    run_folder = run(tmp_path, *overrides, *shape, *steps(120, 120), base=())
    summary = run_folder.summary()
    assert summary["metrics"]["test/f1"] >= 0.9
    assert summary["metrics"]["test/f1@LOC"] >= 0.8
    assert summary["directions"]["test/f1@LOC"] == "max"
    assert summary["baselines"].keys() == {"majority", "lookup"}
    written = [json.loads(line) for line in (run_folder.path / "written-test.jsonl").read_text().splitlines()[1:]]
    assert len(written) == summary["data"]["test"]
    assert every(row["reference"].count("]") == 1 for row in written)
    capsys.readouterr()
    (tmp_path / "new.conll").write_text("a O\nyy8\nyy\n")
    assert main(["predict", f"run={run_folder.path}", "b zz9 zz", str(tmp_path / "new.conll")]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["number"], row["word"], row["tag"]) for row in rows] == [
        *(("1", "b", "O"), ("1", "zz9", "B-PER"), ("1", "zz", "I-PER")),
        *(("2", "a", "O"), ("2", "yy8", "B-LOC"), ("2", "yy", "I-LOC")),
    ]
    if model == "encoder":
        assert main(["eval", f"run={run_folder.path}", "split=validation", "write=true"]) == 0
        assert (
            len((run_folder.path / "written-val.jsonl").read_text().splitlines()) == summary["data"]["validation"] + 1
        )
        assert main(["eval", f"run={run_folder.path}", "write=true", "beam=2"]) == 2
        assert "tags words and writes no text" in capsys.readouterr().err


def test_the_baselines_are_counts_of_the_training_words() -> None:
    data = TaggedText(train_size=200, test_size=100)
    splits = data.load(Word())
    built = objective(data.names)
    baselines = built.baselines(splits.test, splits.train)
    counts: dict[str, Counter[str]] = {}
    for each in splits.train.sentences:
        for form, tag in zip(each.forms, each.tags, strict=True):
            counts.setdefault(form, Counter())[tag] += 1
    total = sum(counts.values(), Counter())

    def most(form: str) -> str:
        own = counts.get(form, total)
        return max(own, key=lambda tag: (own[tag], total[tag]))

    written = [[most(form) for form in each.forms] for each in splits.test.sentences]
    right = [
        a == b
        for own, each in zip(written, splits.test.sentences, strict=True)
        for a, b in zip(own, each.tags, strict=True)
    ]
    assert baselines["lookup"]["accuracy"] == pytest.approx(sum(right) / len(right))
    spans = [
        [reference_spans(list(each.tags)) for each in splits.test.sentences],
        [reference_spans(r) for r in written],
    ]
    assert baselines["lookup"]["f1"] == pytest.approx(reference_scores(*spans)[2], rel=1e-6)
    assert baselines["majority"]["f1"] == 0
    assert 0 < baselines["lookup"]["loss"] < baselines["majority"]["loss"]


def test_the_table_of_types() -> None:
    metrics = {"f1": 0.7, "macro_f1": 0.6, "precision@A": 1.0, "recall@A": 0.5, "f1@A": 2 / 3, "f1@B/C": float("nan")}
    table = table_of_types(metrics, {"lookup": {"f1@A": 0.25, "macro_f1": 0.2}}).splitlines()
    assert [line.split() for line in table] == [
        ["type", "precision", "recall", "f1", "f1", "of", "lookup"],
        ["A", "1.0000", "0.5000", "0.6667", "0.2500"],
        ["B/C", "-", "-", "-", "-"],
        ["mean", "of", "types", "0.6000", "0.2000"],
    ]
    assert table_of_types({"f1": 0.7}, {}) == ""


def test_the_loss_is_the_mean_over_words() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([[1, -100, 0], [4, 2, -100]])
    terms = [
        -(logits[b, n, target[b, n]] - logits[b, n].exp().sum().log()) for b, n in ((0, 0), (0, 2), (1, 0), (1, 1))
    ]
    assert_close(objective().loss(logits, target), sum(terms) / 4)
