"""Arrays: what each kind of inputs and targets becomes, and what is refused with its row."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.contracts import Splits
from blockyard.data.arrays import Arrays
from blockyard.data.files import arrays as files
from blockyard.data.splits.arrays import ArrayRows, moments
from blockyard.errors import UserError
from blockyard.tokenizer.columns import Columns
from blockyard.tokenizer.levels import Levels
from blockyard.tokenizer.patch import Patch
from blockyard.tokenizer.patch_codes import PatchCodes
from blockyard.tokenizer.patch_values import PatchValues
from blockyard.tokenizer.series_patch import SeriesPatch
from blockyard.tokenizer.symbols import Symbols

DRAWS = np.random.default_rng(0)
CLASSES = np.arange(60) % 3
KINDS: dict[str, tuple[np.ndarray, Any, Any]] = {
    "gray images": (DRAWS.integers(0, 256, (60, 8, 8), dtype=np.uint8), Patch(size=4), (1, 8, 8)),
    "images": (DRAWS.integers(0, 256, (60, 3, 8, 6), dtype=np.uint8), Patch(size=2), (3, 8, 6)),
    "channels last": (DRAWS.integers(0, 256, (60, 8, 6, 3), dtype=np.uint8), Patch(size=2), (3, 8, 6)),
    "token ids": (DRAWS.integers(0, 9, (60, 12)), Symbols(), (12,)),
    "series": (DRAWS.normal(5, 2, (60, 24, 2)).astype(np.float32), SeriesPatch(size=8), (24, 2)),
    "vectors": (DRAWS.normal(5, 2, (60, 7)), Columns(), (7,)),
}


def write(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def batches(splits: Splits) -> list[Any]:
    return [split.batch(torch.arange(len(split)), None) for split in splits]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_its_rows_and_classes(kind: str, tmp_path: Path) -> None:
    values, tokenizer, shape = KINDS[kind]
    data = Arrays(path=write(tmp_path / "x.npz", x=values, y=CLASSES))
    assert (data.spec.shape, data.spec.classes, data.spec.class_names) == (shape, 3, ("0", "1", "2"))
    tokenizer.spec(data.spec)
    splits = data.load(tokenizer)
    assert [len(split) for split in splits] == [48, 6, 6]
    read = batches(splits)
    for batch in read:
        assert batch.inputs.shape[1:] == shape
        assert batch.target.bincount(minlength=3).unique().numel() == 1
    if kind == "token ids":
        inputs = {tuple(row) for batch in read for row in batch.inputs.tolist()}
        assert inputs == {tuple(row) for row in values.tolist()}
    else:
        axes = (
            (0, *range(2, len(shape) + 1)) if "images" in kind or kind == "channels last" else tuple(range(len(shape)))
        )
        torch.testing.assert_close(
            read[0].inputs.double().mean(axes).abs().max(), torch.zeros((), dtype=torch.float64), atol=1e-4, rtol=0
        )
    assert data.fingerprint() == _again(data, tokenizer)


def _again(data: Arrays, tokenizer: Any) -> str:
    other = Arrays(path=data.path)
    other.load(tokenizer)
    return other.fingerprint()


def test_moments_of_large_values_that_are_near_each_other() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=(1000, 3))
    values[5, 1] = np.nan
    mean, std = moments(ArrayRows(values, torch.arange(1000)), (0,))
    np.testing.assert_allclose(mean[0], np.nanmean(values, 0), rtol=1e-12)
    np.testing.assert_allclose(std[0], np.nanstd(values, 0), rtol=1e-6)


@pytest.mark.parametrize(("shape", "axes"), [((50, 6, 2), (0, 1)), ((50, 3), (0,))])
def test_moments_are_those_of_each_channel(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Of series the first one was subtracted from all; a gap in the first row left large values as they are."""
    values = 1.7e9 + np.random.default_rng(0).normal(0, 2, shape)
    values.reshape(-1, shape[-1])[0, 1] = np.nan
    mean, std = moments(ArrayRows(values, torch.arange(len(values))), axes)
    assert mean.shape == std.shape == (*(1 for _ in axes), shape[-1])
    np.testing.assert_allclose(mean.flatten(), np.nanmean(values, axes), rtol=1e-12)
    np.testing.assert_allclose(std.flatten(), np.nanstd(values, axes), rtol=1e-6)


