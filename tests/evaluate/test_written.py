"""Texts that a run writes from every source of a split, and their scores."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from rapidfuzz.distance import Levenshtein
from torchmetrics.text import CharErrorRate, WordErrorRate

from blockyard.cli import main
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate, evaluate_written
from blockyard.evaluate.written import Written, write
from blockyard.generate.api import generate_all
from blockyard.objective._text_scores import edits, scores
from blockyard.runs.folder import RunFolder
from blockyard.runs.result_files import result_stem
from tests.support import engine_runs
from tests.support.engine_runs import run
from tests.support.tiny import ON_CPU, steps

pytestmark = pytest.mark.xdist_group("written")  # its run is made once

WRITTEN = ["the old cat sat on the mat today", "", "a bb ccc", "5. Mai 2018"]
REFERENCES = ["the cat is on the mat today again", "nothing", "a bb ccc", "5. Mai 2019"]
DATES = (
    *("experiment=translate_dates", *ON_CPU, "model.depth=1"),
    *("schedule.warmup=10", "optimizer.lr=6e-3", "data.test_size=60", "data.validation_size=60", *steps(120, 120)),
)


def compose_issues(overrides: list[str]) -> list[str]:
    return [str(issue) for issue in check(compose(overrides))]


def table_of_edits(text: Sequence[str], reference: Sequence[str]) -> tuple[int, int]:
    """Levenshtein's distance and the insertions in it, by the recursion over a table: fewest edits, then insertions."""
    table = {(0, 0): (0, 0)}
    for i in range(len(text) + 1):
        for j in range(len(reference) + 1):
            edits = [table[0, 0]] if i == j == 0 else []
            if i:
                edits.append((table[i - 1, j][0] + 1, table[i - 1, j][1] + 1))
            if j:
                edits.append((table[i, j - 1][0] + 1, table[i, j - 1][1]))
            if i and j:
                edits.append((table[i - 1, j - 1][0] + (text[i - 1] != reference[j - 1]), table[i - 1, j - 1][1]))
            table[i, j] = min(edits)
    return table[len(text), len(reference)]


def grams(text: list[str] | str, n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1))


def error_rate(split: bool) -> float:
    pairs = [[text.split() if split else list(text) for text in pair] for pair in zip(WRITTEN, REFERENCES, strict=True)]
    return sum(table_of_edits(*pair)[0] for pair in pairs) / sum(len(reference) for _, reference in pairs)


def bleu(written: list[str], references: list[str]) -> float:
    """Papineni et al. 2002, equation 3, over texts whose tokens are separated by spaces."""
    logs = []
    for n in range(1, 5):
        own = [(grams(a.split(), n), grams(b.split(), n)) for a, b in zip(written, references, strict=True)]
        hits = sum(sum((left & right).values()) for left, right in own)
        logs.append(math.log(hits / sum(sum(left.values()) for left, _ in own)))
    ours, theirs = (sum(len(text.split()) for text in texts) for texts in (written, references))
    return min(1.0, math.exp(1 - theirs / ours)) * math.exp(sum(logs) / 4)


def chrf(written: list[str], references: list[str]) -> float:
    """Popovic 2015: F2 of precision and recall, averaged over character n-grams up to 6, without spaces."""
    precisions, recalls = [], []
    for n in range(1, 7):
        own = [tuple(grams(t.replace(" ", ""), n) for t in pair) for pair in zip(written, references, strict=True)]
        hits = sum(sum((left & right).values()) for left, right in own)
        precision, recall = (hits / sum(sum(pair[k].values()) for pair in own) for k in (0, 1))
        precisions.append(precision)
        recalls.append(recall)
    p, r = sum(precisions) / 6, sum(recalls) / 6
    return 5 * p * r / (4 * p + r)


