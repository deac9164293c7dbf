"""Data sets that `datasets` saved: the same rows and classes as the table they came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockyard.data.hf import HuggingFace
from blockyard.data.table import Table
from blockyard.errors import UserError
from blockyard.tokenizer.byte import Byte
from tests.support.tables import write_rows

datasets = pytest.importorskip("datasets")

ROWS = [{"text": f"text {n}", "label": n % 3, "split": ("train", "validation", "test")[n // 3 % 3]} for n in range(54)]


def saved(folder: Path, *, names: list[str]) -> Path:
    """A DatasetDict with splits of its own, and a ClassLabel."""
    parts = {}
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    for part in ("train", "validation", "test"):
        rows = [{"text": row["text"], "label": row["label"]} for row in ROWS if row["split"] == part]
        parts[part] = datasets.Dataset.from_list(rows, features=features)
    datasets.DatasetDict(parts).save_to_disk(str(folder))
    return folder


def test_a_saved_data_set_is_the_table_with_its_class_names(tmp_path: Path) -> None:
    data = HuggingFace(path=str(saved(tmp_path / "hf", names=["zero", "one", "two"])))
    assert data.missing() is None
    assert data.spec.class_names == ("zero", "one", "two")
    table = Table(path=str(write_rows(tmp_path / "x.csv", ROWS)))
    for ours, theirs in zip(data.load(Byte()), table.load(Byte()), strict=True):
        order = torch.arange(len(theirs))
        assert len(ours) == len(theirs) == 18
        torch.testing.assert_close(ours.batch(order, None).inputs, theirs.batch(order, None).inputs)
        torch.testing.assert_close(ours.batch(order, None).target, theirs.batch(order, None).target)


@pytest.mark.full
def test_one_data_set_is_split_by_the_options_and_files_are_read_as_tables(tmp_path: Path) -> None:
    one = datasets.Dataset.from_list([{"text": row["text"], "label": str(row["label"])} for row in ROWS])
    one.save_to_disk(str(tmp_path / "one"))
    one.to_parquet(str(tmp_path / "one.parquet"))
    folder, file = (HuggingFace(path=str(tmp_path / name)) for name in ("one", "one.parquet"))
    assert [len(split) for split in folder.load(Byte())] == [44, 5, 5]
    file.load(Byte())
    assert folder.fingerprint() == file.fingerprint()


def test_splits_without_labels_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the test split of GLUE, and the unsupervised one of IMDb."""
    features = datasets.Features({"text": VALUE, "label": datasets.ClassLabel(names=["1.0", "2.0"])})
    parts = {}
    for name in ("train", "validation"):
        samples = [{"text": f"{name} {n}", "label": n % 2} for n in range(20)]
        parts[name] = datasets.Dataset.from_list(samples, features=features)
    for name in ("test", "unsupervised"):
        parts[name] = datasets.Dataset.from_list([{"text": name, "label": -1}] * 8, features=features)
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "glue"))
    data = HuggingFace(path=str(tmp_path / "glue"))
    assert data.spec.class_names == ("1", "2")
    assert [len(split) for split in data.load(Byte())] == [16, 20, 4]
    assert "the 8 rows of the split test have no label and are left out" in caplog.text
    assert "the 8 rows of the split unsupervised have no label" in caplog.text


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "no data set in" in str(HuggingFace(path=str(tmp_path)).missing())
    folder = saved(tmp_path / "hf", names=["a", "b", "c"])
    with pytest.raises(
        UserError, match=r"data\.text=texts: .* has no such column; it has 'text', 'label', 'split'; did you"
    ):
        assert HuggingFace(path=str(folder), text="texts").spec
    next((folder / "train").glob("*.arrow")).write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read as a data set"):
        assert HuggingFace(path=str(folder)).spec


def test_rows_without_a_class_and_splits_without_a_column_are_named(tmp_path: Path) -> None:
    features = datasets.Features({"text": VALUE, "label": datasets.ClassLabel(names=["a", "b"])})
    samples = [{"text": str(n), "label": None if n == 2 else n % 2} for n in range(20)]
    datasets.Dataset.from_list(samples, features=features).save_to_disk(str(tmp_path / "gaps"))
    with pytest.raises(UserError, match=r"row 3: no (data\.)?label"):
        HuggingFace(path=str(tmp_path / "gaps")).load(Byte())
    parts = {"train": datasets.Dataset.from_list([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}])}
    parts["test"] = datasets.Dataset.from_list([{"text": "c"}])
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "short"))
    with pytest.raises(UserError, match=r"short.test: no such column|no such column; it has 'text'"):
        HuggingFace(path=str(tmp_path / "short")).load(Byte())


def test_licence_and_repository_are_what_the_data_set_says(tmp_path: Path) -> None:
    files = {f"hf://datasets/stanfordnlp/imdb@{'0' * 40}/train-{n}.parquet": {"num_bytes": 1} for n in range(2)}
    info = datasets.DatasetInfo(license="mit", download_checksums=files)
    one = datasets.Dataset.from_list([{"text": "a"}, {"text": "b"}], features=datasets.Features({"text": VALUE}))
    for name, described, expected in (("of", info, ("mit", "stanfordnlp/imdb")), ("own", None, (None, None))):
        if described is not None:
            one._info.update(described)
        one.save_to_disk(str(tmp_path / name))
        one = datasets.Dataset.from_list([{"text": "a"}, {"text": "b"}])
        data = HuggingFace(path=str(tmp_path / name))
        assert (data.licence(), data.hub_name()) == expected


VALUE = datasets.Value("string")
