"""Text data: disjoint splits, lines and packed documents."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from blockyard.contracts import Batch, Splits, TextTokenizer
from blockyard.data.code import Code
from blockyard.data.splits.split import by_size
from blockyard.data.splits.texts import Lines, Windows, nonblank_lines
from blockyard.data.text_file import TextFile, _slice
from blockyard.objective.next_token import NextToken
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.patch import Patch
from tests.support.every import every


def write(folder: Path, texts: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder


def assert_range_split(data: TextFile, whole: str) -> None:
    """By range: train, test, validation in the order of the text, nothing lost, nothing twice."""
    parts = data.documents()
    train, validation, test = ("".join(part) for part in parts)
    assert train + test + validation == whole
    assert validation == whole[int(len(whole) * 0.9) :]


def test_the_last_tenth_is_validation(tmp_path: Path) -> None:
    whole = "".join(chr(0x4E00 + i) for i in range(1009))  # each character is unique
    file = tmp_path / "one.txt"
    file.write_text(whole, encoding="utf-8")
    assert_range_split(TextFile(path=str(file)), whole)
    folder = write(tmp_path / "many", {"a.txt": whole[:100], "b.txt": whole[100:950], "c.txt": whole[950:]})
    assert_range_split(TextFile(path=str(folder)), whole)


def test_a_planted_bug_in_the_range_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = "".join(chr(0x4E00 + i) for i in range(1009))
    (tmp_path / "one.txt").write_text(whole, encoding="utf-8")
    monkeypatch.setattr("blockyard.data.text_file._slice", lambda texts, a, b: _slice(texts, max(a - 1, 0), b))
    with pytest.raises(AssertionError):
        assert_range_split(TextFile(path=str(tmp_path / "one.txt")), whole)


@given(st.lists(st.integers(1, 1000), min_size=3, max_size=60), st.integers(0, 99))
@example([1, 1, 19], 0)
@example([1, 1, 1000], 7)
@example([5, 5, 5], 3)
def test_documents_are_assigned_whole_and_once(sizes: list[int], seed: int) -> None:
    """No split is empty, and no small split would be nearer to its share without its last document."""
    fractions = (0.1, 0.2)
    parts = by_size(sizes, fractions, seed)
    assert sorted(i for part in parts for i in part) == list(range(len(sizes)))
    assert every(parts)
    assert max(sizes) in [sizes[i] for i in parts[2]]
    for part, fraction in zip(parts, fractions, strict=False):
        size, share = sum(sizes[i] for i in part), fraction * sum(sizes)
        # The last document is not known; the largest is an upper bound.
        if len(part) > 1:
            assert size - share <= share - (size - max(sizes[i] for i in part)) + 1e-6
    assert parts == by_size(sizes, fractions, seed)


def test_fewer_documents_than_splits() -> None:
    """Training comes first, then validation."""
    assert by_size([], (0.1, 0.1), 0) == [[], [], []]
    assert by_size([3], (0.1, 0.1), 0) == [[], [], [0]]
    assert by_size([3, 9], (0.1, 0.1), 0) == [[0], [], [1]]


def test_documents_of_a_folder(tmp_path: Path) -> None:
    texts = {f"{n:02}.txt": f"document {n}\n" * 5 for n in range(20)}
    folder = write(tmp_path, {**texts, "notes.md": "no text"})
    parts = TextFile(path=str(folder), split_by="document").documents()
    assert sorted(text for part in parts for text in part) == sorted(texts.values())
    assert [len(part) for part in parts] in ([16, 2, 2], [17, 2, 1])  # documents differ by a digit
    other = TextFile(path=str(folder), split_by="document", split_seed=1).documents()
    assert other != parts
    with pytest.raises(ValueError, match="needs 3 files"):
        TextFile(path=str(folder / "00.txt"), split_by="document").documents()


def load(tmp_path: Path, text: str, tokenizer: TextTokenizer | None = None, **options: object) -> Splits:
    file = tmp_path / "text.txt"
    file.write_text(text, encoding="utf-8", newline="")
    return TextFile(path=str(file), **options).load(tokenizer or Byte())  # type: ignore[arg-type]


def test_lines_are_padded_on_the_right_and_cut_at_the_context(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "".join(f"{'x' * n}\n\n  \n" for n in range(1, 40))
    tokenizer = Char()
    split = load(tmp_path, text, tokenizer, sample="line", context=10).train
    assert isinstance(split, Lines)
    order = torch.arange(len(split))
    batch = split.batch(order, None)
    assert batch.lengths is not None
    assert batch.inputs.shape[1] == int(batch.lengths.max()) == 11
    for line, token_ids, length in zip(order.tolist(), batch.inputs.tolist(), batch.lengths.tolist(), strict=True):
        assert set(token_ids[length:]) <= {0}
        assert tokenizer.decode(token_ids[:length]) == ("x" * (line + 1) + "\n")[:11]
    assert tokenizer.decode(batch.inputs[2].tolist()[:4]) == "xxx\n"
    assert split.batch(order[:2], None).inputs.shape == (2, 3)
    assert "30 of 41 lines are longer than data.context=10; the median has 19 tokens" in caplog.text


def check_segments(batch: Batch) -> None:
    """Lines start where their segment starts."""
    assert batch.segment is not None
    newline = batch.inputs[:, :-1] == 10
    torch.testing.assert_close(batch.segment.diff(dim=1) == 1, newline)
    assert (batch.segment[:, 0] == 0).all()


def test_packed_lines_are_segments(tmp_path: Path) -> None:
    text = "".join(f"{'abc' * (n % 5 + 1)}\n" for n in range(200))
    split = load(tmp_path, text, sample="line", packed=True, context=32).train
    assert isinstance(split, Windows)
    batch = split.batch(torch.arange(len(split)), 7)
    check_segments(batch)
    assert batch.segment is not None
    check_segments(split.batch(torch.arange(len(split)), None))  # as it is evaluated
    with pytest.raises(AssertionError):
        check_segments(Batch(batch.inputs, segment=batch.segment.roll(1, 1)))


class Halves(Byte):
    """Encodes the first half of each text only, so that some lines are one token."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text)[: len(text) // 2]


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_one_token_are_left_out(tmp_path: Path, packed: bool) -> None:
    """They have no target, and the mean over no targets is NaN."""
    text = "ab\nabcdef\n" * 60  # one token, three tokens
    split = load(tmp_path, text, Halves(), sample="line", packed=packed, context=3).train
    assert split.bytes_per_token == 7 / 3
    for number in range(len(split)):
        batch = NextToken().prepare(split.batch(torch.tensor([number]), None))
        assert batch.target is not None
        assert (batch.target != Batch.ignore).any()
    with pytest.raises(ValueError, match="train split of the text has no line of two tokens"):
        load(tmp_path, "ab\n" * 60, Halves(), sample="line", packed=packed)


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + b"text" * 50)
    parts = TextFile(path=str(tmp_path)).documents()
    assert sorted("".join(text for part in parts for text in part)) == sorted("text" * 100)


