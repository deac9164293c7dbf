"""`blockyard predict`: predict classes, values or tags of new inputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from blockyard.atomic_files import Formatted, csv_text, write_text
from blockyard.commands._signature import command
from blockyard.commands._types import (
    OUTPUTS,
    Allow,
    Input,
    Moved,
    Outputs,
    Run,
    Text,
    Value,
    Which,
    find_run,
    input_lines,
)
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from blockyard.evaluate.predict import Predictions
    from blockyard.runs.folder import RunFolder

_WIDTH = 60  # characters of an input in the table
_NEXT = 2  # classes in the table after the first


@command()
def predict(
    *inputs: Input,
    run: Run,
    out: Annotated[Text, Value("FILE.csv")] | None = None,
    column: Annotated[Text, Value("NAME")] | None = None,
    which: Which = "best",
    outputs: Outputs = OUTPUTS,
    allow: Allow = (),
    moved: Moved | None = None,
) -> None:
    """Predict the class of texts, images, or rows of tables and arrays with a run that classifies them.

    With a run of objective=regress it predicts their values, with a run of objective=tag the tags of the words of
    texts.

    For a run on texts, an INPUT is a text, a file with a text in each line, or a table (.csv, .tsv, .jsonl, also .gz)
    with a column of texts. For a run on images, it is an image file or a folder of them; they are resized and
    normalized as in training. For a run on columns of numbers, or on pairs of texts, it is a table with these columns;
    for a run on data=arrays, an .npz or .npy file. For a run that tags words, it may also be a file with a word in each
    line (.conll, .conllu, .iob, .iob2, .bio, also .gz), whose tags are not read; other texts are cut into words and
    marks. `-` reads texts from standard input, one in a line.

    Images and numbers are normalized as the training data were, which are read for it.

    A run that draws what a text asks for, such as experiment=canvas_drawings, draws an image for each text, at
    temperature 1 and with seed 0 for the first one, writes them as out=FILE.png or samples.png in the run's folder, and
    prints what the judge of its data reads in them; `generate` has more options. A run that writes sounds, such as
    experiment=tones_speak, likewise writes one for each text as out=FILE.wav or samples.wav.

    Prints the most probable class of each input with its probability, the values in the units of the data, or each text
    with its spans in brackets. With out, writes a CSV file with the probability of every class, every value, or a line
    for each word with its tag; without a terminal to read it, the same goes to standard output. A text that a
    spreadsheet would compute, such as =1+1, has an apostrophe in front.

    Options:
        inputs: texts, files or folders
        out: the file to write
        column: the texts of a table; by default that of the run's data

    Examples:
        blockyard predict run=spam_table 'win a prize now' 'see you at the meeting'
        blockyard predict run=last mails.csv column=body out=predictions.csv
        blockyard predict run=vit_digits scans/
        blockyard predict run=tag_names 'Mr Lincoln left Lincoln Ltd in May 1850.' more.conll
    """
    if not inputs:
        raise UserError("predict needs an input: a text, a file or a folder")
    texts = input_lines(inputs)
    path = None if out is None else local_path(out, "out")
    if path is not None and path.suffix.lower() not in (".csv", ".png", ".wav"):
        raise UserError(f"out={out}: predictions are written as .csv, images as .png, sounds as .wav")
    folder = find_run(run, outputs, moved)
    from blockyard.generate.codes import writes_codes

    suffix = writes_codes(folder, allow)
    if suffix is not None:
        _draw(folder, texts, path, suffix, column=column, which=which, allow=allow)
        return
    if path is not None and path.suffix != ".csv":
        raise UserError(f"out={out}: predictions are written as .csv")
    from blockyard.evaluate import predict as prediction

    predictions, _ = prediction.predict(folder, texts, column=column, which=which, outputs=outputs, allow=allow)
    if path is None and not sys.stdout.isatty():
        sys.stdout.write(as_csv(predictions))
        return
    _print(predictions)
    if path is not None:
        try:
            write_text(path, as_csv(predictions))
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        sys.stdout.write(f"{len(predictions.inputs)} predictions in {path}\n")


def _draw(
    run: RunFolder,
    inputs: Sequence[str],
    path: Path | None,
    suffix: str,
    *,
    column: str | None,
    which: str,
    allow: tuple[str, ...],
) -> None:
    """Draw an image or write a sound for each text, and print the judge's readings of the images.

    The images are the rows of one picture.
    """
    from blockyard.data.rows.new_inputs import texts_of
    from blockyard.generate.codes import generate_outputs, write_outputs
    from blockyard.runs.load import load

    if path is not None and path.suffix.lower() != suffix:
        kind = "draws images" if suffix == ".png" else "writes sounds"
        raise UserError(f"out={path}: {run.name} {kind}, which are written as {suffix}")
    loaded = load(run, which=which, allow=allow)
    source_spec = loaded.data.spec.source
    if source_spec is not None and source_spec.modality == "text":
        inputs = texts_of(loaded.data, inputs, column)
    result = generate_outputs(loaded, inputs)
    path = path or run.path / f"samples{suffix}"
    try:
        paths = write_outputs(result, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    if result.readings is not None:
        rows = table(None, "input", "read in the drawing")
        for source, readings in zip(result.sources, result.readings, strict=True):
            rows.add_row(source, *readings)
        console().print(rows)
    for written in paths:
        sys.stdout.write(f"{written}\n")


def as_csv(predictions: Predictions) -> str:
    """Return the predictions as CSV: a line for each input with its class and the probability of every class.

    Without classes the line has the values. With tags there is a line for each word.
    """
    if predictions.tagged is not None:
        header = ["input", "number", "word", "tag", "probability"]
        rows: list[list[str]] = []
        for number, (source, tagged) in enumerate(zip(predictions.inputs, predictions.tagged, strict=True), start=1):
            for form, tag, probability in zip(tagged.forms, tagged.tags, tagged.probabilities, strict=True):
                rows.append([source, str(number), form, tag, Formatted(f"{probability:.6g}")])
        return csv_text(header, rows)
    if predictions.probabilities is None:
        assert predictions.values is not None
        header = ["input", *predictions.names]
        lines = [[source] for source in predictions.inputs]
        numbers = predictions.values
    else:
        header = ["input", "prediction", *(f"p({name})" for name in predictions.names)]
        lines = [[source, answer] for source, answer in zip(predictions.inputs, predictions.answers, strict=True)]
        numbers = predictions.probabilities
    for line, values in zip(lines, numbers.tolist(), strict=True):
        line.extend(Formatted(f"{value:.6g}") for value in values)
    return csv_text(header, lines)


def _print(predictions: Predictions) -> None:
    """Print the predictions as a table; tagged texts as lines, with their spans in brackets."""
    if predictions.tagged is not None:
        for answer in predictions.answers:
            console().print(answer, soft_wrap=True)
        return
    shown = []
    for source in predictions.inputs:
        if len(source) > _WIDTH:
            shown.append(f"{source[: _WIDTH - 3]}...")
        else:
            shown.append(source)
    if predictions.probabilities is None:
        assert predictions.values is not None
        rows = table(None, "input", *predictions.names)
        for source, values in zip(shown, predictions.values.tolist(), strict=True):
            rows.add_row(source, *(f"{value:.6g}" for value in values))
        console().print(rows)
        return
    if predictions.several:
        rows = table(None, "input", "labels", *predictions.names)
        for source, answer, values in zip(shown, predictions.answers, predictions.probabilities.tolist(), strict=True):
            rows.add_row(source, answer, *(f"{value:.3f}" for value in values))
        console().print(rows)
        return
    rows = table(None, "input", "prediction", "probability", "then")
    for source, values in zip(shown, predictions.probabilities, strict=True):
        order = values.argsort(descending=True).tolist()
        then = ", ".join(f"{predictions.names[i]} {values[i]:.3f}" for i in order[1 : 1 + _NEXT])
        rows.add_row(source, predictions.names[order[0]], f"{values[order[0]]:.3f}", then)
    console().print(rows)
