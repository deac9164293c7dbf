"""data=tokens: bad shards, ids and options are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from blockyard.data.files.token_shards import read_shard, read_source
from blockyard.data.splits.token_stream import TokenStream, TokenWindows
from blockyard.data.tokens import Tokens
from blockyard.errors import UserError
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.ids import Ids
from tests.support.token_files import ids, litpkds, llm_c, write_litdata

IDS = ids(1000)


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
    with pytest.raises(UserError, match=r"index\.json lists chunk-0-0\.bin, which is missing"):
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
