"""data=tokens: every format gives the same ids, and streams over shards are one stream."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.contracts import Resizable
from blockyard.data.files.token_shards import read_shard, read_source, release
from blockyard.data.splits import token_stream
from blockyard.data.splits.texts import Windows
from blockyard.data.splits.token_stream import TokenStream, TokenWindows
from blockyard.data.tokens import Tokens
from blockyard.errors import UserError
from blockyard.tokenizer.ids import Ids
from tests.support.token_files import ids, litpkds, llm_c, write_litdata

IDS = ids(1000)


def shards_of(folder: Path, *counts: int) -> list[Any]:
    """Shards of so many of the ids."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = np.split(IDS[: sum(counts)], np.cumsum(counts)[:-1])
    for number, part in enumerate(parts):
        part.tofile(folder / f"train_{number:03}.bin")
    return read_source(folder, None).shards["train"]


FORMATS: dict[str, Callable[[Path], object]] = {
    "uint16": lambda file: IDS.tofile(file.with_suffix(".bin")),
    "lit-gpt": lambda file: file.with_suffix(".bin").write_bytes(litpkds(IDS)),
    "llm.c": lambda file: file.with_suffix(".bin").write_bytes(llm_c(IDS)),
    "npy": lambda file: np.save(file.with_suffix(".npy"), IDS.astype(np.int64)),
    "litdata": lambda file: write_litdata(file.parent / "chunks", [IDS[:300], IDS[300:]]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_ids(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / "train")
    shards = read_source(tmp_path if name != "litdata" else tmp_path / "chunks", None).shards["train"]
    np.testing.assert_array_equal(np.concatenate([shard.ids for shard in shards]), IDS)


def test_uint32_is_read_where_it_is_named(tmp_path: Path) -> None:
    IDS.astype(np.uint32).tofile(tmp_path / "a.bin")
    np.testing.assert_array_equal(read_shard(tmp_path / "a.bin", "uint32").ids, IDS)
    with pytest.raises(UserError, match=r"a\.bin looks like uint32.* every second token id is 0 from byte 2"):
        read_shard(tmp_path / "a.bin", None)
    IDS.tofile(tmp_path / "b.bin")
    data = Tokens(path=str(tmp_path / "b.bin"), vocabulary=50, dtype="uint32", context=16)
    with pytest.raises(UserError, match=r"b\.bin: token \d+ \(byte \d+\) is \d+, and the vocabulary has 50 token ids"):
        data.load(Ids()).train.batch(torch.arange(4), None)


@pytest.mark.parametrize("counts", [(1000,), (400, 600), (17, 1, 2, 480, 500)])
@pytest.mark.parametrize("key", [None, 12345])
def test_shards_are_one_stream(counts: tuple[int, ...], key: int | None, tmp_path: Path) -> None:
    """As if the ids were in memory, wherever a shard ends."""
    stream = TokenStream(shards_of(tmp_path, *counts), 10, 990, 50)
    split, memory = TokenWindows([stream], 16), Windows(torch.from_numpy(IDS[10:990].astype(np.int32)), None, 16, 1.0)
    assert len(split) == len(memory)
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(split.batch(order, key).inputs, memory.batch(order, key).inputs, rtol=0, atol=0)
    assert isinstance(split, Resizable)
    longer, expected = split.at_length(60, 4), memory.at_length(60, 4)
    assert len(longer) == len(expected)
    order = torch.arange(len(longer))
    torch.testing.assert_close(longer.batch(order, None).inputs, expected.batch(order, None).inputs)


def test_longer_sequences_have_the_same_ids_in_every_source(tmp_path: Path) -> None:
    """Of sources with 6 and 9 sequences, whose largest multiples of 1, 2 and 4 differ."""
    shards = shards_of(tmp_path, 6 * 16 + 1, 9 * 16 + 1)
    lengths = [6 * 16 + 1, 9 * 16 + 1]
    split = TokenWindows([TokenStream([shard], 0, n, 50) for shard, n in zip(shards, lengths, strict=True)], 16)
    targets = [
        longer.batch(torch.arange(len(longer)), None).inputs[:, 1:].flatten()
        for longer in (split.at_length(15, factor, 4) for factor in (1, 2, 4))
    ]
    assert len(targets[0]) == (4 + 8) * 16
    for longer in targets[1:]:
        assert torch.equal(longer, targets[0])
    with pytest.raises(ValueError, match="no source has 16 sequences"):
        split.at_length(15, 2, 16)


def test_a_split_goes_to_another_process(tmp_path: Path) -> None:
    split = TokenWindows([TokenStream(shards_of(tmp_path, 500, 500), 0, 1000, 50)], 16)
    expected = split.batch(torch.arange(5), None).inputs  # with its files mapped
    copy = pickle.loads(pickle.dumps(split))
    assert len(pickle.dumps(split)) < 5000
    torch.testing.assert_close(copy.batch(torch.arange(5), None).inputs, expected)


def test_mapped_files_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_stream, "_READ", 10)
    released = []
    monkeypatch.setattr(token_stream, "release", lambda: (released.append(True), release()))
    split = TokenWindows([TokenStream(shards_of(tmp_path, 1000), 0, 1000, 50)], 16)
    for _ in range(5):
        split.batch(torch.arange(5), None)
    assert len(released) == 2


def test_ranges_are_those_of_text_file(tmp_path: Path) -> None:
    IDS.tofile(tmp_path / "all.bin")
    splits = Tokens(path=str(tmp_path / "all.bin"), vocabulary=50, context=16).load(Ids())
    bounds = [(split.streams[0].start, split.streams[0].stop) for split in splits]
    assert bounds == [(0, 850), (900, 1000), (850, 900)]


def test_names_say_the_split(tmp_path: Path) -> None:
    for name, count in {"train_0.bin": 500, "train_1.bin": 100, "val.bin": 200, "test/a.npy": 100}.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        np.save(file, ids(count)) if file.suffix == ".npy" else ids(count).tofile(file)
    splits = Tokens(path=str(tmp_path), vocabulary=50, context=16).load(Ids())
    assert [len(split.streams[0]) for split in splits] == [600, 200, 100]
    (tmp_path / "test" / "a.npy").unlink()
    splits = Tokens(path=str(tmp_path), vocabulary=50, context=16).load(Ids())
    assert [len(split.streams[0]) for split in splits] == [570, 200, 30]
    ids(100).tofile(tmp_path / "other.bin")
    with pytest.raises(UserError, match=r"other\.bin does not say its split"):
        read_source(tmp_path, None)


def two_sources(tmp_path: Path, **options: Any) -> Tokens:
    """The ids 0 ... 9 of one source and 10 ... 19 of another, half as long."""
    (np.arange(2000) % 10).astype(np.uint16).tofile(tmp_path / "web.bin")
    (np.arange(1000) % 10 + 10).astype(np.uint16).tofile(tmp_path / "code.bin")
    paths = [str(tmp_path / "web.bin"), str(tmp_path / "code.bin")]
    return Tokens(path=paths, vocabulary=20, context=10, **options)


def test_weights_are_the_shares_of_an_epoch(tmp_path: Path) -> None:
    data = two_sources(tmp_path, weights=[1.0, 3.0])
    train, validation, _ = data.load(Ids())
    assert data.spec.slices == ("web", "code")
    order = torch.arange(len(train))
    first, second, again = (train.batch(order, key) for key in (5, 6, 5))
    torch.testing.assert_close(first.inputs, again.inputs, rtol=0, atol=0)
    assert first.slice.bincount().tolist() == [round(len(train) / 4), len(train) - round(len(train) / 4)]
    assert ((first.inputs >= 10) == (first.slice == 1)[:, None]).all()
    assert not torch.equal(first.inputs, second.inputs)
    # The evaluation has every sequence of every source once, in order.
    batch = validation.batch(torch.arange(len(validation)), None)
    assert batch.slice.bincount().tolist() == [19, 9]


def test_a_source_is_drawn_without_repetition(tmp_path: Path) -> None:
    """Where it has more sequences than its share; where it has fewer, every sequence comes as often as others."""
    np.arange(1701, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.arange(5000, 5341, dtype=np.uint16).tofile(tmp_path / "b.bin")
    streams = [
        TokenStream([read_shard(tmp_path / n, "uint16")], 0, c, 6000) for n, c in (("a.bin", 1701), ("b.bin", 341))
    ]
    split = TokenWindows(streams, 10, weights=[1, 1])
    assert (split.counts, len(split)) == ([170, 34], 204)
    starts = split.batch(torch.arange(204), 40).inputs[:, 0]  # the key is a multiple of the context: no offset
    assert starts[:102].unique().numel() == 102
    assert starts[102:].unique(return_counts=True)[1].tolist() == [3] * 34
    assert starts[102:136].unique().numel() == 34  # one pass after the other


def test_a_separator_keeps_documents_apart(tmp_path: Path) -> None:
    np.array([1, 2, 0, 3, 0, 0, 4, 5, 6, 7, 8] * 20, dtype=np.uint16).tofile(tmp_path / "a.bin")
    data = Tokens(path=str(tmp_path / "a.bin"), vocabulary=9, separator=0, context=10)
    assert data.spec.packed
    batch = data.load(Ids()).train.batch(torch.tensor([0]), None)
    assert batch.segment.tolist() == [[0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 3]]


def test_many_sequences_have_a_keyed_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    IDS.tofile(tmp_path / "a.bin")
    data = Tokens(path=str(tmp_path / "a.bin"), vocabulary=50, context=4)
    assert not data.load(Ids()).train.keyed
    monkeypatch.setattr(token_stream, "LARGEST_TABLE", 100)
    assert data.load(Ids()).train.keyed


def test_the_fingerprint_depends_on_the_content(tmp_path: Path) -> None:
    def fingerprint() -> str:
        data = Tokens(path=str(tmp_path / "a.bin"), vocabulary=50, context=16)
        data.load(Ids())
        return data.fingerprint()

    IDS.tofile(tmp_path / "a.bin")
    first = fingerprint()
    assert fingerprint() == first
    changed = IDS.copy()
    changed[500] ^= 1
    changed.tofile(tmp_path / "a.bin")
    assert fingerprint() != first
