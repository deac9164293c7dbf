"""Texts, files of texts and tables as batches of token ids."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from blockyard.contracts import Batch
from blockyard.data._table_file import kind_of, read_table
from blockyard.data._table_rows import check_rows
from blockyard.errors import UserError, fold
from blockyard.evaluate.predict_rows import BATCH, pair_rows
from blockyard.runs.load import Loaded

log = logging.getLogger("blockyard")


def text_batches(loaded: Loaded, inputs: Sequence[str], column: str | None) -> tuple[list[str], Iterator[Batch]]:
    """Returns the texts that the inputs stand for, and batches of them. column: of a table; None is the run's own."""
    if loaded.data.spec.joined:
        pairs, joined_ids = pair_rows(loaded, inputs)
        return pairs, _padded(joined_ids, variable=True)
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
