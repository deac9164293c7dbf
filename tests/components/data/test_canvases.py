"""Canvases of coloured digits with questions and captions: against loops over what is on each canvas."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from blockyard.data import canvas_questions
from blockyard.data._scenes import COLOURS, Scenes
from blockyard.data.canvas_captions import CanvasCaptions, captions
from blockyard.data.canvas_questions import ANSWERS, QUESTIONS, SLICES, CanvasQuestions
from blockyard.errors import UserError
from blockyard.objective.classify import Classify
from blockyard.objective.translate import Translate
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.word import Word
from tests.support.every import every
from tests.support.tolerances import float32

ORDER = torch.arange(200)


def listed(scenes: Scenes) -> list[list[tuple[int, int, str]]]:
    """The cell, digit and colour of every digit, canvas by canvas."""
    return [
        [(int(cell[n]), int(digit[n]), COLOURS[int(colour[n])]) for n in range(int(count))]
        for count, cell, digit, colour in zip(scenes.number, scenes.cell, scenes.digit, scenes.colour, strict=True)
    ]


def answered(question: str, scene: list[tuple[int, int, str]]) -> set[str]:
    """All answers to a question that are right, by its words."""
    terms = question.split()
    if terms[:3] == ["how", "many", "digits"]:
        return {str(len(scene))}
    if terms[:3] == ["how", "many", "are"]:
        return {str(sum(colour == terms[3] for *_, colour in scene))}
    return {colour for _, digit, colour in scene if digit == int(terms[4])}


def assert_answers_are_right() -> None:
    split = CanvasQuestions().load(Word()).validation
    scenes, question, answer, kind, _ = split.ask(ORDER, None)
    for scene, query, reply, slice_ in zip(listed(scenes), question, answer, kind, strict=True):
        text = QUESTIONS[int(query)]
        assert answered(text, scene) == {ANSWERS[int(reply)]}, (text, scene)
        kinds = {"how many digits": "count", "how many are": "count_colour", "what colour is": "colour"}
        assert SLICES[int(slice_)] == kinds[" ".join(text.split()[:3])]


def test_every_question_has_one_answer() -> None:
    assert_answers_are_right()


def test_digits_that_are_not_on_the_canvas_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: all digits that were drawn count, whether they are on the canvas or not."""
    everything = property(lambda scenes: torch.ones_like(scenes.cell, dtype=torch.bool))
    monkeypatch.setattr(Scenes, "present", everything)
    with pytest.raises(AssertionError):
        assert_answers_are_right()


def test_a_canvas_shows_its_digits() -> None:
    """Each digit's own pixels in the channel of its colour and in its cell; black elsewhere."""
    splits = CanvasQuestions().load(Word())
    for split in splits:
        scenes = split.scenes.draw(ORDER[:20], 3)
        painted = (split.scenes.paint(scenes) + 1) * 8  # gray levels
        expected = torch.zeros_like(painted)
        for row in range(20):
            for n in range(int(scenes.number[row])):
                top, left = divmod(int(scenes.cell[row, n]), 3)
                pixels = split.scenes.digits.images[scenes.image[row, n], 0]
                channel = int(scenes.colour[row, n])
                expected[row, channel, 8 * top : 8 * top + 8, 8 * left : 8 * left + 8] = pixels
        torch.testing.assert_close(painted, expected, **float32(terms=1, size=16.0))
    shown = [{tuple(image.flatten().tolist()) for image in split.scenes.digits.images} for split in splits]
    assert not shown[0] & shown[2]


def test_batches_are_the_same_however_they_are_cut() -> None:
    split = CanvasQuestions().load(Char()).train
    whole = split.batch(ORDER[:8], 5)
    for index in range(8):
        part = split.batch(ORDER[index : index + 1], 5)
        length = int(part.lengths[0])
        torch.testing.assert_close(part.source[0], whole.source[index])
        assert part.inputs[0].tolist() == whole.inputs[index, :length].tolist()
        assert (int(part.target[0]), int(part.slice[0])) == (int(whole.target[index]), int(whole.slice[index]))
    assert not torch.equal(split.batch(ORDER[:8], 6).source, whole.source)
    assert split.batch(ORDER[:8], None).source.shape == (8, 3, 24, 24)


def test_the_questions_alone_are_a_baseline_and_a_blank_canvas_shows_nothing() -> None:
    splits = CanvasQuestions(samples=2000, eval_samples=300).load(Word())
    baselines = Classify().baselines(splits.test)
    assert set(baselines) == {"majority", "question_alone", "counting_alone"}
    assert 0.15 < baselines["majority"]["accuracy"] < baselines["question_alone"]["accuracy"] < 0.5
    scenes, _, answers, kinds, _ = splits.test.ask(torch.arange(300), None)
    right = 0
    for row in range(300):
        colours = scenes.colour[row, : int(scenes.number[row])].tolist()
        most = max(range(3), key=lambda colour: (colours.count(colour), -colour))
        right += SLICES[int(kinds[row])] != "colour" or ANSWERS[int(answers[row])] == COLOURS[most]
    assert baselines["counting_alone"]["accuracy"] == pytest.approx(right / 300)
    assert 0.8 < right / 300 < 0.95
    blank = CanvasQuestions(blank=True).load(Word()).test.batch(ORDER, None)
    assert float(blank.source.abs().max()) == 0
    torch.testing.assert_close(blank.target, CanvasQuestions().load(Word()).test.batch(ORDER, None).target)
    assert set(CanvasQuestions().load(Word()).test.batch(ORDER, None).slice.tolist()) == {0, 1, 2}


