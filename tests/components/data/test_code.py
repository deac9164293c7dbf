"""data=code: Python's own library, read the same twice and split by shares."""

from __future__ import annotations

import pytest

from blockyard.data.code import Code
from blockyard.data.splits.texts import SplitDocuments
from blockyard.tokenizer.byte import Byte


def test_the_library_is_read_the_same_twice() -> None:
    one, two, other = Code(), Code(), Code(split_seed=1)
    assert one.missing() is None
    for data in (one, two, other):
        data.load(Byte())
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()
    parts = one.documents()
    total = sum(len(text) for part in parts for text in part)
    assert 1_000_000 < total < 2_000_000
    texts = [text for part in parts for text in part]
    assert len(set(texts)) == len(texts)


def assert_shares(parts: SplitDocuments, shares: tuple[float, float, float]) -> None:
    """Checks the share of the text in train, validation and test.

    Modules are assigned whole: a split misses its share by half a module at most, the rest by the sum of both.
    """
    sizes = [sum(map(len, part)) for part in parts]
    half = max(len(text) for part in parts for text in part) / 2 / sum(sizes)
    for size, share, tolerance in zip(sizes, shares, (2 * half, half, half), strict=True):
        assert size / sum(sizes) == pytest.approx(share, abs=tolerance)


def test_splits_of_the_library_have_their_shares() -> None:
    data = Code(validation_fraction=0.1, test_fraction=0.3)
    assert_shares(data.documents(), (0.6, 0.1, 0.3))
    train, validation, test = data.documents()
    for planted in ((train, test, validation), (validation, test, train)):
        with pytest.raises(AssertionError):
            assert_shares(SplitDocuments(*planted), (0.6, 0.1, 0.3))
