"""Predictions of a finished run for new inputs: classes of texts, images and rows with probabilities, or values."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from blockyard.contracts import Batch, Standardized, TextTokenizer
from blockyard.data.files.images import SUFFIXES, decode_image
from blockyard.data.files.tables import check_rows, kind_of, read_table
from blockyard.errors import UserError, fold, shortened
from blockyard.evaluate.predict_rows import BATCH, array_rows, is_array, number_rows, pair_rows
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded, load

if TYPE_CHECKING:
    from torch import Tensor


# Texts, files of texts and tables as batches of token ids.


def text_batches(loaded: Loaded, inputs: Sequence[str], column: str | None) -> tuple[list[str], Iterator[Batch]]:
    """Returns the texts that the inputs stand for, and batches of them. column: of a table; None is the run's own."""
    if loaded.data.spec.joined:
        pairs, joined_ids = pair_rows(loaded, inputs)
        return pairs, _padded(joined_ids, variable=True)
    assert isinstance(loaded.tokenizer, TextTokenizer)
    texts = [text for each in inputs for text in _texts_of(loaded, each, column)]
    most = loaded.model.ctx.tokens.max_len
    token_ids = [loaded.tokenizer.encode(text) for text in texts]
    long = sum(len(ids) > most for ids in token_ids)
    if long:
        log.warning("%d of %d texts have more than %d tokens; the model reads their beginning", long, len(texts), most)
    empty = [str(number) for number, ids in enumerate(token_ids, start=1) if not ids]
    if empty:
        raise UserError(f"input {fold(empty)}: no token is left of the text; leave it out")
    return texts, _padded([ids[:most] for ids in token_ids], variable=loaded.data.spec.variable)


def _texts_of(loaded: Loaded, text: str, column: str | None) -> list[str]:
    """The texts that an input stands for: those of a table, the lines of a file, or the input itself."""
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a path, or a zero byte
        is_file = False
    if not is_file:
        if kind_of(path) or path.suffix == ".txt":
            raise UserError(f"no file {path}; a text that ends like the name of a file can stand in one")
        return [text]
    if kind_of(path):
        name = column or str(getattr(loaded.data, "text", "text"))
        table = read_table(path, {"column": name})
        blank = table[name].isna() | (table[name].str.strip() == "")
        check_rows(path, {f"no {name}": table.index[blank].tolist()})
        return [str(text) for text in table[name]]
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from error
    blank = [number for number, line in enumerate(lines, start=1) if not line.strip()]
    check_rows(path, {"no text": blank})
    if not lines:
        raise UserError(f"{path} has no lines")
    return lines


