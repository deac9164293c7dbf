"""Speech of your own: sound files, and the text of each.

Source: the layout of Common Voice, Ardila et al. 2020 (arXiv 1912.06670): a table of paths and sentences
Reference: scipy.io.wavfile, scipy.signal.resample_poly

    path            text                 split
    en/hello.wav    Hello, who is it?    train       a .tsv, .csv or .jsonl table; paths are relative to data.root
    en/bye.wav      Goodbye.             test

or a folder, or a .zip file, in which hello.wav lies beside hello.txt. WAV of 16, 24 or 32 bits or floats is read by
scipy; FLAC, OGG and MP3 where the package soundfile is installed.
"""

from __future__ import annotations

import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt, Le

from blockyard.contracts import BatchSize, Because, Length, Text
from blockyard.data.files.digest import sha256
from blockyard.data.files.sounds import SUFFIXES, BadSoundError, SoundFiles, decode
from blockyard.data.files.split_names import SPLIT_NAMES, split_number
from blockyard.data.files.tables import SHOWN, check_rows, column_names, kind_of, lines_where, read_table
from blockyard.data.splits.recordings import Recording, RecordingData, log
from blockyard.data.splits.row_splits import split_rows, warn_of_duplicates
from blockyard.data.splits.split import DrawnSplits
from blockyard.errors import UserError

Rate = Annotated[int, Ge(1_000), Le(192_000), Because("no recorder takes more samples a second")]
Seconds = Annotated[float, Gt(0), Le(3_600), Because("attention over an hour compares billions of pairs of tokens")]


