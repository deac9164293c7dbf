"""The page Coming from: arguments on the left exist in the libraries, and the right has the answers to them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass

import pytest

from blockyard.commands import COMMANDS
from blockyard.config.check import check
from blockyard.config.compose import compose
from tests.config.typed_by_habit import LINES, OVERRIDES, WORKS
from tools import pages

PAGE = pages.by_name()["docs/coming_from.md"].read_text(encoding="utf-8")
TEMPLATE, LIGHTNING, TRAINER, X_TRANSFORMERS, NANOGPT, WANDB = re.findall(r"^## (.+)$", PAGE, re.M)
PLACEHOLDER = re.compile(r"\b(RUN|NAME|FILE|FOLDER|CLASS|N)\b")
COMPOSED_ALONE = ("model=encoder", "trainer.precision=16-mixed")  # with another objective; on a GPU
DATA = {"data.path=FILE": ["data=text_file"], "data.root=FOLDER": ["data=image_folder"]}
VALUES = {"N": "2", "CLASS": "pytorch_lightning.loggers.CSVLogger"}


@dataclass(frozen=True)
class Row:
    """A row of a table: the code spans of its two columns."""

    section: str
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    same: bool


def table() -> list[Row]:
    """Return the rows of all tables of the page."""
    result = []
    section = ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if not line.startswith("| ") or line.startswith("| theirs"):
            continue
        _, theirs, ours, _ = line.split("|")
        spans = [tuple(re.findall(r"`([^`]+)`", column)) for column in (theirs, ours)]
        result.append(Row(section, *spans, same=ours.strip().startswith("the same")))
    return result


ROWS = table()


def arguments(section: str) -> list[str]:
    """Return the names of the arguments in the left column of a section."""
    spans = [span for row in ROWS if row.section == section for span in row.theirs]
    return [span.partition("=")[0] for span in spans if re.match(r"\w+=", span)]


def typed_here() -> list[tuple[str, Row]]:
    """Return the overrides and command lines that somebody types here by habit, with the row of each."""
    lines = []
    for row in ROWS:
        for span in row.theirs:
            if row.section in (X_TRANSFORMERS, WANDB) or not re.match(r"[+]?[\w.]+=|eval |\w+$", span):
                continue
            is_override = "=" in span and not span.startswith("eval ")
            if is_override and row.section == LIGHTNING:
                lines.append((f"trainer.{span}", row))
            else:
                lines.append((span, row))
    return lines


def names(ours: str, answer: str) -> bool:
    """Return whether an answer names what the right column has: a command, an option, or a choice of a family."""
    key, _, value = ours.partition("=")
    if ours in answer or f"did you mean {value}?" in answer:
        return True
    if "." in key and "=" in ours:
        return key in answer
    return f"{key}=NAME" in answer or f"(try {key})" in answer


def test_the_answers_to_the_left_column_are_those_of_the_right_one() -> None:
    """`tests/config/test_habits.py` types the lines."""
    answers = OVERRIDES | LINES
    for line, row in typed_here():
        if answers[line] == WORKS:
            assert row.same, line
        else:
            assert [span for span in row.ours if names(span, answers[line])], line


@pytest.mark.parametrize("row", [row for row in ROWS if row.ours], ids=lambda row: " ".join(row.ours))
def test_what_stands_on_the_right_composes(row: Row) -> None:
    for span in row.ours:
        command = re.match(r"blockyard (\w+)", span)
        if command:
            assert command[1] in COMMANDS
        if not re.match(r"[a-z_.]+=", span) or re.match(r"(resume|run|allow|init\.from)=", span):
            continue
        composed = compose(["experiment=gpt_code_small", *DATA.get(span, ()), *PLACEHOLDER.sub(_value, span).split()])
        assert composed.issues == []
        if not PLACEHOLDER.search(span) and span not in COMPOSED_ALONE:
            assert check(composed) == []


def _value(placeholder: re.Match[str]) -> str:
    return VALUES.get(placeholder[0], "x")


def test_arguments_are_those_of_the_libraries() -> None:
    import pytorch_lightning as pl

    trainer = inspect.signature(pl.Trainer).parameters
    assert [name for name in arguments(LIGHTNING) if name not in trainer] == []
    transformers = pytest.importorskip("transformers")
    fields = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert [name for name in arguments(TRAINER) if name not in fields] == []


def test_arguments_are_those_of_x_transformers() -> None:
    module = pytest.importorskip("x_transformers.x_transformers")
    classes = (module.AttentionLayers, module.TransformerWrapper, module.ViTransformerWrapper)
    declared = {name for each in classes for name in inspect.signature(each).parameters}
    declared |= {f"attn_{name}" for name in inspect.signature(module.Attention).parameters}
    declared |= {f"ff_{name}" for name in inspect.signature(module.FeedForward).parameters}
    assert len(arguments(X_TRANSFORMERS)) > 30
    assert [name for name in arguments(X_TRANSFORMERS) if name not in declared] == []
