"""Dialled numbers: 3 to 8 keys of a telephone as pairs of tones in noise; the text is the keys.

Source: ITU-T recommendation Q.23, Technical features of push-button telephone sets, for the frequencies
Reference: none; the rule is in `play`

    keys   1 2 3 A      each key sounds one tone of its row and one of its column
           4 5 6 B      for 60 to 200 ms, with 30 to 130 ms of silence before, between and after,
           7 8 9 C      and noise 0 to 20 dB below
           * 0 # D

Made from a seed, so it needs no file and no network. No number occurs in two splits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Because, Samples
from blockyard.data.splits.recordings import GeneratedRecordings

KEYS = "123A456B789C*0#D"
ROWS, COLUMNS = (697.0, 770.0, 852.0, 941.0), (1209.0, 1336.0, 1477.0, 1633.0)  # Hz
RATE = 8000
SHORTEST = 3  # keys of a number
LONGEST = 8
TONE = (0.060, 0.200)  # seconds, from the shortest to the longest
GAP = (0.030, 0.130)  # seconds of silence
NOISE = (0.0, 20.0)  # decibels below the tones
LEVEL = 0.2  # of each of the two tones, of full scale
Decibels = Annotated[float, Ge(-40), Le(120), Because("16 bits hold no softer noise")]


@dataclass(kw_only=True, eq=False)
class DialTones(GeneratedRecordings):
    """Numbers as a telephone plays them.

    Options:
        noise: the least and the most decibels that the noise is below the tones
    """

    stream = "dial_tones"
    thing = "number"

    samples: Samples = 2_000
    noise: tuple[Decibels, Decibels] = NOISE

    def __post_init__(self) -> None:
        if self.noise[0] > self.noise[1]:
            raise ValueError(f"data.noise={list(self.noise)}: the first number is the least; turn them round")

    @property
    def sizes(self) -> tuple[int, int]:
        """The longest tones with the longest silences."""
        return round(RATE * (LONGEST * (TONE[1] + GAP[1]) + GAP[1])), LONGEST + 1

    @property
    def samples_a_second(self) -> int:
        """The sampling rate of a telephone."""
        return RATE

    def draw(self, generator: torch.Generator) -> str:
        """Return 3 to 8 keys."""
        count = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=generator))
        return "".join(KEYS[i] for i in torch.randint(len(KEYS), (count,), generator=generator).tolist())

    def sound(self, text: str, generator: torch.Generator) -> Tensor:
        """Return the sound of a number, (T,) int16."""
        return play(text, generator, self.noise)


def play(number: str, generator: torch.Generator, noise: tuple[float, float] = NOISE) -> Tensor:
    """Return the sound of a number, (T,) int16. noise: minimum and maximum decibels that it is below the tones."""

    def durations(span: tuple[float, float], count: int) -> list[int]:
        """Return random durations within a span of seconds, in samples."""
        seconds = span[0] + (span[1] - span[0]) * torch.rand(count, generator=generator)
        return (seconds * RATE).round().int().tolist()

    # The order of the draws is a part of the data: tones, gaps, the level of the noise, the noise.
    tones = durations(TONE, len(number))
    gaps = durations(GAP, len(number) + 1)
    parts = [torch.zeros(gaps[0])]
    for key, length, gap in zip(number, tones, gaps[1:], strict=True):
        parts += [_tone(key)[:length], torch.zeros(gap)]
    sound = torch.cat(parts)
    decibels = noise[0] + (noise[1] - noise[0]) * float(torch.rand((), generator=generator))
    hiss = LEVEL * 10 ** (-decibels / 20) * torch.randn(len(sound), generator=generator)
    return ((sound + hiss).clamp(-1, 1) * 32767).round().to(torch.int16)


@cache
def _tone(key: str) -> Tensor:
    """Return the pair of tones of a key (T,) at the maximum duration."""
    row, column = divmod(KEYS.index(key), 4)
    time = 2 * math.pi * torch.arange(round(RATE * TONE[1])) / RATE
    return LEVEL * (torch.sin(ROWS[row] * time) + torch.sin(COLUMNS[column] * time))