def test_scores_are_their_formulas() -> None:
    result = scores(WRITTEN, REFERENCES)
    assert result["exact"] == 0.25
    assert result["cer"] == pytest.approx(error_rate(split=False))
    assert result["wer"] == pytest.approx(error_rate(split=True))
    plain = [text.replace(".", " .") for text in WRITTEN], [text.replace(".", " .") for text in REFERENCES]
    assert result["bleu"] == pytest.approx(bleu(*plain))
    assert result["chrf"] == pytest.approx(chrf(WRITTEN, REFERENCES))
    errors = dict.fromkeys(("cer", "wer", "insertions", "char_insertions"), 0)
    assert scores(REFERENCES, REFERENCES) == {"exact": 1, "bleu": 1, "chrf": 1, **errors}
    swapped = scores(REFERENCES, WRITTEN)  # the planted bug: written and reference exchanged
    assert swapped["cer"] != pytest.approx(result["cer"])
    assert swapped["chrf"] != pytest.approx(result["chrf"])


def test_the_score_of_characters_is_that_of_sacrebleu() -> None:
    """Orders that a text does not reach are left out; the figures follow from sacrebleu's formula by hand."""
    assert scores(["cat"], ["cats are"])["chrf"] == pytest.approx(0.3707, abs=1e-3)
    assert scores(["the cat sat on the mat"], ["the cat"])["chrf"] == pytest.approx(0.600, abs=1e-3)
    assert scores([""], ["the cat"])["chrf"] == 0.0
    assert scores(["a"], ["b"])["chrf"] == 0.0


def test_inserted_words_are_those_of_the_shortest_edits() -> None:
    pairs = [("a b c", "a c"), ("x", "a b"), ("", "a"), ("a a a b", "a b"), ("c a b", "a b c")]
    assert [scores(["z", left], ["z", right])["insertions"] for left, right in pairs] == pytest.approx(
        [1 / 3, 0, 0, 2 / 3, 1 / 4]
    )
    # Of characters too: "kitten" for "sitting" replaces two and leaves one out; the other way round one is inserted.
    assert scores(["kitten"], ["sitting"])["char_insertions"] == 0
    assert scores(["sitting"], ["kitten"])["char_insertions"] == pytest.approx(1 / 6)


def test_edits_and_their_insertions_are_those_of_a_table_over_random_texts() -> None:
    generator = random.Random(0)
    planted = 0
    for _ in range(300):
        text, reference = ("".join(generator.choices("ab c", k=generator.randrange(14))) for _ in range(2))
        assert edits(text, reference) == table_of_edits(text, reference)
        assert edits(text.split(), reference.split()) == table_of_edits(text.split(), reference.split())
        # Planted: the insertions of one of the shortest edits, not of that with the fewest.
        operations = Levenshtein.opcodes(reference, text)
        added = sum(part.dest_end - part.dest_start for part in operations if part.tag == "insert")
        planted += added != edits(text, reference)[1]
    assert planted


def test_error_rates_are_those_of_torchmetrics() -> None:
    result = scores(WRITTEN, REFERENCES)
    for name, metric in (("cer", CharErrorRate()), ("wer", WordErrorRate())):
        assert result[name] == pytest.approx(float(metric(WRITTEN, REFERENCES)))


