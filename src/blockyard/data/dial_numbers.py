"""Numbers of a telephone, of which a model writes the sound: data=dial_tones turned round.

Source: ITU-T recommendation Q.23, Technical features of push-button telephone sets, for the frequencies
Reference: none; the rule is in `dial_tones.play`

    source   5 8 A
    inputs   START ... END      the codes of its tones, of tokenizer=audio_vq

The numbers of each split are those of data=dial_tones, so that a run of experiment=tones_ctc, which judges what is
written, has not learned from those of the test split. Lengths of tones and silences are drawn at random and cannot be
known from the number; nor can the noise, which is softer here, because codes of it are of no use.
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
