"""The parts of a data set, and further offers of some of them besides samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from blockyard.contracts.baselines import SimpleModel
from blockyard.contracts.batch import Batch

if TYPE_CHECKING:
    from blockyard.contracts.tokenizers import TextTokenizer, Tokenizer


class Split(Protocol):
    """One part of a data set. Batches are taken from it by the indices of samples."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the samples `order` (B,) int64; `key` seeds augmentation, None turns it off."""


@runtime_checkable
class Resizable(Protocol):
    """A split that can give longer sequences, for evaluation at lengths beyond training.

    redrawn: False if sequences are joined parts of one text, so that the same tokens are predicted at every length;
        True if sequences follow a rule, and as many new ones are drawn at that length
    """

    redrawn: bool

    def at_length(self, count: int, factor: int) -> Split:
        """Return the first `count` sequences, or as many new ones, `factor` times as long.

        count: at most the number of sequences, and a multiple of `factor` if they are joined
        """


@runtime_checkable
class HasLengths(Protocol):
    """A split of samples of different lengths, so that training can put similar ones into a batch.

    lengths: (n,) int64, items of each sample in storage order, with the items of its source
    """

    lengths: Tensor


@runtime_checkable
class HasDocuments(Protocol):
    """A split of sequences that are cut out of texts, so that sequences of one text are not independent."""

    def document_of(self, order: Tensor) -> Tensor:
        """Return the number of the text that each sample `order` (B,) is from, int64 (B,)."""


@runtime_checkable
class KeyedOrder(Protocol):
    """A split that may have more samples than a table of their order should hold.

    keyed: whether training computes the order index by index (`data.splits.order.keyed_order`)
    """

    keyed: bool


@runtime_checkable
class Streamed(Split, Protocol):
    """A training split without an index: it is divided into parts, and each part is read in its own order.

    Its length is the number of samples that an epoch is taken to have, and `batch` returns the first samples.

    A step takes equally many samples of each node. The parts of a node are read by turns, one in each step, so that
    processes divide the nodes among them, and the workers of a process the steps. What a step takes depends on neither.

    nodes: parts that share a step; node_workers: parts of each node
    """

    nodes: int
    node_workers: int

    def read(self, part: int, seed: int, position: StreamPosition | None) -> Iterator[StreamItem]:
        """Yield the samples of a part without end; after the last one it begins again.

        part: node * node_workers + turn; seed: of the order
        position: where to go on, from a `StreamItem` of this part and seed; None begins
        """

    def collate(self, items: Sequence[Any], numbers: Sequence[int]) -> Batch:
        """Return samples as a batch. numbers: of the samples in the run, for messages."""


StreamPosition = dict[str, Any]  # plain data, which a checkpoint keeps


class StreamItem(NamedTuple):
    """A sample of a stream, and the position behind it."""

    sample: Any
    position: StreamPosition


class StepOrder(Protocol):
    """The training samples of each step of a run."""

    def __call__(self, step: int) -> Tensor:
        """Return the samples (b,) int64 of step number `step` of the run, each as turn * len(split) + index.

        turn: the number of earlier passes over its part
        """

    def drawn(self, steps: int) -> dict[str, int]:
        """Return the number of samples of each part in the first `steps` steps."""


@runtime_checkable
class Mixed(Protocol):
    """A split of several data sets, with its own choice of samples for each step of training.

    parts: by name, one after the other in the order of the samples. `batch` takes the numbers of a `StepOrder` too
    """

    parts: Mapping[str, Split]

    def plan(self, seed: int, total: int, samples: Callable[[int], int]) -> StepOrder:
        """Return the order of a run of `total` steps; `samples` gives the number of samples of each step."""


@runtime_checkable
class Transcripts(Protocol):
    """A split of sources with a text each, to be aligned by CTC.

    lengths: (n,) int64, items of each source; least_tokens: (n,) int64, the least that an alignment of its text has
    """

    lengths: Tensor
    least_tokens: Tensor


@runtime_checkable
class HasBaselines(Protocol):
    """A split with simple models of its own task, fitted on the training split."""

    def baselines(self) -> Iterator[SimpleModel]:
        """Yield the models; each is fitted when its `fit` is called."""


@runtime_checkable
class TextPairs(Protocol):
    """A split of sources and targets that are texts. pairs: (source, target) of each sample, in storage order."""

    pairs: Sequence[tuple[str, str]]


@runtime_checkable
class ReadsOutputs(Protocol):
    """A split of sources and outputs that are no texts, such as images, with a judge that reads an output as a text.

    The judge knows no model and learns from the training split alone. Its reading of a model's output is compared with
    a reference, like a written text.

    pairs: (source, reference of the reading of its output) of each sample, in storage order
    """

    pairs: Sequence[tuple[str, str]]

    def outputs(self, order: Tensor) -> list[Tensor]:
        """Return the true outputs of the samples `order` (B,), each as the tokenizer decodes one."""

    def coded(self, order: Tensor) -> list[Tensor]:
        """Return the same outputs after the tokenizer: the outputs of a model without an error."""

    def read(self, outputs: Sequence[Tensor]) -> list[str]:
        """Return the judge's reading of each output."""

    def score(self, readings: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return scores of readings besides exact match, over all together; more is better for new names."""


@runtime_checkable
class HasTexts(Protocol):
    """Data of texts that can still be read as they were before they became tokens."""

    def test_texts(self, samples: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
        """Return the texts of some samples of the loaded test split, as far as their tokens go."""


@runtime_checkable
class SourceFiles(Protocol):
    """Data with sources that can be read from a user's file, such as an image that is to be described."""

    def read_source(self, path: str) -> Tensor:
        """Return one source, a batch of one as in `Batch.source`. Raises UserError for a file that is no source."""


@runtime_checkable
class AsksForPart(Protocol):
    """A split of questions about images, some of which are about one part of the image."""

    def region(self, order: Tensor) -> Tensor:
        """Return the pixels that each of the samples `order` (B,) asks for, (B, height, width) bool."""


@runtime_checkable
class Standardized(Protocol):
    """A split with real-valued targets, standardized by the training split: (values - mean) / std.

    mean, std: shapes that broadcast to `DataSpec.values`, in the units of the data
    """

    mean: Tensor
    std: Tensor


class Splits(NamedTuple):
    """Three disjoint parts. `test` is never used to choose anything."""

    train: Split
    validation: Split
    test: Split


class NewInputs(NamedTuple):
    """Inputs that a trained run reads, without targets. names: of each, such as its file and line."""

    names: list[str]
    split: Split


@dataclass(frozen=True, kw_only=True)
class InputReader(ABC):
    """How a trained run reads new inputs, for `DataModule.read_new`.

    run: its name, for messages
    tokenizer: the fitted tokenizer of the inputs, or of the source where they become the source
    source: whether the inputs become the source of the run's data
    max_len: tokens of a text that the model takes
    column: of a table, the column of the texts; None is the column of the run's data
    test: returns the test split, by which new values are standardized; raises UserError where the data is missing
    """

    run: str
    tokenizer: Tokenizer
    source: bool
    max_len: int
    column: str | None
    test: Callable[[], Any]

    @abstractmethod
    def read(self, inputs: Sequence[str]) -> NewInputs:
        """Return inputs that are read alike for all data of a modality. Raises UserError where none are."""
