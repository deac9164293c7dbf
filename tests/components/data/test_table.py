"""Tables of texts and labels: what is read, how it is split, and what is refused with its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas
import pytest
import torch

from blockyard.cli import main
from blockyard.contracts import Splits
from blockyard.data.files.tables import read_table
from blockyard.data.table import Table
from blockyard.errors import UserError
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.word import Word
from tests.support.engine_runs import run
from tests.support.tiny import ON_CPU, ONE_LAYER, steps

LABELS = ("ham", "spam", "other")


def rows(count: int = 60) -> list[dict[str, str]]:
    return [
        {
            "text": f"text {n}, with a comma",
            "label": LABELS[n % 3],
            "split": ("train", "train", "dev", "test")[n // 3 % 4],
        }
        for n in range(count)
    ]


def write(path: Path, columns: tuple[str, ...] = ("text", "label"), table: list[dict[str, str]] | None = None) -> Path:
    """The columns of a table in the form that the name asks for."""
    table, name = rows() if table is None else table, path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        lines = [json.dumps({column: row[column] for column in columns}) for row in table]
    else:
        mark = "\t" if name.endswith(".tsv") else ","
        cells = [list(columns), *([row[column] for column in columns] for row in table)]
        lines = [mark.join(f'"{cell}"' if mark in cell else cell for cell in row) for row in cells]
    content = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def texts_of(splits: Splits) -> list[list[tuple[str, int]]]:
    """Every text with its class, split by split."""
    texts = []
    for split in splits:
        batch = split.batch(torch.arange(len(split)), None)
        assert batch.lengths is not None
        assert isinstance(batch.target, torch.Tensor)
        decoded = [Byte().decode(ids[:n]) for ids, n in zip(batch.inputs.tolist(), batch.lengths.tolist(), strict=True)]
        texts.append(list(zip(decoded, batch.target.tolist(), strict=True)))
    return texts


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.tsv", "x.tsv.gz", "x.jsonl", "x.jsonl.gz"])
def test_every_form_is_the_same_table(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, ("split", "label", "text"))
    data = Table(path=str(path))
    assert data.spec.class_names == ("ham", "other", "spam")
    assert data.spec.classes == 3
    names = data.spec.class_names
    expected = [
        [(row["text"], names.index(row["label"])) for row in rows() if row["split"] == part]
        for part in ("train", "dev", "test")
    ]
    assert texts_of(data.load(Byte())) == expected


def test_a_class_that_reads_like_a_missing_label_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x.csv").write_text("text,label\n" + "".join(f"a{n},{'NaN' if n % 3 else 'b'}\n" for n in range(9)))
    assert Table(path=str(tmp_path / "x.csv")).spec.class_names == ("NaN", "b")
    assert "has the class NaN: leave a cell empty where no label is known" in caplog.text


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_labels_1_and_1_0_are_one_class(name: str, tmp_path: Path) -> None:
    """Of whole numbers alone, and across files: pandas writes 1.0 in every part that has a gap."""
    table = [row | {"label": f"{n % 2}{'.0' * (n > 30)}", "group": f"{n}.0"} for n, row in enumerate(rows())]
    path = tmp_path / name
    if name == "x.csv":
        write(path, ("text", "label", "group"), table)
    else:
        lines = [f'{{"text": "{n}", "label": {row["label"]}, "group": {n}}}\n' for n, row in enumerate(table)]
        path.write_text("".join(lines))
    data = Table(path=str(path), group="group")
    assert data.spec.class_names == ("0", "1")
    data.load(Byte())
    (tmp_path / "parts").mkdir()
    for part, labels in (("train", ("0", "1")), ("test", ("0.0", "1.0"))):
        own = [row | {"label": labels[n % 2], "split": part} for n, row in enumerate(rows())]
        write(tmp_path / "parts" / f"{part}.csv", ("text", "label", "split"), own)
    assert Table(path=str(tmp_path / "parts"), slices="label").spec.slices == ("0", "1")


def test_labels_that_are_not_all_whole_numbers_stay_as_they_are(tmp_path: Path) -> None:
    table = [row | {"label": ("1", "01", "1.0")[n % 3]} for n, row in enumerate(rows())]
    assert Table(path=str(write(tmp_path / "x.csv", table=table))).class_names == ("01", "1", "1.0")


def test_classes_that_look_alike_are_reported_in_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labels = ("spam", "spam ", "Z\u00fcrich", "Zu\u0308rich", "Spam", "ham", "none")
    table = [row | {"label": labels[n % 7]} for n, row in enumerate(rows(70))]
    Table(path=str(write(tmp_path / "x.csv", table=table))).load(Byte())
    (message,) = [message for message in caplog.messages if "look alike" in message]
    assert "'Spam' (10) and 'spam' (10) and 'spam ' (10)" in message
    assert r"'Zu\u0308rich' (10) and 'Z\xfcrich' (10); write them alike" in message
    assert "it has the class none: leave a cell empty" in message


def test_names_of_splits_in_any_case(tmp_path: Path) -> None:
    spelled = {"train": "TRAIN", "dev": "Validation", "test": "Test"}
    columns = ("text", "label", "split")
    plain = write(tmp_path / "plain.csv", columns)
    other = write(tmp_path / "other.csv", columns, [row | {"split": spelled[row["split"]]} for row in rows()])
    assert texts_of(Table(path=str(other)).load(Byte())) == texts_of(Table(path=str(plain)).load(Byte()))


def test_a_split_without_labels_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The test split of GLUE has the label -1."""
    path = tmp_path / "x.csv"
    loaded = []
    for hidden in ("-1", ""):
        table = [row | ({"label": hidden} if row["split"] == "test" else {}) for row in rows()]
        table.append({"text": "more", "label": "", "split": "unsupervised"})
        loaded.append(texts_of(Table(path=str(write(path, ("text", "label", "split"), table))).load(Byte())))
    assert loaded[0] == loaded[1]
    assert [len(texts) for texts in loaded[0]] == [26, 15, 4]  # a tenth of the 45 rows that are left
    assert caplog.messages.count(f"{path}: the 15 rows of the split test have no label and are left out") == 2
    assert "the 1 rows of the split unsupervised have no label" in caplog.text