def test_specs_describe_the_sequences() -> None:
    assert TextFile(context=7).spec.shape == (7,)
    assert not TextFile().spec.variable
    assert TextFile(sample="line").spec.variable
    packed = TextFile(sample="line", packed=True).spec
    assert packed.packed
    assert not packed.variable


def test_bytes_per_token(tmp_path: Path) -> None:
    text = "\u00e4b" * 5000
    assert load(tmp_path, text, Byte()).train.bytes_per_token == 1.0
    assert load(tmp_path, text, Char()).train.bytes_per_token == 1.5


def test_a_loaded_tokenizer_is_not_fitted_again(tmp_path: Path) -> None:
    tokenizer = Char()
    tokenizer.fit(["zyx"])
    load(tmp_path, "abc" * 1000, tokenizer)
    assert tokenizer.state() == {"symbols": "xyz"}


def test_a_character_of_the_test_split_only_is_not_learned(tmp_path: Path) -> None:
    text = "ab" * 425 + "@" * 50 + "cd" * 50
    tokenizer = Char()
    splits = load(tmp_path, text, tokenizer, context=8)
    assert tokenizer.state() == {"symbols": "ab"}
    assert (splits.test.batch(torch.tensor([0]), None).inputs == 0).all()


def test_messages_of_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = TextFile(path=str(tmp_path / "no.txt")).missing()
    assert message is not None
    assert str(tmp_path / "no.txt") in message
    assert "data.path=" in message
    message = TextFile(path=str(tmp_path)).missing()
    assert message is not None
    assert "*.txt" in message
    with pytest.raises(ValueError, match=r"data.validation_fraction=0.5 and data.test_fraction=0.5"):
        TextFile(validation_fraction=0.5, test_fraction=0.5)
    with pytest.raises(ValueError, match=r"use data.context=4 or less"):
        load(tmp_path, "x" * 100, context=5)
    (tmp_path / "bad.txt").write_bytes(b"abc\xff")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        TextFile(path=str(tmp_path / "bad.txt")).load(Byte())
    with pytest.raises(ValueError, match=r"/proc/self/mem cannot be read: "):
        TextFile(path="/proc/self/mem").load(Byte())
    with pytest.raises(ValueError, match="a text tokenizer, not Patch"):
        TextFile(path=str(tmp_path / "text.txt")).load(Patch())
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    message = Code().missing()
    assert message is not None
    assert "library sources" in message


def test_nonblank_lines_keep_their_line_feeds() -> None:
    assert nonblank_lines(["a\n\n b\n", "c"]) == ["a\n", " b\n", "c\n"]


@pytest.mark.shared_data
def test_tiny_shakespeare_is_split_as_by_nanogpt(shared_data: Path) -> None:
    file = shared_data / "tinyshakespeare" / "input.txt"
    text = file.read_text(encoding="utf-8")
    data = TextFile(path=str(file), context=64)
    train, validation, test = ("".join(part) for part in data.documents())
    assert validation == text[int(len(text) * 0.9) :]
    assert train + test == text[: int(len(text) * 0.9)]
    tokenizer = Char()
    splits = data.load(tokenizer)
    assert tokenizer.spec(data.spec).vocabulary == 66  # nanoGPT's 65, and the unknown token
    for split in splits:
        batch = split.batch(torch.arange(len(split)), None)
        assert (batch.inputs != 0).all()
