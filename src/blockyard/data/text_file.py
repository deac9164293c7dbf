"""Your own text: one UTF-8 file, or a folder of text files.

Source: Karpathy 2015, The Unreasonable Effectiveness of Recurrent Neural Networks (tiny Shakespeare).
Reference: nanoGPT data/shakespeare_char/prepare.py (its split)

By range (the default), in the order of the text, for n characters:

    |------------- train -------------|-- test --|-- validation --|
    0                        0.85 n     0.9 n                     n

The last tenth is validation, as in char-rnn and nanoGPT, so that losses compare; the test split, which
those lack, is the end of their training split. The files of a folder follow each other sorted by path.
By document, `split_seed` assigns whole files to the splits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blockyard.atomic_files import is_regular
from blockyard.contracts import Text
from blockyard.data.files.file_names import data_files
from blockyard.data.splits.split import Fraction
from blockyard.data.splits.texts import SplitDocuments, TextData


@dataclass(kw_only=True, eq=False)
class TextFile(TextData):
    """Text from disk.

    `path` is part of a run's identity as it is written: it distinguishes one text from another before
    anything is read. The hash of the content is recorded in addition.

    Options:
        path: a file, or a folder that is searched recursively
        pattern: glob of the text files in a folder
        split_by: range cuts the running text, document assigns whole files
        split_seed: seed of the split by document; has no effect on a split by range
    """

    path: Text = "data/input.txt"
    pattern: Text = "*.txt"
    split_by: Literal["range", "document"] = "range"
    test_fraction: Fraction = 0.05

    def missing(self) -> str | None:
        """Return a message that says why `path` has no text and the remedy, or None."""
        path = self._path
        if path.is_file() or (path.is_dir() and self._files()):
            return None
        problem = f"no file {self.pattern} under" if path.is_dir() else "nothing at"
        return f"{problem} {path.absolute()}; set data.path=FILE, or a folder and data.pattern"

    def documents(self) -> SplitDocuments:
        """Read and split the files. Raises ValueError for a file that cannot be read or is not UTF-8."""
        texts = [_read(file) for file in self._files()]
        if self.split_by == "document":
            if len(texts) < 3:
                raise ValueError(
                    f"data.split_by=document needs 3 files or more, {self._path} has {len(texts)}; "
                    "use data.split_by=range"
                )
            return self.split_by_size(texts)
        total = sum(map(len, texts))
        stop = int(total * (1 - self.validation_fraction))
        middle = int(total * (1 - (self.validation_fraction + self.test_fraction)))
        return SplitDocuments(*(_slice(texts, a, b) for a, b in ((0, middle), (stop, total), (middle, stop))))

    @property
    def _path(self) -> Path:
        return Path(os.path.expanduser(self.path))

    def _files(self) -> list[Path]:
        if self._path.is_file():
            return [self._path]
        return data_files(self._path, filter(is_regular, self._path.rglob(self.pattern)))


def _read(file: Path) -> str:
    try:
        # Some editors start a file with a byte order mark, which is not part of the text.
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; make it readable or remove it") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text (byte {error.start}); convert or remove it") from error


def _slice(texts: list[str], start: int, stop: int) -> list[str]:
    """Return the characters [start, stop) of the concatenated texts, as slices of those texts."""
    slices, offset = [], 0
    for text in texts:
        part = text[max(start - offset, 0) : max(stop - offset, 0)]
        offset += len(text)
        if part:
            slices.append(part)
    return slices
