"""Questions about a canvas of coloured digits: how many there are, how many are red, what colour the 7 is.

Source: Antol et al. 2015, VQA: Visual Question Answering (arXiv 1505.00468), for the task; questions by template and
    their kinds as in Johnson et al. 2017, CLEVR (arXiv 1612.06890), on the digits of Alpaydin and Kaynak 1998
Reference: sklearn.datasets.load_digits

    source   a canvas of 1 to 4 digits, each red, green or blue, in different cells of 3 x 3
    inputs   how many digits are there ?    3        slice count
             how many are red ?             0        slice count_colour
             what colour is the 7 ?         blue     slice colour

No question asks for the colour of a digit that has two on its canvas. If all digits have, the question asks how many
there are. The canvases of a split show only that split's digits. Training canvases are composed again in each epoch,
with other questions.

The baseline `counting_alone` has the right numbers, and answers every question for a colour with the colour of most
digits. Only a model above it reads the digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, Samples, SimpleModel, Splits, Tokenizer
from blockyard.data._scenes import ACROSS, CELLS, COLOURS, DIGITS, SHAPE, SIDE, CanvasData, Scenes, SceneSource
from blockyard.data.splits.columns import Ragged
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.order import mix
from blockyard.data.splits.split import Fraction
from blockyard.data.splits.text_tokenizer import text_tokenizer

MOST = 4  # digits on a canvas
SLICES = ("count", "count_colour", "colour")
COLOUR = SLICES.index("colour")  # the last slice
QUESTIONS = (
    "how many digits are there ?",
    *(f"how many are {colour} ?" for colour in COLOURS),
    *(f"what colour is the {digit} ?" for digit in range(DIGITS)),
)
ANSWERS = (*map(str, range(MOST + 1)), *COLOURS)
LONGEST = max(map(len, QUESTIONS))  # characters, and so the largest number of tokens
FIRST = (0, 1, 1 + len(COLOURS))  # the first question of each slice


class QuestionSplit:
    """A split of canvases with a question each.

    train: the split that baselines learn from; None for this one
    colour_share: of the questions that ask for the colour of a digit; None for as many of each kind
    """

    def __init__(
        self,
        scenes: SceneSource,
        questions: Ragged,
        samples: int,
        *,
        blank: bool,
        train: QuestionSplit | None,
        colour_share: float | None = None,
    ) -> None:
        self.scenes = scenes
        self.questions = questions
        self.samples = samples
        self.blank = blank
        self.colour_share = colour_share
        self._train = train

    def __len__(self) -> int:
        return self.samples

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, longest), target (B,), source float32 (B, 3, 24, 24), lengths and slice (B,)."""
        scenes, question, answer, kind, _ = self.ask(order, key)
        inputs, lengths = self.questions.take(question)
        source = self.scenes.paint(scenes)
        if self.blank:
            source = torch.zeros_like(source)
        return Batch(inputs, answer, lengths=lengths, source=source, slice=kind)

    def region(self, order: Tensor) -> Tensor:
        """Return a mask of the pixels of the digit that a colour is asked of, (B, 24, 24) bool.

        It is empty for other questions.
        """
        scenes, _, _, kind, index = self.ask(order, None)
        cells = torch.zeros(len(order), CELLS, dtype=torch.bool)
        cells.scatter_(1, scenes.cell.gather(1, index), (kind == COLOUR)[:, None])
        return cells.view(-1, ACROSS, ACROSS).repeat_interleave(SIDE, 1).repeat_interleave(SIDE, 2)

    def ask(self, order: Tensor, key: int | None) -> tuple[Scenes, Tensor, Tensor, Tensor, Tensor]:
        """Return (scenes, question, answer, slice, index) of the samples `order` (B,).

        question, answer, slice: int64 (B,), indices into QUESTIONS, ANSWERS and SLICES
        index: int64 (B, 1), the digit of the scene whose colour may be asked for
        """
        key = 0 if key is None else key
        scenes = self.scenes.draw(order, key)
        kind, choice = uniform(mix("question", key), order, 2)  # 2 x (B,)
        present = scenes.present  # (B, most)
        same = (scenes.digit[:, :, None] == scenes.digit[:, None]) & present[:, None]  # (B, most, most)
        other = (scenes.colour[:, :, None] != scenes.colour[:, None]) & same
        clear = present & ~other.any(-1)  # (B, most): digits that have one colour on this canvas
        kind = self._kinds(kind)
        kind = torch.where((kind == COLOUR) & ~clear.any(1), 0, kind)  # (B,)
        # One draw serves both kinds of questions, as a sample has only one of them.
        counted = (choice * len(COLOURS)).long()  # (B,), the colour of a question of the slice count_colour
        rank = (choice * clear.sum(1)).long()  # (B,), among the clear digits
        chosen = (clear.cumsum(1) == rank[:, None] + 1) & clear  # (B, most), true at the clear digit of this rank
        index = chosen.long().argmax(1, keepdim=True)  # (B, 1)
        digit = scenes.digit.gather(1, index)[:, 0]  # (B,)
        colour = scenes.colour.gather(1, index)[:, 0]  # (B,)
        num_coloured = ((scenes.colour == counted[:, None]) & present).sum(1)  # (B,)
        # All three kinds are worked out for each sample, and the kind selects one of them.
        questions = torch.stack([torch.zeros_like(counted), counted, digit]) + torch.tensor(FIRST)[:, None]  # (3, B)
        answers = torch.stack([scenes.number, num_coloured, MOST + 1 + colour])  # (3, B)
        question = questions.gather(0, kind[None])[0]  # (B,)
        answer = answers.gather(0, kind[None])[0]  # (B,)
        return scenes, question, answer, kind, index

    def _kinds(self, draws: Tensor) -> Tensor:
        """Return the slice of each question for draws (B,) in [0, 1)."""
        if self.colour_share is None:
            return (draws * len(SLICES)).long()
        rest = (draws / (1 - self.colour_share) * COLOUR).long()  # below COLOUR for a share 1 - colour_share of draws
        return rest.clamp(max=COLOUR)

    def baselines(self) -> Iterator[SimpleModel]:
        """Yield the most frequent answer, the most frequent answer to each question, and counting alone.

        Counting alone has the right numbers, and answers every question for a colour with the colour of most digits.
        """
        for name in ("majority", "question_alone", "counting_alone"):
            yield SimpleModel(name, partial(self._model, name))

    def _model(self, name: str) -> Callable[[Tensor], Tensor]:
        return lambda order: self._answers(order)[name]

    def _answers(self, order: Tensor) -> dict[str, Tensor]:
        """Return the logits (B, V) of each simple model for the samples `order`."""
        counts = self._answer_counts
        scenes, question, answer, kind, _ = self.ask(order, None)
        coloured = (scenes.colour[:, :, None] == torch.arange(len(COLOURS))) & scenes.present[..., None]  # (B, most, 3)
        most_frequent = coloured.sum(1).argmax(1)  # (B,)
        counted = torch.where(kind == COLOUR, MOST + 1 + most_frequent, answer)  # (B,)
        return {
            "majority": counts.sum(0).log().expand(len(question), -1),
            "question_alone": (counts + 1e-3).log()[question],  # no answer has a logit of -inf
            "counting_alone": 10.0 * F.one_hot(counted, len(ANSWERS)),
        }

    @cached_property
    def _answer_counts(self) -> Tensor:
        """The training samples of each question with each answer, (questions, V)."""
        train = self._train or self
        _, question, answer, _, _ = train.ask(torch.arange(len(train)), None)
        return torch.zeros(len(QUESTIONS), len(ANSWERS)).index_put_((question, answer), torch.ones(()), True)

    @cached_property
    def class_counts(self) -> Tensor:
        """The training samples of each answer, (V,) int64."""
        train = self._train or self
        _, _, answer, _, _ = train.ask(torch.arange(len(train)), None)
        return answer.bincount(minlength=len(ANSWERS))