def test_a_label_minus_one_of_training_is_a_class(tmp_path: Path) -> None:
    table = [row | ({"label": "-1"} if row["split"] == "test" else {}) for row in rows()]
    table[0]["label"] = "-1"
    path = str(write(tmp_path / "x.csv", ("text", "label", "split"), table))
    assert Table(path=path).class_names == ("-1", "ham", "other", "spam")


def test_a_split_without_real_values_is_left_out(tmp_path: Path) -> None:
    parts = ("train", "val", "test")
    table = [{"text": str(n), "y": "-1" if n % 3 == 2 else str(n), "split": parts[n % 3]} for n in range(60)]
    path = write(tmp_path / "x.csv", ("text", "y", "split"), table)
    assert [len(split) for split in Table(path=str(path), target=("y",)).load(Byte())] == [16, 20, 4]


def test_quoted_cells_keep_commas_quotes_and_line_feeds(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('text,label\n"a ""b"",\nc",1\n\nd,2\n', encoding="utf-8-sig")
    table = read_table(tmp_path / "x.csv", {"data.text": "text", "data.label": "label"})
    assert table["text"].tolist() == ['a "b",\nc', "d"]
    assert table.index.tolist() == [2, 5]


def test_without_a_split_every_class_gives_the_same_share(tmp_path: Path) -> None:
    data = Table(path=str(write(tmp_path / "x.csv")), validation_fraction=0.1, test_fraction=0.2)
    parts = texts_of(data.load(Byte()))
    assert [len(part) for part in parts] == [42, 6, 12]
    assert sorted(text for part in parts for text, _ in part) == sorted(row["text"] for row in rows())
    for part in parts:
        counts = torch.tensor([label for _, label in part]).bincount(minlength=3)
        assert counts.tolist() == [len(part) // 3] * 3
    other = Table(path=str(tmp_path / "x.csv"), test_fraction=0.2, split_seed=1)
    assert texts_of(other.load(Byte())) != parts
    assert texts_of(Table(path=str(tmp_path / "x.csv"), test_fraction=0.2).load(Byte())) == parts


def test_a_split_that_the_file_does_not_name_is_held_out(tmp_path: Path) -> None:
    table = [row | {"split": "test" if row["split"] == "test" else "train"} for row in rows()]
    data = Table(path=str(write(tmp_path / "x.csv", ("text", "label", "split"), table)))
    assert [len(part) for part in texts_of(data.load(Byte()))] == [60 - 15 - 6, 6, 15]


def test_long_texts_are_cut_and_slices_are_a_column(tmp_path: Path) -> None:
    table = [row | {"from": f"list {n % 2}"} for n, row in enumerate(rows())]
    data = Table(path=str(write(tmp_path / "x.tsv", ("text", "label", "from"), table)), context=5, slices="from")
    assert data.spec.slices == ("list 0", "list 1")
    train = data.load(Byte()).train
    batch = train.batch(torch.arange(len(train)), None)
    assert batch.inputs.shape == (len(train), 5)
    assert batch.slice is not None
    assert set(batch.slice.tolist()) == {0, 1}


def test_texts_in_several_splits_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = rows()
    table[9] |= {"text": table[0]["text"]}  # a test text that is in the training split
    table[10] |= {"text": table[6]["text"]}  # and one of the validation split
    Table(path=str(write(tmp_path / "x.csv", ("text", "label", "split"), table))).load(Byte())
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "1 of 15 test texts occur in the training split too",
        "1 of 15 test texts occur in the validation split too",
    ]


def test_texts_that_are_cut_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = [row | {"text": "x" * (201 if n < 53 else 32) + chr(60 + n)} for n, row in enumerate(rows())]
    path = str(write(tmp_path / "x.csv", ("text", "label"), table))
    Table(path=path, context=33).load(Byte())
    assert [record.message for record in caplog.records] == [
        "53 of 60 texts are longer than data.context=33; the median has 202 tokens"
    ]
    caplog.clear()
    Table(path=path, text="label", pair="text", context=33).load(Byte())
    assert "60 of 60 pairs are longer than data.context=33; the median has 207 tokens" in caplog.text


def test_a_run_records_what_was_told_of_its_data_and_its_schedule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "x.csv")
    overrides = (*ON_CPU, *ONE_LAYER, *steps(3, None), "data=table", f"data.path={path}", "tokenizer=byte")
    folder = run(tmp_path / "runs", "data.context=8", "schedule.warmup=100", base=overrides)
    assert folder.facts()["data"]["warnings"] == [
        "60 of 60 texts are longer than data.context=8; the median has 21 tokens"
    ]
    assert "schedule.warmup=100 is not over when the run ends after 3 steps" in caplog.text


