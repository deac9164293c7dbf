"""Recordings with the text of each: a sound as the source and its text as the sequence, or the other way round.

source   |~~~~~^^^~~|         int16 samples of any length, padded on the right with silence
inputs   START 5 8 A END      the text, for a decoder or for CTC

writes=sound
source   5 8 A
inputs   START 0.7 1.3 0.9 1.22 ... END      codes of the sound, of tokenizer=audio_vq
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import (
    BatchSize,
    DataSpec,
    Samples,
    Seed,
    SoundTokenizer,
    Split,
    Splits,
    TextTokenizer,
    Tokenizer,
)
from blockyard.data.files.digest import sha256
from blockyard.data.files.sounds import BadSoundError, SoundFiles, decode
from blockyard.data.splits.columns import ColumnSplit, Ragged
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.order import mix
from blockyard.data.splits.text_tokenizer import ends_of, text_tokenizer
from blockyard.errors import UserError
from blockyard.ops import ctc

log = logging.getLogger("blockyard")

HEARD = 32  # sounds of a split that are encoded and decoded to measure the tokenizer
HELD_OUT = 0.1  # share of all texts that may go to validation, and the same to test
Writes = Literal["text", "sound"]


class Recording(NamedTuple):
    """A sound and its text. name: of the file, or a number; samples: (T,) int16."""

    name: str
    samples: Tensor
    text: str


class RecordingSplit(ColumnSplit):
    """Recordings of one split in memory: the inputs are start, the text's token ids, end; the source is the sound.

    pairs: (name, text) of each; least_tokens: (n,) int64, that an alignment of the text has
    """

    def __init__(self, recordings: Sequence[Recording], tokenizer: TextTokenizer, ends: tuple[int, int]) -> None:
        token_ids = [tokenizer.encode(recording.text) for recording in recordings]
        texts = Ragged.of([[ends[0], *ids, ends[1]] for ids in token_ids])
        self.sounds = Ragged.of([recording.samples for recording in recordings])
        super().__init__(texts, source=self.sounds)
        self.tokenizer = tokenizer
        self.pairs = [(recording.name, recording.text) for recording in recordings]
        self.least_tokens = torch.tensor([ctc.least_tokens(ids) for ids in token_ids])

    @property
    def lengths(self) -> Tensor:
        """The samples of each sound, (n,) int64, as `Transcripts` asks."""
        return self.sounds.lengths

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids."""
        return self.tokenizer.decode(token_ids)