@dataclass(kw_only=True, eq=False)
class Speech(DrawnSplits, RecordingData):
    """Recordings in memory, read once.

    Options:
        path: a .tsv, .csv or .jsonl table, plain or gzipped; or a folder or .zip file of sounds with a .txt each
        root: folder or .zip file that the paths of a table are relative to; null is the table's own folder, or the
            .zip file in it that holds them
        file: the column of the paths
        text: the column of the texts
        split: the column that says train, val or test; without a column of the name split, all rows are drawn
        normalize: letters makes texts lower case and keeps letters, digits, apostrophes and single spaces; none
            leaves them as they are
        sample_rate: samples a second
        resample: convert sounds of another rate, which are refused otherwise
        max_seconds: longer recordings are left out
        validation_fraction: share of all rows that is the validation split, if the table names none
        test_fraction: share of all rows that is the test split, if the table names none
        context: maximum tokens of a text with its end; longer ones are left out
        batch_size: recordings in a training step, over all processes
        eval_batch_size: recordings in a validation or test step, over all processes
    """

    path: Text = "data/speech.tsv"
    root: Text | None = None
    file: Text = "path"
    text: Text = "text"
    split: Text = "split"
    normalize: Literal["letters", "none"] = "letters"
    sample_rate: Rate = 8_000
    resample: bool = False
    max_seconds: Seconds = 15.0
    context: Length = 256
    batch_size: BatchSize = 8
    eval_batch_size: BatchSize = 16

    @property
    def sizes(self) -> tuple[int, int]:
        """The largest number of samples of a recording, and of tokens of a text with its end, by the options."""
        return max(int(self.max_seconds * self.sample_rate), 1), self.context

    @property
    def samples_a_second(self) -> int:
        """The sample rate, by the options."""
        return self.sample_rate

    def missing(self) -> str | None:
        """Return a message that names the missing table or folder and the remedy, or None."""
        if self._path.exists():
            return None
        return f"no file {self._path.absolute()}; set data.path=FILE.tsv, a row per recording with its path and text"

    def recordings(self) -> list[list[Recording]]:
        """Read every file. Raises UserError naming each file that cannot be used, with its line and the reason."""
        rows = list(self._read_rows())
        files = self._files(rows)
        problems: list[str] = []
        recordings: list[Recording] = []
        assigned: list[int | None] = []
        long = 0
        for row in rows:
            try:
                if not row.text:
                    with_letters = " with a letter" if self.normalize == "letters" else ""
                    raise BadSoundError(f"has no {self.text}{with_letters}")
                content = files.content(row.path)
                samples = decode(content, PurePosixPath(row.path).suffix, self.sample_rate, resample=self.resample)
            except BadSoundError as error:
                problems.append(f"{row.where}, {row.path} {error}")
                continue
            if len(samples) > self.sizes[0]:
                long += 1
                continue
            recordings.append(Recording(row.path, samples, row.text))
            assigned.append(row.split)
        if problems:
            more = f"; and {len(problems) - SHOWN:,} more" if len(problems) > SHOWN else ""
            raise UserError(f"{self.path}: {'; '.join(problems[:SHOWN])}{more}")
        if long:
            log.warning("%d of %d recordings are left out: longer than %g s", long, len(rows), self.max_seconds)
        named = [number for number in assigned if number is not None]
        parts = split_rows(
            self._path,
            torch.zeros(len(recordings), dtype=torch.int64),
            named if len(named) == len(assigned) else None,
            (self.validation_fraction, self.test_fraction),
            self.split_seed,
        )
        splits = [[recordings[i] for i in part.tolist()] for part in parts]
        warn_of_duplicates(self.path, [[recording.name for recording in split] for split in splits], "recordings")
        contents: list[str | torch.Tensor] = []
        for split in splits:
            for name, samples, text in split:
                contents += [name, text, samples]
        self._fingerprint = sha256(contents)
        return splits

    def _read_rows(self) -> Iterator[Row]:
        """Yield the rows of the table, or the sounds of a folder with their texts."""
        if kind_of(self._path) is None:
            yield from self._beside()
            return
        has_split = self.split != "split" or self.split in column_names(self._path)
        columns = {"data.file": self.file, "data.text": self.text}
        if has_split:
            columns["data.split"] = self.split
        table = read_table(self._path, columns)
        problems = {f"no {self.file}": lines_where(table[self.file].isna() | (table[self.file] == ""))}
        if has_split:
            numbers = table[self.split].map(split_number, na_action="ignore")
            problems[f"{self.split} is none of {SPLIT_NAMES}"] = lines_where(numbers.isna())
        check_rows(self._path, problems)
        for line, row in zip(table.index, table.to_dict("records"), strict=True):
            split = split_number(row[self.split]) if has_split else None
            yield Row(f"line {line}", row[self.file], self._normalized(row[self.text] or ""), split)

    def _beside(self) -> Iterator[Row]:
        try:
            files = SoundFiles(self._path)
        except (zipfile.BadZipFile, OSError):
            raise UserError(f"data.path={self.path} is neither a table nor a folder nor a .zip file") from None
        names = set(files.names())
        sounds = sorted(name for name in names if PurePosixPath(name).suffix.lower() in SUFFIXES)
        if not sounds:
            raise UserError(f"data.path={self.path} holds no sound ({', '.join(SUFFIXES)})")
        for name in sounds:
            text = str(PurePosixPath(name).with_suffix(".txt"))
            content = files.content(text).decode("utf-8-sig", "replace") if text in names else ""
            yield Row(text, name, self._normalized(content), None)

    def _files(self, rows: list[Row]) -> SoundFiles:
        """Return the folder or archive of the sounds."""
        if kind_of(self._path) is None:
            return SoundFiles(self._path)
        if self.root is not None:
            root = Path(self.root).expanduser()
            if not root.is_dir() and not zipfile.is_zipfile(root):
                raise UserError(f"data.root={self.root} is neither a folder nor a .zip file")
            return SoundFiles(root)
        folder = SoundFiles(self._path.parent)
        if rows and not folder.has(rows[0].path):
            for path in sorted(self._path.parent.glob("*.zip")):
                if not zipfile.is_zipfile(path):
                    continue
                archive = SoundFiles(path)
                if archive.has(rows[0].path):
                    return archive
        return folder

    def _normalized(self, text: str) -> str:
        text = " ".join(text.split())
        if self.normalize == "none":
            return text
        text = unicodedata.normalize("NFC", text).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        # Marks are parts of letters: without its vowel signs a word of Hindi or Thai is another one.
        kept = ""
        for letter in text:
            is_kept = letter.isalnum() or letter == "'" or unicodedata.category(letter)[0] == "M"
            kept += letter if is_kept else " "
        return " ".join(kept.split())

    @property
    def _path(self) -> Path:
        return Path(self.path).expanduser()


class Row(NamedTuple):
    """A row of the table. where: the line, or the name of a text; split: 0 train, 1 validation, 2 test, or None."""

    where: str
    path: str
    text: str
    split: int | None