def load(data: Table) -> Splits:
    """As `check` and then a run do."""
    assert data.spec
    return data.load(Word())


BAD = {
    "no label, no text": (
        'text,label\nhello,a\n,b\n"two\nlines",\nok,b\n,\nx,\n',
        {},
        r"line 3: no text; .*lines 4, 8: no label",
    ),
    "blank text": ("text,label\n  ,b\nok,a\n", {}, r"line 2: no text"),
    "one class": ("text,label\nx,a\ny,a\n", {}, r"every row has the label 'a'; a class needs another one"),
    "too many cells": ("text,label\na,b,c\nx,y\nd,e,f,g\n", {}, r"lines 2, 4: more cells than the 2 of the header"),
    "no such column": ("text,labels\nx,a\n", {}, r"data\.label=label: .* no such column; .*; did you mean 'labels'\?"),
    "blank in the header": (
        "text, label\nx,a\n",
        {},
        r"no such column; it has 'text', ' label'; did you mean ' label'",
    ),
    "backslash": (
        'text,label\n"say \\"a, b\\" now",a\n',
        {},
        r'line 2: more cells than the 2 of the header; a quote inside quotes is written twice \(""\), not with',
    ),
    "column twice": ("text,text,label\nx,y,a\n", {}, r"data\.text=text: .* has 2 columns of this name"),
    "another name": ("text,label\nx,a\n", {"split": "part"}, r"data\.split=part: .* no such column"),
    "open quote": ('text,label\n"x,a\n', {}, r"cannot be read as a table|no label"),
    "no rows": ("text,label\n", {}, r"has no rows"),
    "empty": ("", {}, r"is empty"),
    "unknown split": ("text,label,split\nx,a,train\ny,b,rest\n", {}, r"line 3: split is none of train, val,"),
    "no training row": ("text,label,split\nx,a,test\ny,b,val\n", {}, r"no row is left for the train split"),
    "class without training": (
        "text,label,split\nx,a,train\ny,b,train\nz,c,test\nw,a,val\n",
        {},
        r"line 4: no training row has the label 'c'",
    ),
    "too few rows": ("text,label\nx,a\ny,b\n", {}, r"no row is left for the (train|validation|test) split"),
    "too many slices": (
        "text,label\n" + "".join(f"x{n},{n % 2}\n" for n in range(150)),
        {"slices": "text"},
        r"has 150 values, more than 100",
    ),
}


