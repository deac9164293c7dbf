"""Groups of letters keyed in Morse code at a speed and a pitch of their own; the text is the letters.

Source: ITU-R recommendation M.1677-1, International Morse Code, for the code and its timing
Reference: none; the rule is in `key`

    K      -.-             a dash sounds for three units and a dot for one; one unit of silence lies within a letter,
           ###.#.###       three between letters

Harder than `dial_tones`: every letter is the same tone, and letters differ only in the durations of sounds. The speed
is 15 to 25 words a minute (units of 80 to 48 ms) by hands that are 10 % uneven, the pitch 400 to 900 Hz, and noise is 0
to 20 dB below the tone. A model of `experiment=tones_ctc data=morse` still writes nothing but blanks after 2,000 steps
of 8 recordings. Made from a seed, so it needs no file and no network. No group occurs in two splits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import Samples
from blockyard.data.splits.recordings import GeneratedRecordings

CODE = dict(
    zip(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (
            *(".-", "-...", "-.-.", "-..", ".", "..-.", "--.", "....", "..", ".---", "-.-", ".-..", "--"),
            *("-.", "---", ".--.", "--.-", ".-.", "...", "-", "..-", "...-", ".--", "-..-", "-.--", "--.."),
        ),
        strict=True,
    )
)
RATE = 8000
SHORTEST = 1  # letters of a group
LONGEST = 4
SPEED = (15.0, 25.0)  # words a minute
UNIT = 1.2  # seconds of a unit at one word a minute: PARIS and the space behind it are 50 units
UNEVEN = 0.1  # maximum deviation of a sound or a silence, as a share of its length
PITCH = (400.0, 900.0)  # Hz
NOISE = (0.0, 20.0)  # decibels below the tone
RAMP = 0.005  # seconds in which a tone starts and ends, so that it does not click
LEVEL = 0.3  # of full scale


@dataclass(kw_only=True, eq=False)
class Morse(GeneratedRecordings):
    """Groups of one to four letters, keyed by hand."""

    stream = "morse"
    thing = "group"

    samples: Samples = 4_000

    @property
    def sizes(self) -> tuple[int, int]:
        """The samples of four of the longest letters at the lowest speed, with the longest silences, and tokens."""
        letter = max(map(units, CODE))
        longest = UNIT / SPEED[0] * (1 + UNEVEN) * (LONGEST * letter + 3 * (LONGEST + 1))
        return math.ceil(RATE * longest), LONGEST + 1

    @property
    def samples_a_second(self) -> int:
        """The sampling rate of a telephone."""
        return RATE

    def draw(self, generator: torch.Generator) -> str:
        """Return a group of letters."""
        count = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=generator))
        letters = tuple(CODE)
        return "".join(letters[i] for i in torch.randint(len(letters), (count,), generator=generator).tolist())

    def sound(self, text: str, generator: torch.Generator) -> Tensor:
        """Return the sound of a group, (T,) int16."""
        return key(text, generator)


def units(letter: str) -> int:
    """Return the duration of a letter in units, its inner silences included."""
    code = CODE[letter]
    silences = len(code) - 1
    return code.count(".") + 3 * code.count("-") + silences


def key(group: str, generator: torch.Generator, noise: tuple[float, float] = NOISE) -> Tensor:
    """Return the sound of a group, (T,) int16. noise: minimum and maximum decibels that it is below the tone."""

    def between(span: tuple[float, float]) -> float:
        return span[0] + (span[1] - span[0]) * float(torch.rand((), generator=generator))

    # The order of the draws is a part of the data.
    unit = UNIT / between(SPEED)  # seconds
    pitch = between(PITCH)
    decibels = between(noise)
    parts = []
    for sounds, length in elements(group):
        count = round(RATE * unit * length * between((1 - UNEVEN, 1 + UNEVEN)))
        edge = torch.arange(count).minimum(torch.arange(count).flip(0)) / (RAMP * RATE)
        parts.append(edge.clamp(max=1.0) if sounds else torch.zeros(count))
    envelope = torch.cat(parts)
    tone = LEVEL * torch.sin(2 * math.pi * pitch * torch.arange(len(envelope)) / RATE)
    hiss = LEVEL * 10 ** (-decibels / 20) * torch.randn(len(envelope), generator=generator)
    return ((envelope * tone + hiss).clamp(-1, 1) * 32767).round().to(torch.int16)


def elements(group: str) -> list[tuple[bool, int]]:
    """Return sounds (True) and silences in order, with their units; three units of silence at either end."""
    parts = [(False, 3)]
    for letter in group:
        for sign in CODE[letter]:
            length = 3 if sign == "-" else 1
            parts += [(True, length), (False, 1)]
        parts[-1] = (False, 3)  # behind a letter, in place of the silence within it
    return parts
