"""Templates of what a model reads and predicts: data, tokenizers, objectives."""

from __future__ import annotations

from blockyard.commands.templates.shared import HEAD, PLAN_TEST_HEAD, PLAN_YAML, Template

DATA = Template(
    HEAD
    + '''from dataclasses import dataclass

from blockyard.contracts import DataSpec, Length
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch


@dataclass(kw_only=True, eq=False)
class CLASS(SyntheticTask):
    """Digits, and the sum of the first and the last of them modulo ten. No file is needed; splits share no sequence.

    Options:
        length: digits of a sequence
    """

    length: Length = 8

    @property
    def vocabulary(self) -> int:
        """The ten digits."""
        return 10

    @property
    def spec(self) -> DataSpec:
        """A class for each sequence of token ids."""
        return DataSpec("symbols", (self.length,), target="class", classes=10, vocabulary=10, resizable=True)

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Sequences (n, length) and their classes (n,); the same for a `data.data_seed` on every machine."""
        digits = random.integers("digits", self.length, 10)
        return TaskBatch(digits, (digits[:, 0] + digits[:, -1]) % 10)
''',
    """import torch

from blockyard.tokenizer.symbols import Symbols
from PACKAGE.NAME import CLASS


def test_the_formula() -> None:
    train = CLASS(samples=50, eval_samples=10).load(Symbols()).train
    batch = train.batch(torch.arange(len(train)), None)
    assert batch.target.tolist() == [(digits[0] + digits[-1]) % 10 for digits in batch.inputs.tolist()]
""",
    bug=("digits[:, 0] + digits[:, -1]", "digits.sum(1)"),
    yaml=PLAN_YAML,
    test_head=PLAN_TEST_HEAD,
    beside=("tokenizer=symbols",),
)

TOKENIZER = Template(
    HEAD
    + '''from collections.abc import Iterable
from typing import ClassVar

from blockyard.contracts import DataSpec, TextTokenizer, TokenSpec
from blockyard.tokenizer._lookup import LookupTokenizer, text_tokens

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class CLASS(LookupTokenizer, TextTokenizer):
    """The 26 letters without their case; everything else is a space."""

    learns: ClassVar[bool] = False  # one that learns does so in `fit`, and gives what it learned by `state`

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token for each character, of a vocabulary of 27."""
        return text_tokens(data, len(LETTERS) + 1, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Does nothing: the vocabulary is fixed. A tokenizer is fitted on the training split only."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return [LETTERS.find(letter) + 1 for letter in text.lower()]

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids."""
        return "".join((" " + LETTERS)[token_id] for token_id in token_ids)
''',
    """from PACKAGE.NAME import CLASS


def test_the_formula() -> None:
    tokenizer = CLASS()
    assert tokenizer.encode("Az, b") == [1, 26, 0, 0, 2]
    assert tokenizer.decode([1, 26, 0, 0, 2]) == "az  b"
""",
    bug=("(letter) + 1", "(letter)"),
    yaml=PLAN_YAML,
    test_head=PLAN_TEST_HEAD,
    beside=("data=code", "model=decoder", "head=token", "objective=next_token"),
)

OBJECTIVE = Template(
    HEAD
    + '''from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, Objective, Split, TokenSpec

if TYPE_CHECKING:
    import torchmetrics


class CLASS(Objective):
    """The squared distance between the predicted probabilities and the class (Brier 1950)."""

    takes = "sequence"  # one prediction for each sample
    target = "class"

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """One logit for each class. Raises ValueError where the data has none."""
        if data.classes is None:
            raise ValueError(f"objective=NAME needs data with classes; this {data.modality} data has none")
        return data.classes

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The mean over the samples that count. prediction: (B, V); target: (B,)."""
        counted = target != Batch.ignore
        truth = F.one_hot(target.clamp(min=0), prediction.shape[1])
        distances = (prediction.softmax(1) - truth).square().sum(1)  # (B,)
        return distances.where(counted, 0).sum() / counted.sum().clamp(min=1)

    def metrics(self, split: Split | None = None) -> dict[str, "torchmetrics.Metric"]:
        """New metrics for one pass over a split: cross entropy and accuracy."""
        from blockyard.objective._metrics import Accuracy, MeanCrossEntropy

        return {"loss": MeanCrossEntropy(), "accuracy": Accuracy()}

    def best(self) -> tuple[str, str]:
        """The metric that selects a checkpoint."""
        return "accuracy", "max"
''',
    """import torch
from torch.testing import assert_close

from PACKAGE.NAME import CLASS


def test_the_formula() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    loss = CLASS().loss(probabilities.log(), torch.tensor([0, 1]))
    assert_close(loss.item(), (0.5**2 + 0.3**2 + 0.2**2 + 0.1**2 + 0.9**2 + 0.8**2) / 2)
""",
    bug=(".square()", ".abs()"),
    yaml=PLAN_YAML,
    test_head=PLAN_TEST_HEAD,
)
