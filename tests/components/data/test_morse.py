"""Morse code: the code itself, its timing, what is heard in the sound, and splits that share no group."""

from __future__ import annotations

from itertools import groupby

import torch

from blockyard.data.morse import CODE, RATE, Morse, elements, key, units
from blockyard.tokenizer.char import Char


def test_the_code_is_a_prefix_tree_of_26_letters() -> None:
    """Against the order of the tree in which a dot goes left and a dash right, as keyers print it."""
    tree = " ETIANMSURWDKGOHVF L PJBXCYZQ"
    for letter, code in CODE.items():
        node = 1
        for sign in code:
            node = 2 * node + (sign == "-")
        assert tree[node - 1] == letter
    assert len(set(CODE.values())) == 26


def test_paris_is_fifty_units() -> None:
    sounds = elements("PARIS")
    within = sum(length for _, length in sounds) - 6  # without the silences at both ends
    assert within + 7 == 50  # seven units between words
    assert units("Q") == 13


def test_the_letters_are_heard_in_the_envelope() -> None:
    """Without noise: the lengths of sounds and silences say the letters."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        group = Morse().draw(generator)
        sound = key(group, generator, noise=(80.0, 80.0)).float().abs()
        loud = sound.unfold(0, 40, 10).amax(1) > 2000  # 5 ms, longer than half a period
        runs = [(on, len(list(part))) for on, part in groupby(loud.tolist())]
        assert not runs[0][0]
        assert not runs[-1][0]
        shortest = min(length for on, length in runs if on)
        unit = shortest if any("." in CODE[letter] for letter in group) else shortest / 3
        text = ""
        for on, length in runs[1:-1]:
            text += ("-" if length > 2 * unit else ".") if on else (" " if length > 2 * unit else "")
        assert text == " ".join(CODE[letter] for letter in group)


def test_splits_are_the_same_every_time_and_share_no_group() -> None:
    data = Morse(samples=30, eval_samples=6)
    splits = data.load(Char())
    assert [len(split) for split in splits] == [30, 6, 6]
    texts = [{text for _, text in split.pairs} for split in splits]  # type: ignore[attr-defined]
    assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]
    again = Morse(samples=40, eval_samples=6).load(Char())
    order = torch.arange(6)
    for left, right in zip(splits, again, strict=True):
        torch.testing.assert_close(left.batch(order, None).source, right.batch(order, None).source)
    longest = key("YQJY", torch.Generator().manual_seed(0))
    assert len(longest) <= data.sizes[0]
    assert splits.train.batch(order, None).source.dtype == torch.int16  # type: ignore[union-attr]
    assert data.spec.source is not None
    assert data.spec.source.rate == RATE
