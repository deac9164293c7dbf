"""Numbers of a telephone as sources of the sound that a model writes: the reverse of data=dial_tones.

Source: ITU-T recommendation Q.23, Technical features of push-button telephone sets, for the frequencies
Reference: none; the rule is in `dial_tones.play`

    source   5 8 A
    inputs   START ... END      the codes of its tones, of tokenizer=audio_vq

Each split has the same numbers as in data=dial_tones, so that a run of experiment=tones_ctc, the judge of written
sounds, has not learned from the numbers of the test split. Lengths of tones and silences are drawn at random and cannot
be known from the number. Nor can the noise, which is softer here, because codes of noise are of no use.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockyard.data.dial_tones import Decibels, DialTones
from blockyard.data.splits.recordings import Writes


@dataclass(kw_only=True, eq=False)
class DialNumbers(DialTones):
    """Numbers as the source of their sounds."""

    writes: Writes = "sound"
    noise: tuple[Decibels, Decibels] = (10.0, 20.0)
