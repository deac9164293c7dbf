"""Canvases drawn from captions: what belongs to which split, the codes, and the judge against canvases set by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from blockyard.contracts import ReadsOutputs
from blockyard.data._scenes import COLOURS
from blockyard.data.canvas_captions import captions
from blockyard.data.canvas_drawings import CanvasDrawings, CanvasReader, DrawingSplit, digits_in
from blockyard.data.digits import Digits
from blockyard.objective.translate import Translate
from blockyard.tokenizer.patch_codes import PatchCodes
from blockyard.tokenizer.word import Word
from tests.support.every import every

ORDER = torch.arange(60)


@pytest.fixture(scope="module")
def splits() -> tuple[DrawingSplit, DrawingSplit, DrawingSplit]:
    data = CanvasDrawings(samples=200, eval_samples=60)
    return data.load_both(PatchCodes(codes=64), Word())


@pytest.fixture(scope="module")
def reader() -> CanvasReader:
    return CanvasReader(Digits().read()[0])


def image_of(digit: int, number: int = 0) -> Tensor:
    """An image of a digit that the judge was not fitted on, (8, 8)."""
    test = Digits().read()[1]
    return test.images[test.target == digit][number, 0]


def painted(*digits: tuple[str, int, int]) -> Tensor:
    """A canvas by hand: the colour, the digit and the cell of each, row by row. (3, 24, 24)."""
    canvas = torch.zeros(3, 24, 24, dtype=torch.uint8)
    for colour, digit, cell in digits:
        top, left = 8 * (cell // 3), 8 * (cell % 3)
        canvas[COLOURS.index(colour), top : top + 8, left : left + 8] = image_of(digit)
    return canvas


BY_HAND = {
    "a red 3 left of a blue 7": painted(("red", 3, 3), ("blue", 7, 8)),
    "a green 0 above a red 0": painted(("red", 0, 7), ("green", 0, 1)),
    "a blue 1": painted(("blue", 1, 4)),
    "nothing": painted(),
}


@pytest.mark.parametrize("caption", BY_HAND)
def test_the_judge_reads_canvases_set_by_hand(reader: CanvasReader, caption: str) -> None:
    assert reader.read(BY_HAND[caption][None]) == [caption]


def test_the_judge_sees_colours_that_are_mixed_and_ink_that_is_no_digit(reader: CanvasReader) -> None:
    yellow = painted(("red", 3, 0)) + painted(("green", 3, 0))
    faint = painted(("red", 3, 0)) // 4
    assert reader.read(torch.stack([yellow, faint])) == ["a mixed 3", "nothing"]


def test_the_judge_reads_true_canvases(splits: tuple[DrawingSplit, ...]) -> None:
    """Its own errors bound what any model reaches."""
    test = splits[2]
    readings, texts = test.read(test.outputs(ORDER)), [text for _, text in test.pairs]
    assert test.score(readings, texts)["digits"] > 0.95
    coded = test.score(test.read(test.coded(ORDER)), texts)["digits"]
    assert 0.3 < coded <= 1
    other = test.score([*readings[1:], readings[0]], texts)["digits"]
    assert other < 0.3


def test_extra_digits_wrong_colours_and_missing_ones_cost(splits: tuple[DrawingSplit, ...]) -> None:
    named = "a red 3 left of a blue 7"
    for reading, share in (
        (named, 1.0),
        ("a blue 7 above a red 3", 1.0),
        ("a blue 3 left of a red 7", 0.0),
        ("a red 3", 0.5),
        ("a red 3 left of a red 3", 0.5),
        ("a red 3 above a green 1 left of a blue 7 above a green 2", 0.5),
        ("nothing", 0.0),
    ):
        assert splits[2].score([reading], [named]) == {"digits": share}, reading
    assert digits_in("a red 3 left of a red 3") == {"red 3": 2}


def test_no_caption_and_no_image_is_in_two_splits(splits: tuple[DrawingSplit, ...]) -> None:
    scenes = [split.images.scenes for split in splits]
    own = [{tuple(row) for row in each.captions.tolist()} for each in scenes]
    assert [len(each) for each in own] == [1440, 180, 180]
    assert len(own[0] | own[1] | own[2]) == 1800
    texts = [set(captions(each.draw(torch.arange(500), 0))) for each in scenes]
    images = [{tuple(image.flatten().tolist()) for image in each.source.digits.images} for each in scenes]
    for left, right in itertools.combinations(range(3), 2):
        assert not texts[left] & texts[right]
        assert not images[left] & images[right]


def test_scenes_are_what_their_captions_say(splits: tuple[DrawingSplit, ...]) -> None:
    """Colours, digits and the relation; the image is one of that digit; both relations and all cells occur."""
    scenes = splits[0].images.scenes
    drawn = scenes.draw(torch.arange(400), 3)
    captions = {tuple(row) for row in scenes.captions.tolist()}
    for cell, digit, colour in zip(drawn.cell.tolist(), drawn.digit.tolist(), drawn.colour.tolist(), strict=True):
        above = cell[0] % 3 == cell[1] % 3
        assert cell[0] < cell[1] if above else cell[0] % 3 < cell[1] % 3
        assert (int(above), colour[0], digit[0], colour[1], digit[1]) in captions
    assert torch.equal(scenes.source.digits.target[drawn.image], drawn.digit)
    assert set(drawn.cell.flatten().tolist()) == set(range(9))


def test_batches_are_codes_and_captions_however_they_are_cut(splits: tuple[DrawingSplit, ...]) -> None:
    train, _, test = splits
    assert isinstance(test, ReadsOutputs)
    whole = train.batch(ORDER[:6], 5)
    assert whole.inputs.shape == (6, 37)
    assert every(whole.inputs[:, 0] == 64)
    assert whole.inputs[:, 1:].max() < 64
    for index in range(6):
        alone = train.batch(ORDER[index : index + 1], 5)
        assert torch.equal(alone.inputs[0], whole.inputs[index])
        length = int(whole.source_lengths[index])
        assert alone.source[0].tolist() == whole.source[index, :length].tolist()
    assert not torch.equal(train.batch(ORDER[:6], 6).inputs, whole.inputs)
    batch = test.batch(ORDER[:6], None)
    decoded = test.tokenizer.decode(batch.inputs[:, 1:])
    assert torch.equal(decoded, torch.stack(test.coded(ORDER[:6])))
    lengths = zip(batch.source.tolist(), batch.source_lengths.tolist(), strict=True)
    assert [test.images.tokenizer.decode(ids[:length]) for ids, length in lengths] == [s for s, _ in test.pairs[:6]]


def test_metrics_and_baselines_are_those_of_codes(splits: tuple[DrawingSplit, ...]) -> None:
    train, _, test = splits
    objective = Translate()
    assert set(objective.metrics(test)) == {"loss", "bits_per_code", "reconstruction_mse"}
    baselines = objective.baselines(test, train)
    assert set(baselines) == {"uniform", "independent", "nearest_source"}
    values = baselines["nearest_source"]
    assert values["written_exact"] < 0.1
    assert 0.2 < values["written_digits"] < 0.7


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="source_tokenizer=word"):
        CanvasDrawings().load(PatchCodes())
    with pytest.raises(ValueError, match="is written as codes, which Word does not give"):
        CanvasDrawings().load_both(Word(), Word())
    with pytest.raises(ValueError, match="need a text tokenizer, not PatchCodes"):
        CanvasDrawings().load_both(PatchCodes(), PatchCodes())
