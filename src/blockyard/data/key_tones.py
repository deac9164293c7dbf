"""One key of a telephone as a pair of tones in noise: which of 16 keys is it?

Source: ITU-T recommendation Q.23, Technical features of push-button telephone sets, for the frequencies
Reference: none; the rule is in `dial_tones.play`

Sounds of different lengths with a class each. Made from a seed, so it needs no file and no network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import BatchSize, DataSpec, Samples, Seed, SimpleModel, Splits, Tokenizer
from blockyard.data.dial_tones import GAP, KEYS, RATE, TONE, play
from blockyard.data.files.digest import sha256
from blockyard.data.splits.columns import ColumnSplit, Ragged
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.order import mix
from blockyard.data.splits.simple_models import majority_model

NOISE = (-15.0, 5.0)  # decibels below the tones: most of them are louder than the tones


class KeySplit(ColumnSplit):
    """Sounds int16 with classes int64 (n,). class_counts: (V,) of the training split."""

    def __init__(self, sounds: Ragged, target: Tensor, class_counts: Tensor) -> None:
        super().__init__(sounds, target)
        self.class_counts = class_counts

    def baselines(self) -> Iterator[SimpleModel]:
        """Yield the model of the most frequent class."""
        yield majority_model(self.class_counts)


@dataclass(kw_only=True, eq=False)
class KeyTones(LoadedData):
    """Keys as a telephone plays them.

    Options:
        samples: training sounds
        eval_samples: sounds of the validation split, and of the test split
        data_seed: seed of the sounds; independent of the run's seed, so that all seeds share them
        batch_size: sounds in a training step, over all processes
        eval_batch_size: sounds in a validation or test step, over all processes
    """

    samples: Samples = 2_000
    eval_samples: Samples = 400
    data_seed: Seed = 0
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 200

    @property
    def spec(self) -> DataSpec:
        """Sounds of different lengths with a class each."""
        longest = round(RATE * (TONE[1] + 2 * GAP[1]))
        return DataSpec(
            "audio", (longest,), variable=True, target="class", classes=len(KEYS), class_names=tuple(KEYS), rate=RATE
        )

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Make the sounds."""
        parts = []
        contents: list[Tensor] = []
        counts = self.sizes_of(self.samples, self.eval_samples)
        for name, count in zip(Splits._fields, counts, strict=True):
            waves = []
            classes = []
            for number in range(count):
                # A seed for each sound: fewer samples are the first of more.
                generator = torch.Generator().manual_seed(mix("key_tones", name, self.data_seed, number))
                key = int(torch.randint(len(KEYS), (), generator=generator))
                classes.append(key)
                waves.append(play(KEYS[key], generator, NOISE))
            sounds = Ragged.of(waves)
            target = torch.tensor(classes)
            parts.append((sounds, target))
            # Not the waves: the last bit of a sine depends on the machine.
            contents += [sounds.lengths, target]
        self._fingerprint = sha256(contents)
        class_counts = parts[0][1].bincount(minlength=len(KEYS))
        return Splits(*(KeySplit(*part, class_counts) for part in parts))
