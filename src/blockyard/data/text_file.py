"""Any text: one UTF-8 file, or a folder of texts.

Source: Karpathy 2015, The Unreasonable Effectiveness of Recurrent Neural Networks (tiny Shakespeare).
Reference: nanoGPT data/shakespeare_char/prepare.py (its split)

By range (the default), in the order of the text, for n characters:

    |------------- train -------------|-- test --|-- validation --|
    0                        0.85 n     0.9 n                     n

The last tenth is validation, as in char-rnn and nanoGPT, so their losses compare; the test part
that those lack is taken from the end of their training part. A folder's files follow each other
sorted by path. By document, whole files are dealt to the parts by `split_seed`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from blockyard.contracts import Count, CountOrZero
from blockyard.data._split import Fraction, by_size
from blockyard.data._text import Documents, TextData


class TextFile(TextData):
    """Text from the disk.

    `path` counts into a run's identity as it is written: it is what tells one text from another
    before anything is read. The hash of the content is recorded beside it.

    Options:
        path: a file, or a folder that is searched for texts with its subfolders
        pattern: which files of a folder are texts
        split_by: range cuts the running text, document deals whole files
        validation_fraction: share of the text that is the validation part
        test_fraction: share of the text that is the test part
        split_seed: deals the documents; without effect where the text is cut by range
    """

    def __init__(
        self,
        *,
        path: str = "data/input.txt",
        pattern: str = "*.txt",
        split_by: Literal["range", "document"] = "range",
        validation_fraction: Fraction = 0.1,
        test_fraction: Fraction = 0.05,
        split_seed: CountOrZero = 0,
        batch_size: Count = 32,
        eval_batch_size: Count = 64,
        context: Count = 128,
        sample: Literal["window", "line"] = "window",
        packed: bool = False,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            context=context,
            sample=sample,
            packed=packed,
        )
        if validation_fraction + test_fraction >= 1:
            raise ValueError(
                f"data.validation_fraction={validation_fraction} and data.test_fraction={test_fraction} "
                "leave nothing to train on; together they must stay under 1"
            )
        self.path, self.pattern, self.split_by = Path(path).expanduser(), pattern, split_by
        self.fractions, self.split_seed = (validation_fraction, test_fraction), split_seed

    def missing(self) -> str | None:
        """Whether there is a text at `path`."""
        if self.path.is_file() or (self.path.is_dir() and self._files()):
            return None
        what = f"no file {self.pattern} under" if self.path.is_dir() else "nothing at"
        return f"{what} {self.path.absolute()}; set data.path=FILE, or a folder and data.pattern"

    def documents(self) -> Documents:
        """The files, cut or dealt. Raises ValueError for bytes that are no UTF-8."""
        texts = [_read(file) for file in self._files()]
        if self.split_by == "document":
            return self._deal(texts)
        total = sum(map(len, texts))
        stop = int(total * (1 - self.fractions[0]))
        middle = int(total * (1 - sum(self.fractions)))
        return Documents(*(_slice(texts, a, b) for a, b in ((0, middle), (stop, total), (middle, stop))))

    def _deal(self, texts: list[str]) -> Documents:
        if len(texts) < 3:
            raise ValueError(
                f"data.split_by=document needs 3 files or more, {self.path} has {len(texts)}; take split_by=range"
            )
        validation, test, train = by_size([len(text) for text in texts], self.fractions, self.split_seed)
        return Documents(*([texts[i] for i in part] for part in (train, validation, test)))

    def _files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        return sorted(file for file in self.path.rglob(self.pattern) if file.is_file())


def _read(file: Path) -> str:
    try:
        # A mark of the byte order is no character of the text; some editors put one in front.
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no UTF-8 text (byte {error.start}); convert it or leave it out") from error


def _slice(texts: list[str], start: int, stop: int) -> list[str]:
    """The characters [start, stop) of the texts in a row, as pieces of those texts."""
    pieces, at = [], 0
    for text in texts:
        piece = text[max(start - at, 0) : max(stop - at, 0)]
        at += len(text)
        if piece:
            pieces.append(piece)
    return pieces