class SpokenSplit(ColumnSplit):
    """Sounds of one split that are to be written, start, codes, end, with the text of each as the source.

    texts: of each; sounds: of each, (T,) int16; units: what a token stands for, in names of metrics
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        tokenizers: tuple[TextTokenizer, SoundTokenizer],
        ends: tuple[int, int],
    ) -> None:
        self.tokenizer = tokenizers[1]
        self.units = (self.tokenizer.unit,)
        self.texts = [recording.text for recording in recordings]
        self.sounds = [recording.samples for recording in recordings]
        source = Ragged.of([tokenizers[0].encode(text) for text in self.texts])
        codes = (self.tokenizer.encode(sound[None])[0].tolist() for sound in self.sounds)
        super().__init__(Ragged.of([[ends[0], *ids, ends[1]] for ids in codes]), source=source)

    def outputs(self, order: Tensor) -> list[Tensor]:
        """Return the sounds `order` (B,), each (T,) int16."""
        return [self.sounds[index] for index in order.tolist()]

    def coded(self, order: Tensor) -> list[Tensor]:
        """Return the same as their codes have them."""
        return [self.tokenizer.decode(self.tokenizer.encode(sound[None]))[0] for sound in self.outputs(order)]

    @cached_property
    def reconstruction_lsd(self) -> float:
        """The mean distance in decibels between the first sounds and their decoded codes."""
        some = torch.arange(min(HEARD, len(self)))
        return fmean(map(self.tokenizer.distance, self.outputs(some), self.coded(some)))


@dataclass(kw_only=True, eq=False)
class RecordingData(LoadedData):
    """Recordings with a text each. Subclasses implement `sizes`, `samples_a_second` and `recordings`.

    Options:
        writes: what a model is to write from the other, the text of a sound, or the sound of a text
    """

    writes: Writes = "text"

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """The largest number of samples of a recording, and of tokens of a text with its end."""

    @property
    @abstractmethod
    def samples_a_second(self) -> int:
        """The sample rate of all recordings."""

    @property
    def spec(self) -> DataSpec:
        """Texts of different lengths, each beside a sound, or the sound beside its text."""
        samples, tokens = self.sizes
        sound = DataSpec("audio", (samples,), variable=True, rate=self.samples_a_second)
        if self.writes == "sound":
            return replace(sound, source=DataSpec("text", (tokens - 1,), variable=True))
        return DataSpec("text", (tokens,), variable=True, source=sound)

    @abstractmethod
    def recordings(self) -> list[list[Recording]]:
        """Return the recordings of the training, the validation and the test split, and set the fingerprint."""

    def read_source(self, path: str) -> Tensor:
        """Return the samples of a sound file, (1, T) int16. Raises UserError for one that cannot be used."""
        file, rate = Path(path).expanduser(), self.samples_a_second
        try:
            return decode(SoundFiles(file.parent).content(file.name), file.suffix, rate, resample=True)[None]
        except BadSoundError as error:
            raise UserError(f"{path} {error}") from None

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read the recordings; fit the tokenizer on the training texts unless its state was loaded."""
        if self.writes == "sound":
            raise ValueError(
                "data.writes=sound reads texts and writes sounds; name what reads texts: source_tokenizer=char"
            )
        return self.load_both(tokenizer, tokenizer)

    def load_both(self, tokenizer: Tokenizer, source: Tokenizer) -> Splits:
        """Load with another tokenizer of the source, which embeds sounds, or is fitted on the training texts."""
        of_text = text_tokenizer(source if self.writes == "sound" else tokenizer, "the texts of recordings need")
        splits = self.kept_of(self.recordings())
        if not of_text.state():
            of_text.fit(recording.text for recording in splits[0])
        if self.writes == "sound" and isinstance(tokenizer, SoundTokenizer) and not tokenizer.state():
            tokenizer.spec(self.spec)
            tokenizer.fit([recording.samples for recording in splits[0]])
        ends = ends_of(tokenizer, self.spec)
        parts: list[Split] = []
        for name, split in zip(Splits._fields, splits, strict=True):
            kept = []
            for recording in split:
                if 0 < len(of_text.encode(recording.text)) < self.sizes[1]:
                    kept.append(recording)
            if len(kept) < len(split):
                log.warning("%d of %d %s texts are left out: too long", len(split) - len(kept), len(split), name)
            if not kept:
                raise UserError(
                    f"no text of the {name} split has at most {self.sizes[1] - 1} tokens; raise data.context"
                )
            if self.writes == "text":
                parts.append(RecordingSplit(kept, of_text, ends))
                continue
            if not isinstance(tokenizer, SoundTokenizer):
                raise ValueError(
                    f"data.writes=sound needs codes of sounds, not {type(tokenizer).__name__}: tokenizer=audio_vq"
                )
            parts.append(SpokenSplit(kept, (of_text, tokenizer), ends))
        self._warn_of_unknown(splits, of_text)
        return Splits(*parts)

    def _warn_of_unknown(self, splits: Sequence[Sequence[Recording]], tokenizer: TextTokenizer) -> None:
        for name, split in zip(Splits._fields, splits, strict=True):
            texts = [text for _, _, text in split if tokenizer.decode(tokenizer.encode(text)) != text]
            if texts:
                log.warning(
                    "%d of %d %s texts hold symbols that no training text has, such as %r; no model can write them",
                    len(texts),
                    len(split),
                    name,
                    texts[0][:80],
                )


@dataclass(kw_only=True, eq=False)
class GeneratedRecordings(RecordingData):
    """Recordings generated from a seed; no text occurs in two splits. Subclasses implement `draw` and `sound`.

    stream: the name of the data set, which its random numbers depend on; thing: what a recording is of

    Options:
        samples: training recordings
        eval_samples: recordings of the validation split, and of the test split
        data_seed: seed of the recordings; independent of the run's seed, so that all seeds share them
        batch_size: recordings in a training step, over all processes
        eval_batch_size: recordings in a validation or test step, over all processes
    """

    published_under = "none: drawn from a seed"

    stream: ClassVar[str]
    thing: ClassVar[str]

    samples: Samples
    eval_samples: Samples = 200
    data_seed: Seed = 0
    batch_size: BatchSize = 16
    eval_batch_size: BatchSize = 64

    @abstractmethod
    def draw(self, generator: torch.Generator) -> str:
        """Return a text."""

    @abstractmethod
    def sound(self, text: str, generator: torch.Generator) -> Tensor:
        """Return the sound of a text, (T,) int16."""

    def bytes_in_memory(self) -> int:
        """Return the size of all recordings of average length."""
        return (self.samples + 2 * self.eval_samples) * self.sizes[0]  # two bytes a sample, half the longest

    def recordings(self) -> list[list[Recording]]:
        """Draw texts until each split has enough. A hash of its text assigns a recording to a split."""
        counts = (self.samples, self.eval_samples, self.eval_samples)
        splits: list[list[Recording]] = [[], [], []]
        candidate = 0
        while any(len(split) < count for split, count in zip(splits, counts, strict=True)):
            generator = torch.Generator().manual_seed(mix(self.stream, self.data_seed, candidate))
            text = self.draw(generator)
            share = mix("split", text) / 2**63
            if share < HELD_OUT:
                part = 1
            elif share < 2 * HELD_OUT:
                part = 2
            else:
                part = 0
            if len(splits[part]) < counts[part]:
                splits[part].append(Recording(f"{self.thing} {candidate}", self.sound(text, generator), text))
            candidate += 1
        # Not of the samples: the last bit of a sine depends on the machine.
        self._fingerprint = sha256(f"{text} {len(samples)}" for split in splits for _, samples, text in split)
        return splits
