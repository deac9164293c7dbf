"""Windows of source code, each with the package of Python's standard library that it comes from.

Source: the Python Software Foundation's CPython, Lib/ (PSF licence)

    asyncio/events.py     |--head--|--body--|--body--|..         a window is `context` tokens; what is left at the
    email/message.py      |--head--|--body--|.                   end, and a file of fewer tokens, is left out

Ten packages that every Python from 3.11 has: the largest of three files or more, without encodings, which is tables.
Whole files go to the splits, so that no file is in two of them. Slices: the first window of each file, with its
imports and its first docstring, and the others.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import BatchSize, DataSpec, Length, Splits, TextTokenizer, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.splits.labelled_texts import LabelledSplit, LabelledTexts, encoded
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.split import DrawnSplits, Fraction, by_size
from blockyard.data.splits.text_tokenizer import text_tokenizer
from blockyard.errors import UserError

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "re", "unittest", "urllib", "xml")
TESTS = frozenset({"test", "tests"})  # folders that only some distributions have
SLICES = ("head", "body")

Files = list[tuple[str, int]]  # the text of each, and its class


@dataclass(kw_only=True, eq=False)
class CodeTopics(DrawnSplits, LoadedData):
    """Windows of the standard library with one of ten classes; needs no file beyond Python's own and no network.

    Options:
        context: tokens of a window
        validation_fraction: share of each package's text that is the validation split
        test_fraction: share of each package's text that is the test split
        split_seed: seed of the split; independent of the run's seed, so that all seeds share one split
        batch_size: windows in a training step, over all processes
        eval_batch_size: windows in a validation or test step, over all processes
    """

    published_under = "PSF-2.0"

    context: Length = 128
    validation_fraction: Fraction = 0.15
    test_fraction: Fraction = 0.2
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256
    _test_starts: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def spec(self) -> DataSpec:
        """Sequences of one length with one of ten classes."""
        return DataSpec(
            "text", (self.context,), target="class", classes=len(PACKAGES), class_names=PACKAGES, slices=SLICES
        )

    def missing(self) -> str | None:
        """Return a message that names the packages that this Python lacks and the remedy, or None."""
        absent = [name for name in PACKAGES if len(_files(name)) < len(Splits._fields)]
        if not absent:
            return None
        return f"this Python lacks the library sources of {', '.join(absent)}; use a Python with its Lib folder"

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read and encode the files; fit the tokenizer on the training split unless its state was loaded."""
        tokenizer = text_tokenizer(tokenizer)
        splits = self.files()
        contents: list[str] = []
        for files in splits:
            contents += [str(len(files)), *(f"{label} {text}" for text, label in files)]
        self._fingerprint = sha256(contents)
        if not tokenizer.state():
            tokenizer.fit(text for text, _ in splits[0])
        parts = []
        for number, (name, files) in enumerate(zip(Splits._fields, splits, strict=True)):
            windows = self._windows(name, files, tokenizer)
            parts.append(windows.select(self.kept(number, len(windows.target), windows.target)))
        self._test_starts = parts[2].start
        return Splits(*(LabelledSplit(part, tokenizer, parts[0], len(PACKAGES), variable=False) for part in parts))

    def files(self) -> list[Files]:
        """Read every package and assign its files to the training, validation and test split."""
        splits: list[Files] = [[], [], []]
        for label, name in enumerate(PACKAGES):
            texts = [file.read_bytes().decode("utf-8") for file in _files(name)]
            fractions = (self.validation_fraction, self.test_fraction)
            validation, test, train = by_size([len(text) for text in texts], fractions, self.split_seed)
            for split, indices in zip(splits, (train, validation, test), strict=True):
                split += [(texts[i], label) for i in indices]
        return splits

    def test_texts(self, samples: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
        """Return the text of each window, from the files where the tokenizer has unknown words."""
        assert self._test_starts is not None, "test_texts() is valid after load()"
        texts = [text for text, _ in self.files()[2]]
        bounds = [(int(self._test_starts[sample]), int(self._test_starts[sample]) + self.context) for sample in samples]
        if tokenizer.pieces("") is None:
            token_ids = [token_id for text in texts for token_id in tokenizer.encode(text)]
            return [tokenizer.decode(token_ids[start:stop]) for start, stop in bounds]
        parts = [part for text in texts for part in tokenizer.pieces(text) or []]
        return ["".join(parts[start:stop]) for start, stop in bounds]

    def _windows(self, name: str, files: Files, tokenizer: TextTokenizer) -> LabelledTexts:
        """Cut the files of a split into windows, in order. Raises UserError if a package has none."""
        stream, tokens = encoded([text for text, _ in files], tokenizer)
        counts = tokens // self.context  # (files,) windows of each
        file = torch.arange(len(files)).repeat_interleave(counts)  # (n,)
        number = torch.arange(len(file)) - (counts.cumsum(0) - counts)[file]  # (n,) of a window in its file
        first = (tokens.cumsum(0) - tokens)[file]  # (n,)
        target = torch.tensor([label for _, label in files])[file]
        lost = [PACKAGES[label] for label in range(len(PACKAGES)) if not (target == label).any()]
        if lost:
            raise UserError(
                f"data.context={self.context}: no file of {', '.join(lost)} in the {name} split has so many tokens; "
                "use a smaller context"
            )
        start = first + number * self.context
        slack = first + tokens[file] - self.context - start
        lengths = torch.full_like(start, self.context)
        return LabelledTexts(stream, start, lengths, target, slice=(number > 0).long(), slack=slack)


def _files(package: str) -> list[Path]:
    """Return the sources of a package, sorted, without its tests."""
    folder = Path(sysconfig.get_path("stdlib")) / package
    return sorted(path for path in folder.rglob("*.py") if not TESTS & set(path.relative_to(folder).parts[:-1]))
