"""Tables of pairs, images, captions and numbers: what a model gets of a row, and which rows stay together."""

from __future__ import annotations

import csv
from decimal import Decimal
from inspect import getattr_static
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from blockyard.contracts import Splits
from blockyard.data.files.table_rows import TableRows, read_rows
from blockyard.data.rows.images import ImageColumn
from blockyard.data.table import Table
from blockyard.errors import UserError
from blockyard.objective.classify import Classify
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.columns import Columns
from blockyard.tokenizer.levels import Levels
from blockyard.tokenizer.patch import Patch
from tests.support.tables import write_pictures, write_rows
from tests.support.tolerances import FLOAT32_STEPS


def batches(splits: Splits) -> list[Any]:
    return [split.batch(torch.arange(len(split)), None) for split in splits]


def test_parquet_arrow_and_csv_are_the_same_table(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    rows = [{"text": f"text {n}", "label": n % 2, "split": ("train", "val", "test")[n // 2 % 3]} for n in range(40)]
    table = pa.Table.from_pylist(rows)
    pyarrow.csv.write_csv(table, tmp_path / "x.csv")
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "x.arrow", compression="uncompressed")
    loaded = []
    for name in ("x.csv", "x.parquet", "x.arrow"):
        data = Table(path=str(tmp_path / name))
        assert data.spec.class_names == ("0", "1")
        loaded.append((batches(data.load(Byte())), data.fingerprint()))
    for other, fingerprint in loaded[1:]:
        assert fingerprint == loaded[0][1]
        for ours, theirs in zip(other, loaded[0][0], strict=True):
            torch.testing.assert_close(ours.inputs, theirs.inputs)
            torch.testing.assert_close(ours.target, theirs.target)


@pytest.mark.parametrize("form", [".arrow", ".parquet"])
def test_every_type_that_holds_text_or_numbers_is_read(form: str, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    texts = [f"text {n}" for n in range(40)]
    columns = {
        "view": pa.array(texts, pa.string_view()),
        "large": pa.array(texts, pa.large_string()),
        "bytes": pa.array(texts).cast(pa.binary()),
        "bytes_view": pa.array([text.encode() for text in texts], pa.binary_view()),
        "category": pa.array(texts).dictionary_encode(),
        "number": pa.array([Decimal(n) / 4 for n in range(40)], pa.decimal256(40, 2)),
        "numbers": pa.array([float(n % 4) for n in range(40)]).dictionary_encode(),
        "label": pa.array([Decimal(n % 2) for n in range(40)], pa.decimal128(4, 1)),
        "broken": pa.array([b"\xff"] * 40),
    }
    if form == ".arrow":  # which Parquet cannot hold
        columns["category_view"] = pa.DictionaryArray.from_arrays(pa.array(range(40)), columns["view"])
    path = tmp_path / f"x{form}"
    if form == ".arrow":
        pyarrow.feather.write_feather(pa.table(columns), path, compression="uncompressed")
    else:
        pyarrow.parquet.write_table(pa.table(columns), path)
    kinds = {"number": "number", "numbers": "number", "large": "stored", "view": "stored"}
    rows = read_rows([path], {name: name for name in columns if name != "broken"}, kinds)
    for name in columns.keys() - {"number", "numbers", "label", "broken"}:
        assert rows.texts(name) == texts, name
        assert not rows.blank(name).any()
    assert rows.numbers(["number", "numbers"]).tolist() == [[n / 4, n % 4] for n in range(40)]
    assert rows.with_plain_names(["label"]).texts("label") == [str(n % 2) for n in range(40)]
    with pytest.raises(UserError, match=r"data\.text=broken: .* holds binary in this column that is not UTF-8 text"):
        read_rows([path], {"data.text": "broken"}, {})


@pytest.mark.parametrize("form", ["folder", "glob"])
def test_several_files_are_one_table_and_messages_name_the_file(form: str, tmp_path: Path) -> None:
    for part in range(3):
        write_rows(tmp_path / f"part-{part}.csv", [{"text": f"{part} {n}", "label": n % 2} for n in range(10)])
    path = str(tmp_path if form == "folder" else tmp_path / "part-*.csv")
    assert [len(split) for split in Table(path=path, test_fraction=0.2).load(Byte())] == [21, 3, 6]
    write_rows(tmp_path / "part-1.csv", [{"text": "a", "label": 0}, {"text": "", "label": 1}])
    with pytest.raises(UserError, match=r"part-1\.csv, line 3: no text$"):
        assert Table(path=path).spec


def test_a_pair_is_one_sequence_with_the_start_token_between(tmp_path: Path) -> None:
    rows = [{"text": "ab" * (n % 3 + 1), "next": "xyz", "label": n % 2, "id": n} for n in range(30)]
    for number, row in enumerate(rows):
        row["next"] += chr(97 + number)
    data = Table(path=str(write_rows(tmp_path / "x.tsv", rows)), pair="next", context=9)
    tokenizer = Byte()
    tokens = tokenizer.spec(data.spec)
    assert (tokens.vocabulary, tokens.start) == (258, 256)
    batch = batches(data.load(tokenizer))[0]
    assert isinstance(batch.lengths, Tensor)
    for ids, length in zip(batch.inputs.tolist(), batch.lengths.tolist(), strict=True):
        first, second = ids[: ids.index(256)], ids[ids.index(256) + 1 : length]
        assert len(ids[:length]) <= 9
        assert bytes(first).decode() in ("ab", "abab")  # six letters and four do not fit: both are cut to four
        assert bytes(second).decode().startswith("xyz")
    names = [model.name for model in data.load(tokenizer).test.baselines()]  # type: ignore[attr-defined]
    assert names == ["majority", "tf_idf"]


def test_numbers_are_standardized_by_the_training_rows(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    values = draws.normal(5.0, 3.0, (80, 2))
    values[0, 1] = np.nan
    rows = [{"a": a, "b": "" if np.isnan(b) else b, "label": int(a > 5)} for a, b in values]
    data = Table(path=str(write_rows(tmp_path / "x.csv", rows)), columns=("a", "b"))
    assert (data.spec.modality, data.spec.shape, data.spec.class_names) == ("vector", (2,), ("0", "1"))
    splits = data.load(Columns())
    train, _, test = batches(splits)
    torch.testing.assert_close(train.inputs.double().nanmean(0), torch.zeros(2).double(), **FLOAT32_STEPS)
    assert sum(int(batch.inputs.isnan().sum()) for batch in batches(splits)) == 1
    mean, std = (train_statistic(values, splits) for train_statistic in (_mean, _std))
    original = test.inputs[0].double() * std + mean
    assert np.isclose(values, original.numpy(), atol=1e-4).all(1).any()
    assert Classify().baselines(splits.test)["linear"]["accuracy"] > 0.9


def test_a_constant_column_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"a": n * 1.5, "b": 3.0, "label": n % 2} for n in range(40)]
    data = Table(path=str(write_rows(tmp_path / "x.csv", rows)), columns=("a", "b"))
    for batch in batches(data.load(Columns())):
        assert batch.inputs[:, 1].tolist() == [0.0] * len(batch.inputs)
    assert "1 of 2 columns have one value in the training split" in caplog.text


def _mean(values: np.ndarray, splits: Splits) -> Tensor:
    return torch.from_numpy(np.delete(values, _held(values, splits), 0)).nanmean(0)


def _std(values: np.ndarray, splits: Splits) -> Tensor:
    return torch.from_numpy(np.nanstd(np.delete(values, _held(values, splits), 0), 0))


def _held(values: np.ndarray, splits: Splits) -> list[int]:
    """The rows that are not in training, found by the order of the values of the first column."""
    order = torch.cat([split.inputs[:, 0] for split in splits]).argsort()  # type: ignore[attr-defined]
    rank = torch.from_numpy(values[:, 0]).argsort()
    count = len(splits.train)
    return rank[[n for n, i in enumerate(order.tolist()) if i >= count]].tolist()


def test_real_targets_are_in_standard_deviations_of_training(tmp_path: Path) -> None:
    rows = [{"text": "x" * (n % 7 + 1) + str(n), "price": 10.0 + n % 7} for n in range(70)]
    data = Table(path=str(write_rows(tmp_path / "x.csv", rows)), target=("price",))
    assert (data.spec.target, data.spec.values, data.spec.classes) == ("values", (1,), None)
    splits = data.load(Byte())
    train = batches(splits)[0]
    torch.testing.assert_close(train.target.double().mean(0), torch.zeros(1).double(), **FLOAT32_STEPS)
    back = train.target.double() * splits.train.std + splits.train.mean  # type: ignore[attr-defined]
    assert set(back.flatten().round().int().tolist()) == set(range(10, 17))
    assert isinstance(splits.train.lengths, Tensor)  # type: ignore[attr-defined]


def test_images_by_their_paths_are_those_of_the_files(tmp_path: Path) -> None:
    path = write_pictures(tmp_path, 24)
    data = Table(path=str(path), image="file", size=8)
    assert data.reads == "image"
    splits = data.load(Patch(size=4))
    assert [len(split) for split in splits] == [20, 2, 2]
    lazy = Table(path=str(path), image="file", size=8, memory_limit=0).load(Patch(size=4))
    for ours, theirs in zip(batches(splits), batches(lazy), strict=True):
        torch.testing.assert_close(ours.inputs, theirs.inputs)
        torch.testing.assert_close(ours.target, theirs.target)


def test_images_that_are_written_have_no_target_but_their_tokens(tmp_path: Path) -> None:
    path = write_pictures(tmp_path, 24)
    with path.open() as file:
        rows = [{**row, "price": n / 3} for n, row in enumerate(csv.DictReader(file))]
    priced = write_rows(tmp_path / "priced.csv", rows)
    data = Table(path=str(priced), image="file", size=8, channels=1, label=None, text=None, target=("price",))
    assert data.spec.target == "values"
    batch = batches(data.load(Levels()))[0]
    assert batch.target is None
    assert batch.inputs.shape == (20, 65)


def test_the_name_of_stored_bytes_does_not_tell_pictures_apart(tmp_path: Path) -> None:
    """Rows with one picture stay in one split, as they do where they name one file."""
    import pyarrow as pa

    cells = [
        {"bytes": content, "path": name} for content, name in ((b"abc", "a.png"), (b"abc", "b.png"), (b"x", "a.png"))
    ]
    rows = TableRows(pa.table({"image": cells}), (Path("x.parquet"),), np.zeros(3, int), np.arange(3), ("row",))
    first, second, third = ImageColumn("image", None, 3, 8, 1).keys(rows)
    assert first == second != third


def test_a_table_without_a_label_has_nothing_to_predict(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"w {n},{n % 2}\n" for n in range(40)))
    with pytest.raises(UserError, match=r"data\.label=null leaves nothing to predict"):
        _ = Table(path=str(tmp_path / "t.csv"), label=None).rows


def test_images_of_parquet_may_be_the_bytes_of_files(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    with write_pictures(tmp_path, 24).open() as file:
        rows = list(csv.DictReader(file))
    stored = [
        {"label": row["label"], "file": {"bytes": (tmp_path / row["file"]).read_bytes(), "path": None}} for row in rows
    ]
    pyarrow.parquet.write_table(pa.Table.from_pylist(stored), tmp_path / "x.parquet")
    options: dict[str, Any] = {"image": "file", "size": 8}
    ours = Table(path=str(tmp_path / "x.parquet"), **options).load(Patch(size=4))
    theirs = Table(path=str(tmp_path / "pictures.csv"), **options).load(Patch(size=4))
    torch.testing.assert_close(batches(ours)[2].inputs, batches(theirs)[2].inputs)


def test_a_text_beside_an_image_is_a_caption_or_with_a_label_a_question(tmp_path: Path) -> None:
    path = str(write_pictures(tmp_path, 24))
    caption = Table(path=path, image="file", size=8, text="title", label=None)
    assert caption.reads == "caption"
    assert caption.spec.source is not None
    batch = batches(caption.load(Byte()))[0]
    assert batch.source.shape == (20, 3, 8, 8)
    assert batch.inputs[:, 0].eq(256).all()
    question = Table(path=path, image="file", size=8, text="title")
    assert (question.reads, question.spec.target) == ("question", "class")
    batch = batches(question.load(Byte()))[0]
    assert batch.source.shape == (20, 3, 8, 8)
    assert batch.target.shape == (20,)


def test_repeated_rows_and_groups_stay_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": f"text {n // 3}", "label": n // 3 % 2, "who": n // 12} for n in range(240)]
    path = str(write_rows(tmp_path / "x.csv", rows))
    for options, of_row in (({}, "text"), ({"group": "who"}, "who")):
        data = Table(path=path, **options)  # type: ignore[arg-type]
        parts = [set(), set(), set()]  # type: ignore[var-annotated]
        for part, split in zip(parts, data.load(Byte()), strict=True):
            texts = [Byte().decode(ids[:n]) for ids, n in zip(*(t.tolist() for t in _inputs(split)), strict=True)]
            part |= {row[of_row] for row in rows if row["text"] in texts}
        assert not parts[0] & parts[1]
        assert not (parts[0] | parts[1]) & parts[2]
    assert "160 of 240 rows repeat the inputs of an earlier one; they stay in its split" in caplog.text
    assert "occur in the" not in caplog.text


def _inputs(split: Any) -> tuple[Tensor, Tensor]:
    batch = split.batch(torch.arange(len(split)), None)
    return batch.inputs, batch.lengths


def test_a_group_that_the_file_puts_in_two_splits_is_refused(tmp_path: Path) -> None:
    rows = [
        {"text": f"t{n}", "label": n % 2, "id": n // 2, "split": ("train", "test", "val")[n // 2 % 3]}
        for n in range(30)
    ]
    rows[2]["id"] = 0
    with pytest.raises(UserError, match=r"lines 2, 3, 4: 1 of the id are in several splits, such as 0"):
        Table(path=str(write_rows(tmp_path / "x.csv", rows)), group="id").load(Byte())


def test_tables_of_several_folders_have_their_own_images(tmp_path: Path) -> None:
    """Images of one name are different ones, in memory and from files."""
    for name, colour in (("black", 0), ("white", 255)):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(12):
            Image.new("RGB", (8, 8), (colour,) * 3).save(folder / f"{number}.png")
        write_rows(folder / "labels.csv", [{"image": f"{n}.png", "label": name} for n in range(12)])
    for limit in (2048, 0):
        data = Table(path=str(tmp_path / "*" / "labels.csv"), image="image", text=None, size=8, memory_limit=limit)
        for batch in batches(data.load(Patch(size=4))):
            brighter = batch.inputs.mean((1, 2, 3)) > 0
            assert brighter.tolist() == (batch.target == data.class_names.index("white")).tolist()


def test_a_corrected_label_of_images_in_files_is_other_data(tmp_path: Path) -> None:
    fingerprints = []
    for last in ("a", "b"):
        folder = tmp_path / last
        folder.mkdir()
        splits = ["train", "train", "val", "test"] * 4
        for number in range(16):
            Image.new("RGB", (8, 8), (number,) * 3).save(folder / f"{number}.png")
        labels = [*"abab" * 3, "a", last, "a", "b"]
        write_rows(
            folder / "x.csv",
            [{"image": f"{n}.png", "label": labels[n], "split": splits[n]} for n in range(16)],
        )
        data = Table(path=str(folder / "x.csv"), image="image", text=None, size=8, memory_limit=0)
        data.load(Patch(size=4))
        fingerprints.append(data.fingerprint())
    assert fingerprints[0] != fingerprints[1]


def test_a_slice_by_a_feature_of_numbers_has_their_names(tmp_path: Path) -> None:
    people = [{"age": n, "sex": n % 2, "label": "ab"[n // 2 % 2]} for n in range(40)]
    write_rows(tmp_path / "x.csv", people)
    data = Table(path=str(tmp_path / "x.csv"), columns=("age", "sex"), text=None, slices="sex")
    assert data.spec.slices == ("0", "1")
    for batch in batches(data.load(Columns())):
        assert set(batch.slice.tolist()) <= {0, 1}


@pytest.mark.parametrize(("option", "members"), [({}, ["baselines"]), ({"target": ("size",)}, ["mean", "std"])])
def test_a_split_with_slices_keeps_its_protocols_without_getattr(
    option: dict[str, Any], members: list[str], tmp_path: Path
) -> None:
    people = [{"age": n, "sex": n % 2, "size": n / 2, "label": "ab"[n // 2 % 2]} for n in range(40)]
    write_rows(tmp_path / "x.csv", people)
    data = Table(path=str(tmp_path / "x.csv"), columns=("age",), text=None, slices="sex", **option)
    for split in data.load(Columns()):
        for name in members:  # `getattr_static` is how `isinstance` asks from Python 3.12 on
            assert getattr_static(split, name, None) is not None, name


@pytest.mark.parametrize("option", [{"flip": True}, {"shift": 1}, {"crop": 0.2}])
def test_augmentation_of_rows_that_are_no_images_is_refused(option: dict[str, Any], tmp_path: Path) -> None:
    write_rows(tmp_path / "x.csv", [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(40)])
    with pytest.raises(UserError, match="changes images, but a row is"):
        Table(path=str(tmp_path / "x.csv"), **option).load(Byte())