@pytest.mark.parametrize("kind", ["vectors", "series"])
def test_a_constant_column_is_centred_and_divided_by_one(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values, tokenizer, shape = KINDS[kind]
    changed = values.copy()
    changed[..., 1] = 36.6
    others = [column for column in range(shape[-1]) if column != 1]
    parts = [batches(Arrays(path=write(tmp_path / "x.npz", x=x, y=CLASSES)).load(tokenizer)) for x in (values, changed)]
    for before, after in zip(*parts, strict=True):
        torch.testing.assert_close(after.inputs[..., 1], torch.zeros_like(after.inputs[..., 1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(after.inputs[..., others], before.inputs[..., others])
    assert caplog.messages == [
        f"1 of {shape[-1]} columns have one value in the training split, which is subtracted, and are divided by 1: "
        "x[1]"
    ]


def test_classes_of_text_have_the_rules_of_tables(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    vectors = KINDS["vectors"][0]
    names = np.where(np.arange(60) < 30, "1", "1.0")
    names[::3] = "0"
    data = Arrays(path=write(tmp_path / "x.npz", x=vectors, y=names.astype("S")))
    assert data.class_names == ("0", "1")
    assert [len(split) for split in data.load(Columns())] == [48, 6, 6]
    assert not caplog.messages
    names[0] = "O"
    names[3] = "o"
    assert Arrays(path=write(tmp_path / "x.npz", x=vectors, y=names)).class_names == ("0", "1", "1.0", "O", "o")
    assert "has classes that look alike: 'O' (1) and 'o' (1)" in caplog.text


def test_arrays_are_looked_at_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHECKED", 10)
    for row in (0, 30, 59):
        values = np.where(np.arange(60)[:, None] == row, np.inf, ROWS)
        data = Arrays(path=write(tmp_path / "x.npz", x=values, y=CLASSES))
        with pytest.raises(UserError, match=rf"x, rows {row} \(from 0\): an infinite"):
            assert data.spec


def test_a_single_array_is_mapped_and_gives_the_same(tmp_path: Path) -> None:
    values, tokenizer, _ = KINDS["vectors"]
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "y.npy", CLASSES)
    data = Arrays(path=str(tmp_path / "x.npy"), target=str(tmp_path / "y.npy"))
    assert isinstance(data.values, np.memmap)
    named = Arrays(path=write(tmp_path / "x.npz", x=values, y=CLASSES))
    for ours, theirs in zip(batches(data.load(tokenizer)), batches(named.load(tokenizer)), strict=True):
        torch.testing.assert_close(ours.inputs, theirs.inputs)
        torch.testing.assert_close(ours.target, theirs.target)


def test_targets_may_be_names_real_values_token_ids_or_none(tmp_path: Path) -> None:
    vectors, ids = KINDS["vectors"][0], KINDS["token ids"][0]
    named = Arrays(path=write(tmp_path / "a.npz", x=vectors, y=np.array(["ham", "spam"] * 30)))
    assert named.spec.class_names == ("ham", "spam")
    real = Arrays(path=write(tmp_path / "b.npz", x=vectors, y=vectors[:, :2] * 3 + 1))
    assert (real.spec.target, real.spec.values) == ("values", (2,))
    train = real.load(Columns()).train
    target = train.batch(torch.arange(len(train)), None).target
    assert isinstance(target, torch.Tensor)
    torch.testing.assert_close(target.std(0, correction=0), torch.ones(2), atol=1e-4, rtol=0)
    tagged = Arrays(path=write(tmp_path / "c.npz", x=ids, y=ids[:, ::-1]))
    assert tagged.spec.target == "symbols"
    batch = batches(tagged.load(Symbols()))[0]
    assert torch.equal(batch.target, batch.inputs.flip(1))
    alone = Arrays(path=write(tmp_path / "d.npz", x=ids), target=None)
    assert alone.spec.target is None
    assert batches(alone.load(Symbols()))[0].target is None


@pytest.mark.parametrize("target", ["classes", "values", "none"])
@pytest.mark.parametrize("make", [Levels, partial(PatchCodes, size=4, codes=8), partial(PatchValues, size=4)])
def test_images_that_are_written_become_tokens_that_give_them_back(make: Any, target: str, tmp_path: Path) -> None:
    tokenizer = make()
    images = KINDS["gray images"][0]
    targets = {"classes": {"y": CLASSES}, "values": {"y": images[:, 0, 0] / 3.0}, "none": {}}[target]
    data = Arrays(path=write(tmp_path / "x.npz", x=images, **targets), target="y" if targets else None)
    spec = tokenizer.spec(data.spec)
    splits = data.load(tokenizer)
    assert [len(split) for split in splits] == [48, 6, 6]
    stored = {image.tobytes() for image in images}
    for batch in batches(splits):
        assert batch.target is None
        assert batch.inputs.shape[1] == 1 + np.prod(spec.grid)
        if not isinstance(tokenizer, PatchCodes):
            assert {image.numpy().tobytes() for image in tokenizer.decode(batch.inputs[:, 1:])} <= stored


def test_a_split_array_says_who_goes_where(tmp_path: Path) -> None:
    parts = np.array(["train", "train", "val", "test"] * 15)
    data = Arrays(path=write(tmp_path / "x.npz", x=KINDS["vectors"][0], y=CLASSES, split=parts))
    assert [len(split) for split in data.load(Columns())] == [30, 15, 15]


ROWS, IDS = KINDS["vectors"][0], KINDS["token ids"][0]
RAGGED = np.array([[1], [1, 2]], dtype=object)
SPLITS = np.repeat(["train", "val", "test"], 20)
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "ragged": ({"x": RAGGED}, {}, r"x\.npz, x: an array of objects, such as rows of different"),
    "another name": ({"xs": CLASSES}, {}, r"data\.inputs=x: .* no such array; it has y, xs; did you mean xs\?"),
    "other lengths": ({"x": ROWS[:50]}, {}, r"50 rows of inputs and 60 targets"),
    "nan target": ({"x": ROWS, "y": np.where(CLASSES == 1, np.nan, 1.0)}, {}, r"y, rows 1, 4, .*: the target is not"),
    "three axes": ({"x": ROWS, "y": np.zeros((60, 2, 3))}, {}, r"y: floats of shape \(60, 2, 3\); values are \(n,\)"),
    "infinite": ({"x": np.where(np.arange(60)[:, None] == 7, np.inf, ROWS)}, {}, r"x, rows 7 \(from 0\): an infinite"),
    "beyond the vocabulary": ({"x": IDS}, {"vocabulary": 8}, r"x, rows .*: a token id below 0 or from data\.voc"),
    "no kind": ({"x": ROWS}, {"kind": "image"}, r"float64 of shape \(60, 7\) cannot be read as image"),
    "one class": ({"x": ROWS, "y": CLASSES * 0}, {}, r"every row has the class 0"),
    "no columns": ({"x": ROWS[:, :0]}, {}, r"x: an empty array, of shape \(60, 0\)"),
    "constant": ({"x": ROWS * 0, "split": SPLITS}, {}, r"all columns have one value in the training split"),
    "unknown split": ({"x": ROWS, "split": np.array(["rest"] * 60)}, {}, r"split, rows 0, 1, .*: none of train"),
}


@pytest.mark.parametrize(("arrays", "options", "message"), BAD.values(), ids=BAD)
def test_bad_arrays_are_refused(arrays: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = Arrays(path=write(tmp_path / "x.npz", **{"y": CLASSES, **arrays}), **options)
    with pytest.raises(UserError, match=message):
        assert data.spec and data.load(Columns())  # noqa: PT018 - as `check` and then a run do


def test_an_encrypted_archive_is_named_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "x.npz", x=KINDS["vectors"][0], y=CLASSES)
    content = bytearray(Path(path).read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(signature)
        while start >= 0:
            content[start + flags] |= 1
            start = content.find(signature, start + 1)
    Path(path).write_bytes(content)
    with pytest.raises(UserError, match="is encrypted"):
        _ = Arrays(path=path).spec
