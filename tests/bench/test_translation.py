"""The benchmark of translation: how paraphrases are made, and the Marian-shaped model beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockyard.data.translation import Translation
from tests.support.every import every
from tests.support.paths import ROOT

SENTENCES = ["To the new old house of the king", "the old house and the new garden", "king of the garden TO the house"]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def table(path: Path, count: int, parts: tuple[str, ...] = ("train", "train", "train", "val", "test")) -> Path:
    """A file of sentences with their split."""
    lines = [f"{SENTENCES[n % 3]} {n}\tx{n}\t{parts[n % len(parts)]}\n" for n in range(count)]
    path.write_text("".join(["en\tde\tsplit\n", *lines]))
    return path


def test_a_third_of_the_frequent_words_are_exchanged_in_couples() -> None:
    import paraphrases

    exchanged = paraphrases.exchanges(SENTENCES * 5)
    # By frequency, equals by the alphabet: the, house, garden, king, new, of, old, to, and.
    assert exchanged == {"house": "new", "new": "house"}
    assert paraphrases.exchanges(SENTENCES) == {}  # none but "the" is there five times, and it is the first
    assert paraphrases.rewritten("New HOUSE, the new-house 2!", exchanged) == "House NEW, the house-new 2!"
    text = "New words of the House, and rare ones"
    assert paraphrases.rewritten(paraphrases.rewritten(text, exchanged), exchanged) == text


def test_the_file_of_paraphrases_keeps_the_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import paraphrases

    source, out = table(tmp_path / "pairs.tsv", 100), tmp_path / "paraphrases.tsv"
    assert paraphrases.main([str(source), f"out={out}", "pairs=40"]) == 0
    assert "40 + 20 + 20 pairs" in capsys.readouterr().out
    data = Translation(path=str(out), source="source", target="target")
    train, validation, test = data.splits()
    assert (len(train), len(validation), len(test)) == (40, 20, 20)
    exchanged = paraphrases.exchanges([sentence for sentence, _ in train])
    assert every(target == paraphrases.rewritten(sentence, exchanged) for sentence, target in [*train, *test])
    assert any(sentence != target for sentence, target in test)
    held = tmp_path / "plain.tsv"
    held.write_text("en\n" + "".join(f"{SENTENCES[n % 3]} {n}\n" for n in range(100)))
    parts = paraphrases.split(held, "en", held=10, seed=1)
    assert [len(part) for part in parts] == [80, 10, 10]
    assert not set(parts[0]) & {*parts[1], *parts[2]}


@pytest.mark.full
def test_the_other_model_is_as_large_and_predicts_what_it_is_to_write(tmp_path: Path) -> None:
    import translation

    class Words:
        """Token ids by the alphabet."""

        start, end, padding, vocabulary = 26, 27, 28, 29
        tokenizer = type("Letters", (), {"decode": staticmethod(lambda ids: "".join(chr(97 + n) for n in ids))})

        def ids(self, text: str) -> list[int]:
            return [*(ord(letter) - 97 for letter in text), self.end]

        padded = translation.Side.padded

    torch.manual_seed(0)
    side = Words()
    model = translation.as_large(side, 200_000, 16)
    assert abs(translation.parameters(model) - 200_000) < 20_000
    assert side.padded([[1, 2, 3], [4]]).tolist() == [[1, 2, 3], [4, 28, 28]]
    pairs = [("ab", "ba"), ("cde", "edc"), ("fg", "gf"), ("hij", "jih")] * 16
    assert translation.train(model, side, pairs, seconds=8, seed=0) > 10
    assert translation.write(model, side, ["cde", "ab"], 16) == ["edc", "ba"]


@pytest.mark.full
def test_both_sides_are_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import translation

    path = table(tmp_path / "pairs.tsv", 400)
    small = ["model.dim=32", "model.depth=1", "trainer.max_steps=4", "trainer.eval_every=4", "trainer=cpu"]
    options = ["source=en", "target=de", "seeds=2", f"outputs={tmp_path / 'outputs'}", *small]
    assert translation.main([str(path), *options]) == 0
    out = capsys.readouterr().out.partition("| | BLEU")[2]
    assert every(f"| {name} |" in out for name in ("ours", "copy_source", "nearest_source", "Marian-shaped"))
    assert out.count("±") == 4