def test_long_texts_are_scored_without_a_table_in_python() -> None:
    """A pair of texts of 1,500 characters took seconds: every cell of a table was a step in Python."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal calls
        calls += 1
        return count

    generator = random.Random(0)
    text, reference = ("".join(generator.choices("abcdefg ", k=1500)) for _ in range(2))
    scores([text], [reference])  # imports
    tracer = sys.gettrace()
    sys.settrace(count)
    try:
        scores([text], [reference])
    finally:
        sys.settrace(tracer)
    assert calls < 200_000


def test_references_without_text_count_as_one() -> None:
    result = scores(["ab"], [""])
    assert (result["cer"], result["char_insertions"], result["wer"]) == (2, 2, 1)


@pytest.fixture(scope="module")
def dates(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("dates"), "trainer.write=true", base=DATES)


@pytest.mark.full
def test_a_run_that_writes_has_the_scores_of_the_verb(dates: RunFolder) -> None:
    """With `trainer.write=true` the test metrics and the file are those of `eval write=true`."""
    written, loaded = evaluate_written(dates.path)
    summary = dates.summary()
    assert written.metrics().items() <= summary["metrics"].items()
    assert written.directions().items() <= summary["directions"].items()
    head, *samples = map(json.loads, (dates.path / "written-test.jsonl").read_text().splitlines())
    assert head["scores"] == written.scores
    assert head["weights"] == summary["weights"] == loaded.weights
    assert [(row["source"], row["reference"], row["written"]) for row in samples] == written.texts


def test_a_run_without_a_source_is_not_let_write() -> None:
    for overrides in (["experiment=gpt_code_small"], ["experiment=vit_digits"], ["experiment=tag_names"]):
        (issue,) = compose_issues([*overrides, "trainer.write=true"])
        assert "trainer.write=true is for runs that write a text, or codes, from a source" in issue
    assert not compose_issues(["experiment=tones_ctc", "trainer.write=true"])


def test_greedy_texts_are_exact_where_teacher_forcing_is(dates: RunFolder) -> None:
    """A sequence whose every token is the most likely one is the one that greedy decoding writes, and no other is."""
    written, _ = evaluate_written(dates.path)
    assert 0 < written.scores["exact"] < 1
    assert written.scores["exact"] == pytest.approx(evaluate(dates.path)["test/exact"], abs=1e-6)
    assert written.scores["cer"] < 1
    assert written.whole


@pytest.mark.parametrize(("beam", "penalty"), [(None, 1.0), (3, 1.0), (3, 6.0)])
def test_texts_are_those_of_generate(dates: RunFolder, beam: int | None, penalty: float) -> None:
    written, loaded = evaluate_written(dates.path, beam=beam, length_penalty=penalty)
    chosen = written.texts[::20]
    stream = generate_all(
        loaded,
        sources=[source for source, _, _ in chosen],
        max_tokens=32,
        **({"temperature": 0.0} if beam is None else {"beam": beam, "length_penalty": penalty}),
    )
    for _ in stream:
        pass
    assert [text.text for text in stream.texts] == [text for *_, text in chosen]


def test_the_verb_prints_saves_and_adds_to_the_summary(dates: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    before = dates.summary()
    assert main(["eval", f"run={dates.path}", "write=true", "beam=2"]) == 0
    out = capsys.readouterr().out
    head, *samples = map(json.loads, (dates.path / "written-test-beam2.jsonl").read_text().splitlines())
    assert len(samples) == before["data"]["test"]
    assert head["scores"]["exact"] == sum(row["exact"] for row in samples) / len(samples)
    summary = dates.summary()
    for name, value in head["scores"].items():
        assert summary["metrics"][f"test/written_{name}@beam2"] == value
        assert f"test/written_{name}@beam2" in out
    copied = before["baselines"]["copy_source"]["written_bleu"]
    assert f"baseline copy_source: test/written_exact 0  test/written_bleu {copied:.4g}  test/written_chrf" in out
    assert "baseline nearest_source: test/written_" in out
    assert "word_before" not in out
    assert summary["directions"]["test/written_wer@beam2"] == "min"
    assert before["metrics"].items() <= summary["metrics"].items()
    assert main(["eval", f"run={dates.path}", "write=true", "which=last", "split=validation"]) == 0
    assert "baseline" not in capsys.readouterr().out  # they are those of the test split
    assert dates.summary().keys() == summary.keys()
    assert ("val/written_exact" in dates.summary()["metrics"]) == (before["weights"] == "last.ckpt")


def test_scores_of_other_weights_and_other_data_are_not_those_of_the_run(tmp_path: Path) -> None:
    summary = {"metrics": {}, "directions": {}, "weights": "best.ckpt", "data": {"fingerprint": "00ff"}}
    written_summaries = list[object]()
    folder = SimpleNamespace(path=tmp_path, summary=lambda: summary, facts=dict, write_summary=written_summaries.append)
    result = Written("test", 4, {"exact": 2.0}, [("a", "b", "b")], length_penalty=0.5)
    for weights, fingerprint, name in (
        ("best.ckpt", "00ff", ""),
        ("last.ckpt", "00ff", "-last"),
        ("best.ckpt@ema", "00ff", "-best@ema"),
        ("last.ckpt@ema", "00ff", "-last@ema"),
        ("best.ckpt", "1f3a5c7e9b", "-data-1f3a5c7e"),
        ("last.ckpt", "1f3a5c7e9b", "-last-data-1f3a5c7e"),
    ):
        data = SimpleNamespace(fingerprint=lambda value=fingerprint: value)
        loaded: Any = SimpleNamespace(folder=folder, weights=weights, step=3, data=data)
        path, added = write(loaded, result)
        assert (path.name, added) == (f"written-test{name}-beam4_length0.5.jsonl", not name)
        assert result_stem(loaded, "predictions", "val") == f"predictions-val{name}"
        assert path.exists()
    (own,) = written_summaries
    assert not (tmp_path / ".summary.lock").stat().st_size
    assert own["metrics"] == {"test/written_exact@beam4_length0.5": 2.0}


@pytest.mark.full
def test_the_verb_keeps_the_results_of_a_run_where_it_reads_other_data(tmp_path: Path) -> None:
    """The files of the run, and its summary, stay as they are."""
    for name, target in (("own", "b{}"), ("other", "zzzz{}")):
        lines = (f"aa{number}\t{target.format(number)}\n" for number in range(200))
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    columns = ["data.source=1", "data.target=2"]
    sizes = ["data.test_size=8", "data.validation_size=8", "data.batch_size=4", *steps(2, None), "model.depth=1"]
    base = ("experiment=translate_dates", *ON_CPU, *columns, *sizes, f"data.path={tmp_path / 'own.tsv'}")
    folder = run(tmp_path / "out", "trainer.write=true", base=base)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    moved = f"data.path={tmp_path / 'other.tsv'}"
    assert main(["eval", f"run={folder.path}", "write=true", moved]) == 0
    assert {name: (folder.path / name).read_bytes() for name in before} == before
    (new,) = {path.name for path in folder.path.iterdir() if path.is_file()} - before.keys()
    assert re.fullmatch(r"written-test-data-[0-9a-f]{8}\.jsonl", new)


@pytest.mark.full
def test_a_length_penalty_changes_what_a_beam_search_prefers(
    dates: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    short, long = (evaluate_written(dates.path, beam=4, length_penalty=power)[0].texts for power in (0.0, 8.0))
    assert sum(len(text) for *_, text in short) < sum(len(text) for *_, text in long)
    assert main(["eval", f"run={dates.path}", "write=true", "beam=4", "length_penalty=0"]) == 0
    assert "test/written_insertions@beam4_length0 " in capsys.readouterr().out
    head = json.loads((dates.path / "written-test-beam4_length0.jsonl").read_text().splitlines()[0])
    assert (head["beam"], head["length_penalty"]) == (4, 0)
    assert main(["eval", f"run={dates.path}", "write=true", "length_penalty=0"]) == 2
    assert "length_penalty=0 has an effect with beam=N only" in capsys.readouterr().err


@pytest.mark.full
def test_what_cannot_write_is_refused(dates: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decoder = engine_runs.text_run(tmp_path / "text", "tokenizer=char")
    with pytest.raises(UserError, match="has no source to write a text from"):
        evaluate_written(decoder.path)
    with pytest.raises(UserError, match="has no source to write a text from"):
        evaluate_written(run(tmp_path / "image", "trainer.max_steps=2").path)
    for arguments, message in (
        (["beam=3"], "beam=3 has an effect with write=true only"),
        (["write=true", "beam=0"], "a whole number >= 1"),
        (["write=true", "extrapolate=[2]"], "exclude each other"),
        (["write=maybe"], "write=maybe: expected"),
    ):
        assert main(["eval", f"run={dates.path}", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_the_weights_are_left_as_they_were(dates: RunFolder) -> None:
    _, loaded = evaluate_written(dates.path)
    assert not loaded.model.training
    assert not torch.is_inference_mode_enabled()