@dataclass(kw_only=True, eq=False)
class CanvasQuestions(CanvasData):
    """A question about each canvas, with one of eight answers; needs no file and no network.

    Options:
        blank: show an empty canvas, for the rival that reads the question alone
        colour_share: share of the training questions that ask for the colour of a digit, which take longest to learn;
            null for a third, as in validation and test
    """

    blank: bool = False
    colour_share: Fraction | None = None
    eval_samples: Samples = 1_000

    @property
    def spec(self) -> DataSpec:
        """Questions of different lengths with one of eight answers, each about a canvas."""
        return DataSpec(
            "text",
            (LONGEST,),
            variable=True,
            target="class",
            classes=len(ANSWERS),
            class_names=ANSWERS,
            slices=SLICES,
            source=DataSpec("image", SHAPE),
        )

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Encode the questions; fit the tokenizer on them unless its state was loaded."""
        tokenizer = text_tokenizer(tokenizer)
        if not tokenizer.state():
            tokenizer.fit(QUESTIONS)
        questions = Ragged.of([tokenizer.encode(question) for question in QUESTIONS])
        train, *rest = self.scenes((1, MOST))
        size, *sizes = self.sizes_of(self.samples, self.eval_samples)
        first = QuestionSplit(train, questions, size, blank=self.blank, train=None, colour_share=self.colour_share)
        splits = [first]
        for scenes, samples in zip(rest, sizes, strict=True):
            splits.append(QuestionSplit(scenes, questions, samples, blank=self.blank, train=first))
        return Splits(*splits)
