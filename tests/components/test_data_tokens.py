"""data=tokens: every format gives the same ids, streams over shards are one stream, bad files are refused by name."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.contracts import Resizable
from blockyard.data import _token_stream
from blockyard.data._text import Windows
from blockyard.data._token_folder import read_source
from blockyard.data._token_shard import read_shard, release
from blockyard.data._token_stream import TokenStream, TokenWindows
from blockyard.data.tokens import Tokens
from blockyard.errors import UserError
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.ids import Ids
from tests.token_files import ids, litpkds, llm_c, write_litdata

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


def test_a_split_goes_to_another_process(tmp_path: Path) -> None:
    split = TokenWindows([TokenStream(shards_of(tmp_path, 500, 500), 0, 1000, 50)], 16)
    expected = split.batch(torch.arange(5), None).inputs  # with its files mapped
    copy = pickle.loads(pickle.dumps(split))
    assert len(pickle.dumps(split)) < 5000
    torch.testing.assert_close(copy.batch(torch.arange(5), None).inputs, expected)


def test_mapped_files_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_token_stream, "_READ", 10)
    released = []
    monkeypatch.setattr(_token_stream, "release", lambda: (released.append(True), release()))
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
    monkeypatch.setattr(_token_stream, "LARGEST_TABLE", 100)
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


BAD: dict[str, tuple[bytes, str]] = {
    "empty.bin": (b"", r"empty\.bin is empty \(0 bytes\)"),
    "odd.bin": (b"\1\0" * 50 + b"\1", r"odd\.bin is truncated, or not of uint16: .*cut at byte 100"),
    "header.bin": (b"LITPKDS\1", r"header\.bin is truncated: its header of 24 bytes ends at byte 8"),
    "floats.bin": (litpkds(np.zeros(5, np.float32), 6), r"floats\.bin holds no token ids: .* number 6"),
    "short.bin": (litpkds(IDS)[:-10], r"short\.bin is truncated: 1,000 token ids of uint16 end at byte 2,024"),
    "long.bin": (litpkds(IDS) + b"\0\0", r"long\.bin has bytes after its last token id"),
    "llm.bin": (llm_c(IDS)[:-2], r"llm\.bin is truncated: 1,000 token ids of uint16 end at byte 3,024"),
    "text.npy": (b"to be or not to be", r"text\.npy is not a \.npy file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shards_are_refused(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_shard(tmp_path / name, None)


@pytest.mark.parametrize("values", [np.zeros(10), np.zeros((2, 5), np.int32)])
def test_arrays_that_are_no_ids_are_refused(values: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(UserError, match=r"a\.npy holds .* token ids are whole numbers of shape \(n,\)"):
        read_shard(tmp_path / "a.npy", None)


def test_a_truncated_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IDS)
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content[:-7])
    with pytest.raises(UserError, match=r"a\.npy is truncated: 1,000 token ids"):
        read_shard(tmp_path / "a.npy", None)


@pytest.mark.parametrize(("index", "value"), [(437, 50), (999, 60_000)])
def test_an_id_beyond_the_vocabulary_is_named(index: int, value: int, tmp_path: Path) -> None:
    wrong = IDS.copy()
    wrong[index] = value
    wrong[:600].tofile(tmp_path / "train_0.bin")
    wrong[600:].tofile(tmp_path / "train_1.bin")
    stream = TokenStream(read_source(tmp_path, None).shards["train"], 0, 1000, 50)
    split = TokenWindows([stream], 37)
    name, inside = ("train_0.bin", index) if index < 600 else ("train_1.bin", index - 600)
    with pytest.raises(UserError, match=rf"{name}: token {inside} \(byte {2 * inside}\) is {value}, .* has 50"):
        split.batch(torch.arange(len(split)), None)


def test_a_negative_id_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2, -1] + [0] * 50))
    split = TokenWindows([TokenStream([read_shard(tmp_path / "a.npy", None)], 0, 53, 5)], 10)
    with pytest.raises(UserError, match=r"a\.npy: token 2 \(byte 144\) is -1"):
        split.batch(torch.tensor([0]), None)


def test_litdata_that_is_not_tokens_is_refused(tmp_path: Path) -> None:
    folder = write_litdata(tmp_path / "train", [IDS])
    (folder / "chunk-0-0.bin").write_bytes(b"\0" * 37)
    with pytest.raises(UserError, match=r"chunk-0-0\.bin is truncated: 1,000 token ids follow byte 12"):
        read_source(tmp_path, None)
    (folder / "chunk-0-0.bin").unlink()
    with pytest.raises(UserError, match=r"index\.json lists chunk-0-0\.bin, which is not there"):
        read_source(tmp_path, None)
    (folder / "index.json").write_text('{"config": {"data_format": ["jpeg"]}, "chunks": []}')
    with pytest.raises(UserError, match=r"does not describe uncompressed chunks of token ids"):
        read_source(tmp_path, None)


def test_a_vocabulary_that_would_be_learned_is_refused(tmp_path: Path) -> None:
    IDS.tofile(tmp_path / "a.bin")
    with pytest.raises(UserError, match=r"has no manifest .* use tokenizer=ids data\.vocabulary=N"):
        Tokens(path=str(tmp_path / "a.bin"), context=16).load(Char())
    assert len(Tokens(path=str(tmp_path / "a.bin"), context=16).load(Byte()).train)
    with pytest.raises(UserError, match=r"data\.vocabulary=50: the tokenizer has 256"):
        Tokens(path=str(tmp_path / "a.bin"), context=16, vocabulary=50).load(Byte())


def test_too_few_ids_are_refused(tmp_path: Path) -> None:
    IDS[:100].tofile(tmp_path / "a.bin")
    with pytest.raises(UserError, match=r"data\.context=16: the validation split of .*a\.bin has 10 token ids"):
        Tokens(path=str(tmp_path / "a.bin"), context=16, vocabulary=50).load(Ids())


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.weights has 1 numbers and data\.path 2 sources"):
        Tokens(path=["a", "b"], weights=[1.0])
    with pytest.raises(UserError, match=r"data\.path=\[\] names no source"):
        Tokens(path=[])
    assert "nothing at" in str(Tokens(path="no/such/folder").missing())
