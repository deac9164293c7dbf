"""Pairs: dates and files; splits without common texts; sequences with start and end tokens."""

from __future__ import annotations

import gzip
import logging
import re
import sys
from datetime import date
from pathlib import Path

import pytest
import torch

from blockyard.cli import main
from blockyard.contracts import Batch, DataSpec
from blockyard.data import translation
from blockyard.data.files.pairs import Pair, read_pairs
from blockyard.data.translation import Translation
from blockyard.objective.next_token import NextToken
from blockyard.objective.translate import Translate
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.char import Char
from tests.support.paths import SHARED

PARALLEL = SHARED / "parallel"
MONTHS = (
    "January February March April May June July August September October November December",
    "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
)


def table(folder: Path, lines: list[str], name: str = "pairs.tsv") -> str:
    text = "".join(f"{line}\n" for line in lines)
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return str(folder / name)


def test_a_number_in_the_first_line_of_texts_names_no_column(tmp_path: Path) -> None:
    path = Path(table(tmp_path, ["2\t1", "zwei\ttwo"]))
    assert read_pairs(path, "1", "2") == ([("2", "1"), ("zwei", "two")], None)


def assert_disjoint(parts: list[list[Pair]]) -> None:
    for side in range(2):
        seen = [{pair[side] for pair in part} for part in parts]
        assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2], "a text is in two splits"


def test_without_babel_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "babel", None)
    assert main(["check", "experiment=translate_dates"]) == 2
    message = (
        "blockyard: data: dates need the package Babel: pip install 'blockyard[translation]'; or set data.path=FILE\n"
    )
    assert capsys.readouterr() == ("", message)
    (tmp_path / "pairs.tsv").write_text("en\tde\none\teins\n" * 20)
    assert Translation(path=str(tmp_path / "pairs.tsv")).missing() is None


def test_both_dates_are_the_same_day() -> None:
    """Parses both languages by hand, in full, long and medium format."""
    parts = Translation().splits()
    assert [len(part) for part in parts] == [8000, 1000, 1000]
    assert_disjoint(parts)
    short, german = [month[:3] for month in MONTHS[0].split()], MONTHS[1].split()
    forms = set()
    for source, target in parts[0]:
        month, day, year = re.fullmatch(r"(?:\w+day, )?([A-Z]\w+) (\d+), (\d{4})", source).groups()
        assert target == f"{day}. {german[short.index(month[:3])]} {year}"
        named = date(int(year), short.index(month[:3]) + 1, int(day)).strftime("%A")
        assert not source.startswith(("Mon", "Tues")) or source.startswith(named)
        forms.add("full" if source.startswith(named) else "medium" if len(month) == 3 else "long")
    assert forms == {"full", "long", "medium"}


def test_other_languages_and_iso() -> None:
    for source, target in Translation(source="fr", target="iso").splits()[1][:20]:
        assert str(date.fromisoformat(target).year) in source
    assert Translation(source="nowhere").missing().startswith("CLDR has no language")
    assert Translation().missing() is None
    with pytest.raises(ValueError, match="are the same"):
        Translation(source="de")


@pytest.mark.full
def test_a_language_has_several_spellings(tmp_path: Path) -> None:
    """As CLDR or as the web writes it, in any case; two spellings of one language are not two sides."""
    expected = Translation(source="en_GB").splits()
    for spelling in ("en-GB", "EN-gb", "en_gb"):
        assert Translation(source=spelling).missing() is None
        assert Translation(source=spelling).splits() == expected
    assert expected != Translation(source="en_US").splits()
    for one, two in (("EN", "en"), ("en-GB", "en_GB"), ("ISO", "iso")):
        with pytest.raises(ValueError, match=f"data.source={one} and data.target={two} are the same"):
            Translation(source=one, target=two)
    path = table(
        tmp_path, ["EN\ten\tsplit", "a\tb\ttrain", "c\td\tval", "e\tf\ttest"]
    )  # of a file, they are two columns
    assert Translation(path=path, source="EN", target="en").splits()[0] == [("a", "b")]
    with pytest.raises(ValueError, match="CLDR has no language 'nowhere'"):
        Translation(source="nowhere").splits()


def test_samples_are_drawn_from_the_whole_file(tmp_path: Path) -> None:
    """`samples` does not take the first pairs of the file; a larger number includes those of a smaller one."""
    path = table(
        tmp_path, ["en\tde\tsplit", *(f"a {n}\tein {n}\ttrain" for n in range(400)), "b\tbe\tval", "c\tce\ttest"]
    )
    few, more = (Translation(path=path, samples=count).splits()[0] for count in (40, 80))
    assert more[:40] == few
    assert 10 < sum(int(source[2:]) >= 200 for source, _ in few) < 30