def _padded(token_ids: list[list[int]], *, variable: bool) -> Iterator[Batch]:
    """Batches of sequences: padded on the right, or each alone for a model that knows no padding."""
    import torch

    size = BATCH if variable else 1
    for start in range(0, len(token_ids), size):
        some = token_ids[start : start + size]
        lengths = torch.tensor([len(ids) for ids in some])
        inputs = torch.zeros(len(some), int(lengths.max()), dtype=torch.int64)
        for row, ids in zip(inputs, some, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        yield Batch(inputs, lengths=lengths if variable else None)


# Image files as batches of what a run reads, and the split that knows how it prepares them.

_BYTES = 256  # gray levels of an image file as it is read


@runtime_checkable
class Preprocessed(Protocol):
    """A split that turns stored bytes into what a model reads, as the splits of images do."""

    def preprocess(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Maps images uint8 (B, C, height, width) to inputs float32; a key of None draws nothing."""
        ...


def image_batches(loaded: Loaded, paths: Sequence[str]) -> tuple[list[str], Iterator[Batch]]:
    """Returns the image files that the paths name, and batches of them. Raises UserError."""
    files = [file for path in paths for file in _files_of(Path(path))]
    split = _split(loaded)
    channels, height, width = loaded.data.spec.shape
    levels = loaded.data.spec.levels or _BYTES
    if height != width:
        raise UserError(f"{loaded.folder.name} reads images of {height} x {width}; predict resizes to squares only")

    def batches() -> Iterator[Batch]:
        import torch

        for start in range(0, len(files), BATCH):
            some = files[start : start + BATCH]
            images = torch.stack([decode_image(file, channels=channels, size=height) for file in some])
            if levels != _BYTES:  # data of fewer gray levels, such as the 17 of the digits, is stored as it is
                images = (images.double() * (levels - 1) / (_BYTES - 1)).round().to(torch.uint8)
            yield Batch(split.preprocess(images, torch.arange(len(some)), None))

    return [str(file) for file in files], batches()


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if not files:
            raise UserError(f"{path}: no image in this folder (of {', '.join(sorted(SUFFIXES))})")
        return files
    if not path.is_file():
        raise UserError(f"no file or folder {shortened(str(path))}; a run on images reads image files")
    return [path]


def test_split(loaded: Loaded) -> Any:
    """The run's test split, which knows how values are standardized."""
    missing = loaded.data.missing()
    if missing:
        raise UserError(f"{loaded.data.spec.things} are standardized as the training split was: {missing}")
    loaded.data.prepare()
    return loaded.components.load().test


def _split(loaded: Loaded) -> Any:
    """The run's test split, which knows how images are normalized."""
    split = test_split(loaded)
    if not isinstance(split, Preprocessed):
        raise UserError(f"{loaded.folder.name}: {type(split).__name__} does not say how images become inputs")
    return split


log = logging.getLogger("blockyard")


@dataclass(frozen=True)
class Predictions:
    """inputs: n texts, or paths of images; names: V, in the order of the columns
    probabilities: (n, V) of classes; None for a run that predicts values
    values: (n, V) in the units of the data; None for a run that predicts classes
    """

    inputs: list[str]
    names: list[str]
    probabilities: Tensor | None = None
    values: Tensor | None = None

    @property
    def answers(self) -> list[str]:
        """The most probable class of each input; nothing for a run that predicts values."""
        if self.probabilities is None:
            return []
        return [self.names[index] for index in self.probabilities.argmax(1).tolist()]


def predict(
    run: str | os.PathLike[str] | RunFolder,
    inputs: Sequence[str],
    *,
    column: str | None = None,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> tuple[Predictions, Loaded]:
    """Predict the class of each input, or its values with objective=regress, in the units of the data.

    inputs: for a run on texts, texts themselves, files with a text in each line, or tables (.csv, .tsv, .jsonl, also
        .gz); for a run on images, image files, or folders of them; for one on columns of numbers or on pairs of texts,
        tables with the columns of the run's data; for any run on rows of arrays, .npz and .npy files
    column: of a table, that of the texts; default: the one that the run's data names, else `text`
    which: "best", "last" or "previous"

    Raises UserError where the run classifies neither texts nor images, an input cannot be read, or the run's data,
    which says how images are normalized, is missing.
    """
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    target, continues = loaded.objective.target, loaded.data.spec.modality == "series"
    if target != "class" and (target != "values" or continues or loaded.objective.takes != "sequence"):
        raise UserError(
            f"{loaded.folder.name} predicts no class or value of a whole sample (objective="
            f"{_choice(loaded, 'objective')}); `generate` writes texts and images, `forecast` continues series"
        )
    if loaded.data.spec.source is not None:
        raise UserError(
            f"predict reads one text or image an input; {loaded.folder.name} reads {loaded.data.spec.things} together "
            f"with {loaded.data.spec.source.things}"
        )
    if any(map(is_array, inputs)):
        names, batches = array_rows(loaded, inputs, test_split(loaded))
    elif loaded.data.spec.modality == "vector":
        names, batches = number_rows(loaded, inputs, test_split(loaded))
    elif loaded.data.spec.modality == "image":
        if column is not None:
            raise UserError(f"column={column}: {loaded.folder.name} reads images, not tables of texts")
        names, batches = image_batches(loaded, inputs)
    elif isinstance(loaded.tokenizer, TextTokenizer) and loaded.data.spec.modality == "text":
        names, batches = text_batches(loaded, inputs, column)
    else:
        raise UserError(
            f"predict reads texts, images, tables of numbers and arrays (.npz, .npy); {loaded.folder.name} was trained "
            f"on {loaded.data.spec.things}"
        )
    outputs_of = _outputs(loaded, batches)
    if target == "values":
        return Predictions(names, _value_names(loaded), values=_in_units(loaded, outputs_of)), loaded
    return Predictions(names, _class_names(loaded), probabilities=outputs_of.softmax(-1)), loaded


def _choice(loaded: Loaded, family: str) -> str:
    choices = loaded.folder.facts().get("choices")
    return str(choices.get(family)) if isinstance(choices, dict) else "unknown"


def _class_names(loaded: Loaded) -> list[str]:
    """The names of the classes, or their numbers where the data has none."""
    return list(loaded.data.spec.class_names) or [str(index) for index in range(loaded.data.spec.classes or 0)]


def _value_names(loaded: Loaded) -> list[str]:
    """The columns of the targets of a table, or the numbers of the values."""
    named = getattr(loaded.data, "target", None)
    count = math.prod(loaded.data.spec.values or (0,))
    own = list(named) if isinstance(named, list | tuple) else []
    return [str(name) for name in own] if len(own) == count else [f"value {index}" for index in range(count)]


def _in_units(loaded: Loaded, standardized: Tensor) -> Tensor:
    """Values (n, V) as the data has them. Raises UserError for data that does not say how they are standardized."""
    split = test_split(loaded)
    if not isinstance(split, Standardized):
        raise UserError(f"{loaded.folder.name}: {type(split).__name__} does not say in which units its values are")
    shape = loaded.data.spec.values or ()
    mean, std = (each.double().expand(shape).flatten() for each in (split.mean, split.std))  # (V,)
    return standardized * std + mean


def _outputs(loaded: Loaded, batches: Iterator[Batch]) -> Tensor:
    """What the model predicts, (n, V)."""
    import torch

    parts = []
    with torch.no_grad():
        for batch in batches:
            try:
                prediction = loaded.model(batch)  # (B, V)
            except ValueError as error:  # a model for sequences of one length
                raise UserError(f"{loaded.folder.name} does not read this: {error}") from error
            parts.append(prediction.double().flatten(1))
    return torch.cat(parts)
