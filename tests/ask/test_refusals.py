"""The refusals of `blockyard ask`: one clear message with what would work, exit code 2, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from blockyard.ask import answer
from blockyard.cli import main
from blockyard.sweep.execution.step_times import MeasuredRun
from tests.ask import files


def _no_file(folder: Path) -> Path:
    return folder / "nothing.csv"


def _with_bytes(folder: Path, *, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def _existing(folder: Path) -> Path:
    (folder / "texts.yaml").write_text("mine", encoding="utf-8")
    return files.write_texts(folder)


def _lines(folder: Path, *, name: str, header: str, line: Callable[[int], str]) -> Path:
    """Write a table of 90 rows. line: returns the row of a number"""
    path = folder / name
    path.write_text("\n".join([header, *map(line, range(90))]), encoding="utf-8")
    return path


def _tags(number: int) -> str:
    """Return a text and some of three labels."""
    labels = [label for place, label in enumerate(("red", "round", "old")) if number % 7 + 1 >> place & 1]
    return f"some words about number {number}\t{'|'.join(labels)}"


# The file, further arguments, parts of the message.
REFUSED: dict[str, tuple[files.Writer, list[str], list[str]]] = {
    "no file": (_no_file, [], ["nothing.csv does not exist"]),
    "empty": (partial(_with_bytes, name="a.csv", content=b""), [], ["a.csv is empty"]),
    "unknown format": (partial(_with_bytes, name="a.bin", content=b"\0\1"), [], ["a.bin", ".parquet", ".npz"]),
    "damaged": (partial(_with_bytes, name="a.npz", content=b"PK\3\4"), [], ["a.npz cannot be read"]),
    "ragged": (partial(_with_bytes, name="a.csv", content=b"a,b\n1,2,3\n" * 70), [], ["a.csv", "more cells"]),
    "semicolons": (
        partial(_lines, name="a.csv", header="Fläche;Miete", line=lambda n: f"{n},5;{n}"),
        [],
        ["separated by semicolons, as in 'Fläche;Miete'", "decimal=','"],
    ),
    "decimal commas": (
        partial(_lines, name="a.tsv", header="width\trent", line=lambda n: f"{n}\t1.{n:03},5"),
        [],
        ["the numbers of the column rent have commas, as in '1.000,5'", "decimal=','"],
    ),
    "several labels": (
        partial(_lines, name="a.tsv", header="text\ttags", line=_tags),
        [],
        ["cells of tags have several labels", "a column of 0 and 1 for each label", "data.label=tags"],
    ),
    "no target": (
        partial(
            _with_bytes, name="a.csv", content=b"text\n" + b"".join(b"a sentence number %d\n" % n for n in range(90))
        ),
        [],
        ["no column looks like a target (columns: text)", "data.label=COLUMN"],
    ),
    "a target that is not there": (files.write_texts, ["data.label=stars"], ["stars", "columns: id, review, kind"]),
    "one class": (
        partial(files.write_texts, topics=1),
        ["data.label=kind"],
        ["every row has the kind 'sport'", "data.label=COLUMN"],
    ),
    "ten rows": (partial(files.write_texts, count=10), [], ["has 10 rows", "60 rows or more"]),
    "one arm": (files.write_texts, ["arms=rope"], ["two arms or more", "arms=rope,learned"]),
    "an unknown arm": (files.write_texts, ["arms=rope,leaned"], ["leaned", "did you mean learned?"]),
    "an arm by another name": (files.write_texts, ["arms=rotary,learned"], ["did you mean position=rope?"]),
    "arms of two families": (files.write_texts, ["arms=rope,mlp"], ["different families", "FAMILY=CHOICE"]),
    "ambiguous arms": (files.write_texts, ["arms=conv,none"], ["position", "token_mixer", "say of which"]),
    "an unknown choice": (files.write_texts, ["arms=position=rope,position=nope"], ["unknown position 'nope'"]),
    "an arm that cannot be": (files.write_texts, ["arms=position=none,position=graph"], ["graph"]),
    "an unknown option": (files.write_texts, ["model.dims=3"], ["model.dims", "model.dim"]),
    "an existing file": (_existing, [], ["texts.yaml exists already", "out=FILE.yaml"]),
    "no folder": (files.write_texts, ["out=no/where.yaml"], ["no folder no"]),
    "no sweep file": (files.write_texts, ["out=where.txt"], ["ends in .yaml"]),
    "no hours": (files.write_texts, ["hours=0"], ["hours=0: expected a number > 0"]),
    "hours that decide nothing": (files.write_texts, ["hours=0.01"], ["hours=0.01 decides nothing", "would do"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_what_would_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write, arguments, parts = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(answer, "first_steps", lambda *_: MeasuredRun(1.0, 0.5, 1.0, 0.0, 400, 40))
    path = write(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["ask", str(path), *arguments]) == 2
    message = capsys.readouterr().err.partition("blockyard: ")[2]
    missing = [part for part in parts if part not in message]
    assert not missing, message
    assert sorted(tmp_path.rglob("*")) == before


def test_hours_that_show_too_little_are_refused() -> None:
    from blockyard.ask.choose import Resolution, refuse_blind
    from blockyard.errors import UserError

    refuse_blind("test/accuracy", Resolution(0.1, 0.2, 0.2), 0.5, 1.0, 5)
    with pytest.raises(UserError, match=r"hours=1 decides nothing here: 5 seeds tell differences of 0\.3 or more"):
        refuse_blind("test/accuracy", Resolution(0.1, 0.3, 0.3), 0.5, 1.0, 5)
    # Scores that do not differ between seeds have no noise to divide by.
    with pytest.raises(UserError, match="test/cer is the same with both seeds of every arm"):
        refuse_blind("test/cer", Resolution(0.0, 0.0, 0.0), 0.5, 1.0, 5)