def test_sequences_have_start_and_end_tokens() -> None:
    data, tokenizer = Translation(samples=50), Char()
    splits = data.load(tokenizer)
    tokens = tokenizer.spec(data.spec)
    assert (tokens.start, tokens.end, tokens.vocabulary) == (tokens.end - 1, tokens.vocabulary - 1, tokens.end + 1)
    batch = splits.train.batch(torch.arange(50), None)
    assert batch.inputs.max() < tokens.vocabulary
    assert (batch.inputs[:, 0] == tokens.start).all()
    for row, count, read, size, pair in zip(
        batch.inputs, batch.lengths, batch.source, batch.source_lengths, data.splits()[0], strict=True
    ):
        assert row[count - 1] == tokens.end
        assert not row[count:].any()
        assert (tokenizer.decode(read[:size].tolist()), tokenizer.decode(row[1 : count - 1].tolist())) == pair
    prepared = NextToken().prepare(batch)
    torch.testing.assert_close(prepared.source, batch.source)
    last = prepared.target.gather(1, prepared.lengths[:, None] - 1)
    assert (last == tokens.end).all()
    # The start token is never a target; bytes are those of the text, per target.
    assert not (prepared.target == tokens.start).any()
    assert int((prepared.target != Batch.ignore).sum()) == int((batch.lengths - 1).sum())
    assert list(Translate().metrics(splits.train)) == ["loss", "accuracy", "perplexity", "bits_per_byte", "exact"]


def test_without_a_source_there_are_no_start_and_end_tokens() -> None:
    tokens = Byte().spec(DataSpec("text", (8,)))
    assert (tokens.vocabulary, tokens.start, tokens.end) == (256, None, None)


def test_a_file_with_its_split(tmp_path: Path) -> None:
    lines = ["en\tde\tsplit", *(f"a {n}\tein {n}\ttrain" for n in range(20)), "b\tbe\tval", "c\tce\ttest"]
    path = table(tmp_path, [*lines, "a 3\tdrei\ttest", "d\tein 5\tval"], "pairs.tsv.gz")
    parts = Translation(path=path).splits()
    # A training pair shares no side with a later split.
    assert [len(part) for part in parts] == [18, 2, 2]
    assert_disjoint(parts)
    reversed_ = Translation(path=path, source="de", target="en").splits()
    assert reversed_ == [[(target, source) for source, target in part] for part in parts]
    assert len(Translation(path=path, samples=7).splits()[0]) == 7
    with pytest.raises(ValueError, match="has the columns en, de, split"):
        Translation(path=path, target="fr").splits()


def test_a_file_without_a_header_is_split_at_random(tmp_path: Path) -> None:
    path = table(tmp_path, [f"{n}\tx{n % 50}" for n in range(200)])
    parts = Translation(path=path, source="1", target="2").splits()
    assert_disjoint(parts)
    assert [len(part) for part in parts[1:]] != [0, 0]
    assert len(parts[2]) == 20
    assert Translation(path=path, source="1", target="2", split_seed=1).splits()[2] != parts[2]
    with pytest.raises(ValueError, match="too few"):
        Translation(path=table(tmp_path, ["a\tb", "c"], "bad.tsv"), source="1", target="2").splits()
    with pytest.raises(ValueError, match="allowed: train"):
        Translation(path=table(tmp_path, ["en\tde\tsplit", "a\tb\tlearn"], "odd.tsv")).splits()
    assert "set data.path=FILE" in Translation(path=str(tmp_path / "none.tsv")).missing()


def test_a_short_line_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    path = table(tmp_path, ["a\tb", "", "", "", "c\td", "e"])
    with pytest.raises(ValueError, match=r"line 6 of .*pairs\.tsv has 1 columns"):
        read_pairs(Path(path), "1", "2")


def test_splits_with_common_texts_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, [f"{n}\tx{n % 50}" for n in range(200)])
    monkeypatch.setattr(translation, "disjoint", lambda parts: [list(part) for part in parts])
    with pytest.raises(AssertionError, match="in two splits"):
        assert_disjoint(Translation(path=path, source="1", target="2").splits())


def test_long_pairs_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = table(tmp_path, [f"{n} {'long ' * (n % 3)}\tx{n}" for n in range(90)])
    data = Translation(path=path, source="1", target="2", source_context=8)
    with caplog.at_level(logging.WARNING, logger="blockyard"):
        splits = data.load(Byte())
    assert sum(len(part) for part in splits) == 60
    assert "left out" in caplog.text
    assert int(splits.train.source.lengths.max()) <= 8
    with pytest.raises(ValueError, match="pairs of the train split fits"):
        Translation(path=path, source="1", target="2", context=1).load(Byte())


def test_the_same_pairs_have_the_same_fingerprint() -> None:
    one, two, other = Translation(), Translation(), Translation(split_seed=1)
    for data in (one, two, other):
        data.load(Byte())
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()


def test_exact_counts_whole_sequences() -> None:
    exact = Translate().metrics()["exact"]
    target = torch.tensor([[1, 2, -100], [1, 2, 0], [-100, -100, -100]])
    guess = torch.tensor([[1, 2, 2], [1, 1, 0], [0, 0, 0]])
    exact.update(torch.nn.functional.one_hot(guess, 3).float(), target)
    torch.testing.assert_close(exact.compute(), torch.tensor(0.5))


@pytest.mark.shared_data
@pytest.mark.skipif(not PARALLEL.is_dir(), reason="no shared data beside the checkout")
def test_the_parallel_corpus() -> None:
    parts = Translation(path=str(PARALLEL / "en-de.tsv.gz")).splits()
    assert len(parts[0]) > 50_000
    assert_disjoint(parts)