def described(scene: list[tuple[int, int, str]]) -> str:
    """A caption by its rule: columns from left to right, each from top to bottom."""
    in_order = sorted((cell % 3, cell // 3, digit, colour) for cell, digit, colour in scene)
    text = f"a {in_order[0][3]} {in_order[0][2]}"
    for before, after in pairwise(in_order):
        relation = "above" if before[0] == after[0] else "left of"
        text += f" {relation} a {after[3]} {after[2]}"
    return text


@pytest.mark.parametrize("digits", [1, 2, 4])
def test_captions_say_what_is_where(digits: int) -> None:
    data, tokenizer = CanvasCaptions(digits=digits), Word()
    split = data.load(tokenizer).validation
    scenes = split.scenes.draw(ORDER, 0)
    texts = [described(scene) for scene in listed(scenes)]
    assert captions(scenes) == texts
    assert [text for _, text in split.pairs[: len(texts)]] == texts
    batch = split.batch(ORDER, None)
    for row, length, text in zip(batch.inputs, batch.lengths, texts, strict=True):
        start, *middle, end = row[:length].tolist()
        assert tokenizer.decode(middle) == text
        assert (start, end) == split.ends
    tokens = tokenizer.spec(data.spec)
    assert (tokens.start, tokens.end) == split.ends
    assert digits == 1 or any("above" in text for text in texts)


def test_the_word_before_is_a_baseline_of_captions() -> None:
    splits = CanvasCaptions(eval_samples=100).load(Word())
    values = Translate().baselines(splits.test, splits.train)["word_before"]
    assert values["exact"] < 0.05
    assert 0.4 < values["loss"] < 1.5


@pytest.mark.parametrize("data", [CanvasQuestions(), CanvasCaptions(digits=4)])
def test_no_text_is_longer_than_declared(data: Any) -> None:
    """In characters; other tokenizers give fewer tokens."""
    batch = data.load(Char()).train.batch(ORDER, None)
    ends = 0 if data.spec.target else 1  # the start token is not counted
    assert int(batch.lengths.max()) - ends <= data.spec.shape[0] < int(batch.lengths.max()) + 12


def as_file(canvas: Tensor, path: Path) -> str:
    """A canvas from -1 to 1 as an image file."""
    pixels = ((canvas + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0)
    Image.fromarray(pixels.numpy()).save(path)
    return str(path)


def test_a_canvas_is_read_from_a_file(tmp_path: Path) -> None:
    data = CanvasCaptions()
    source = data.load(Word()).test.batch(ORDER[:1], None).source
    path = as_file(source[0], tmp_path / "canvas.png")
    torch.testing.assert_close(data.read_source(path), source, atol=0.01, rtol=0)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(UserError, match=r"text\.png cannot be read as an image"):
        data.read_source(str(tmp_path / "text.png"))
    with pytest.raises(UserError, match=r"none\.png: no such file"):
        data.read_source(str(tmp_path / "none.png"))


def test_no_digit_in_two_colours_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one digit only, of which there are several, the colour is asked for where all are alike."""
    data = CanvasQuestions(samples=64)
    split = data.load(Word()).train
    ones = split.scenes.digits.target == 1
    monkeypatch.setattr(split.scenes.digits.__class__, "__len__", tuple.__len__)
    object.__setattr__(split.scenes, "digits", split.scenes.digits.select(ones.nonzero()[:, 0]))
    scenes, _, _, kind, _ = split.ask(ORDER, None)
    several = torch.tensor([len({colour for *_, colour in scene}) > 1 for scene in listed(scenes)])
    assert bool(several.any())
    assert not bool((kind[several] == canvas_questions.SLICES.index("colour")).any())


def test_the_share_of_questions_for_a_colour() -> None:
    """Of training alone; canvases stay as they are. A few samples have no digit of one colour."""
    order = torch.arange(4000)
    equal, more = (CanvasQuestions(colour_share=share).load(Word()) for share in (None, 0.7))
    shares = [split.ask(order, 3)[3].bincount(minlength=3) / 4000 for split in (equal.train, more.train, more.test)]
    for share, expected in zip(shares, ([1 / 3] * 3, [0.15, 0.15, 0.7], [1 / 3] * 3), strict=True):
        torch.testing.assert_close(share, torch.tensor(expected), atol=0.03, rtol=0)
    same = zip(equal.train.ask(order, 3)[0], more.train.ask(order, 3)[0], strict=True)
    assert every(torch.equal(*pair) for pair in same)