@pytest.mark.parametrize(("content", "options", "message"), BAD.values(), ids=BAD)
def test_bad_tables_are_refused(content: str, options: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(UserError, match=message):
        load(Table(path=str(tmp_path / "x.csv"), **options))  # type: ignore[arg-type]


def test_every_bad_line_of_json_is_named(tmp_path: Path) -> None:
    lines = ('{"text": "a", "label": 1}', "nope", "[1]", '{"text": {"x": 1}, "label": 2}', '{"text": "b"}')
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"line 2: not valid JSON; .*3: not a JSON object; .*4: text is neither text"):
        assert Table(path=str(tmp_path / "x.jsonl")).spec
    (tmp_path / "x.jsonl").write_text("\n".join(("nope", '{"text": ' + "[" * 100_000)))  # and no other line
    with pytest.raises(UserError, match=r"lines 1, 2: not valid JSON"):
        assert Table(path=str(tmp_path / "x.jsonl")).spec
    (tmp_path / "x.jsonl").write_text("\n".join((lines[0], lines[4], '{"text": "c", "label": true}')))
    with pytest.raises(UserError, match=r"line 2: no label"):
        assert Table(path=str(tmp_path / "x.jsonl")).spec
    (tmp_path / "x.jsonl").write_text("\n".join((lines[0], '{"text": "c", "label": true}')))
    assert Table(path=str(tmp_path / "x.jsonl")).class_names == ("1", "true")


def test_a_key_that_a_line_of_json_has_twice_is_refused(tmp_path: Path) -> None:
    lines = ('{"text": "a", "label": 1}', '{"text": "b", "label": 2, "label": 3}', '{"text": "c", "label": 1}')
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"x\.jsonl, line 2: the key 'label' is there twice"):
        assert Table(path=str(tmp_path / "x.jsonl")).spec


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.tsv", "x.jsonl"])
def test_utf_16_is_read_by_its_byte_order_mark(name: str, tmp_path: Path) -> None:
    table = [row | {"text": f"{row['text']}, Z\u00fcrich \u4f60"} for row in rows()]
    path = write(tmp_path / name, ("text", "label", "split"), table)
    read = gzip.decompress if name.endswith(".gz") else bytes
    text = read(path.read_bytes()).decode()
    expected = texts_of(Table(path=str(path)).load(Byte()))
    for encoding in ("utf-16", "utf-16-be"):
        content = ("\ufeff" * (encoding == "utf-16-be") + text).encode(encoding)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        assert texts_of(Table(path=str(path)).load(Byte())) == expected
    content = content[:-7]  # which ends inside a character
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(UserError, match="is not UTF-16"):
        assert Table(path=str(path)).spec


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    for name, content, message in (
        ("x.xlsx", b"PK", r"a table is one of \.csv, \.tsv, \.jsonl"),
        ("x.csv", b"text,label\n\xff,a\n", "is not UTF-8 text"),
        ("x.csv.gz", b"text,label\nx,a\n", "cannot be read"),
        ("x.jsonl.gz", b"{}", "cannot be read"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            assert Table(path=str(tmp_path / name)).spec
    assert "no file" in str(Table(path=str(tmp_path / "nothing.csv")).missing())


def test_check_names_the_line_and_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.csv").write_text("text,label\n,a\nb,b\n")
    overrides = ["data=table", f"data.path={tmp_path / 'x.csv'}", "tokenizer=word", "position=learned"]
    assert main(["check", *overrides, "model=encoder", "head=mean_pool", "objective=classify"]) == 2
    assert f"data: {tmp_path / 'x.csv'}, line 2: no text" in capsys.readouterr().err


def test_a_named_index_of_pandas_is_a_column(tmp_path: Path) -> None:
    frame = pandas.DataFrame(rows()).set_index("label")[["text"]]
    frame.to_parquet(tmp_path / "x.parquet")
    data = Table(path=str(tmp_path / "x.parquet"))
    assert data.class_names == tuple(sorted(LABELS))
    assert len(data.load(Byte()).train) == 48
