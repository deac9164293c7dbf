"""Builders: made from options alone, without weights. Data, tokenizer, model, optimizer, schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from blockyard.contracts.batch import Batch
from blockyard.contracts.modules import Block, ChannelMixer, Embedder, Head, TokenMixer
from blockyard.contracts.position import Position
from blockyard.contracts.specs import Context, DataSpec, TokenSpec


class Split(Protocol):
    """One part of a data set. Batches are taken from it by the indices of samples."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns the samples `order` (B,) int64; `key` seeds augmentation, None turns it off."""


@runtime_checkable
class Resizable(Protocol):
    """A split that can give longer sequences, for evaluation at lengths beyond training.

    redrawn: False where sequences are parts of one text, which are joined, so that the same tokens are predicted
        at every length; True where sequences follow a rule, and as many new ones are drawn at that length
    """

    redrawn: bool

    def at_length(self, count: int, factor: int) -> Split:
        """Returns the first `count` sequences, or as many new ones, `factor` times as long.

        count: at most the number of sequences, and a multiple of `factor` where they are joined
        """


@runtime_checkable
class HasLengths(Protocol):
    """A split of samples of different lengths, so that training can put similar ones into a batch.

    lengths: (n,) int64, items of each sample in storage order, those of its source included
    """

    lengths: Tensor


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

    def baselines(self) -> Iterator[tuple[str, Tensor]]:
        """Yields a name and the predictions for all samples in storage order, such as logits (n, V)."""


@runtime_checkable
class TextPairs(Protocol):
    """A split of sources and targets that are texts. pairs: (source, target) of each sample, in storage order."""

    pairs: Sequence[tuple[str, str]]


@runtime_checkable
class SourceFiles(Protocol):
    """Data whose source can be read from a file of the user's, such as an image that is to be described."""

    def read_source(self, path: str) -> Tensor:
        """Returns one source, a batch of one as in `Batch.source`. Raises UserError for a file that is none."""


@runtime_checkable
class AsksForPart(Protocol):
    """A split of questions about images, some of which are about one part of the image."""

    def asked(self, order: Tensor) -> Tensor:
        """Returns the pixels that each of the samples `order` (B,) asks for, (B, height, width) bool; none for some."""


@runtime_checkable
class Standardized(Protocol):
    """A split whose real-valued targets are standardized by the training split: (values - mean) / std.

    mean, std: shapes that broadcast to `DataSpec.values`, in the units of the data
    """

    mean: Tensor
    std: Tensor


class Splits(NamedTuple):
    """Three disjoint parts. `test` is never used to choose anything."""

    train: Split
    validation: Split
    test: Split


class DataModule(ABC):
    """A data set. `spec` is known before any file is read.

    Lightning gets it through `engine.loader`. It is not a LightningDataModule itself, so that `check` and
    `explain` need not import Lightning.
    """

    batch_size: int
    eval_batch_size: int

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """What the options say; at most a folder is listed."""

    def missing(self) -> str | None:
        """Returns what is missing on the disk and how to get it, or None. Reads and downloads nothing."""
        return None

    def prepare(self) -> None:  # noqa: B027 - most data sets need nothing
        """Download what the options allow. Called once on each machine, before `load`."""

    def token_name(self, token_id: int) -> str | None:
        """Returns the name of a token id in tables and figures; None leaves it to the tokenizer."""
        return None

    def bytes_in_memory(self) -> int:
        """Returns how much memory `load` fills at least, as far as the options say; 0 where they do not."""
        return 0

    @abstractmethod
    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read, split and encode the data. A trained tokenizer is fitted here, on the training split only."""

    def load_both(self, tokenizer: Tokenizer, source: Tokenizer) -> Splits:
        """As `load`, where the source has a tokenizer of its own, which is fitted and encodes it here if it must.

        Overridden by data whose source is a text.
        """
        return self.load(tokenizer)

    @abstractmethod
    def fingerprint(self) -> str:
        """Returns a hash of the loaded content, recorded with the run. Valid after `load`."""


class Tokenizer(ABC):
    """How raw items become tokens. Names its `modality`; text tokenizers also encode and decode."""

    modality: ClassVar[str]
    axes: ClassVar[int | None] = None  # of its tokens, where computing `spec` takes long
    gives_features: ClassVar[bool] = False  # its embedder fills `Seq.features`
    own_patches: ClassVar[str] = ""  # options with which its tokens have a `TokenSpec.patch`, if any
    causal_patches: ClassVar[str] = ""  # options with which it is `TokenSpec.causal`, if any
    gives_pairs: ClassVar[bool] = False  # the data that it reads has facts of pairs (`Batch.pairs`)
    reads_levels: ClassVar[bool] = False  # it reads images as stored, in `DataSpec.levels` gray levels

    @abstractmethod
    def spec(self, data: DataSpec) -> TokenSpec:
        """Returns the tokens of `data`. Raises ValueError if its shape does not suit the options.

        Before `fit`, a trained tokenizer returns the largest vocabulary that it may learn.
        """

    @abstractmethod
    def embedder(self, ctx: Context) -> Embedder:
        """Returns the module that turns inputs into vectors."""

    def token_name(self, token_id: int) -> str | None:
        """Returns the name of a token id in tables and figures; None if it has none alone."""
        return None

    def state(self) -> dict[str, Any]:
        """Returns what `fit` learned, as plain JSON; saved with the run."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore what `state` returned."""


class TextTokenizer(Tokenizer):
    """A tokenizer of strings."""

    modality = "text"

    @abstractmethod
    def fit(self, texts: Iterable[str]) -> None:
        """Learn the vocabulary from the training split. Deterministic; cached by content."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the token ids of `text`. Unknown characters become the tokenizer's unknown token."""

    @abstractmethod
    def decode(self, token_ids: list[int]) -> str:
        """Returns the text of token ids; the inverse of `encode` for known characters."""

    def token_name(self, token_id: int) -> str | None:
        """Returns the text of the token alone, if it has any."""
        try:
            return self.decode([token_id]) or None
        except (ValueError, KeyError, IndexError, OverflowError):
            return None


class ImageTokenizer(Tokenizer):
    """A tokenizer that makes token ids of images, and images of token ids.

    Images are uint8 (B, C, height, width) of `DataSpec.levels` gray levels, as the data stores them. A sequence is a
    start token and then the N tokens of an image. What it learns, it learns from images of the training split.

    unit: what one token id stands for, in names of metrics: "dim", a value of a pixel, or "code", a whole patch
    codes: token ids of an image, from 0; those of start tokens follow. Known from `spec` on, as is all that follows
    levels: gray levels of the data
    """

    modality = "image"
    axes = 2
    reads_levels = True
    unit: ClassVar[str]
    codes: int
    levels: int

    @abstractmethod
    def fit(self, images: Tensor) -> None:
        """Learn from images of the training split. Deterministic; cached by content."""

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Returns the token ids of images (B, C, height, width) uint8: (B, N) int64."""

    @abstractmethod
    def decode(self, token_ids: Tensor) -> Tensor:
        """Returns images (B, C, height, width) uint8 of token ids (B, N), which `encode` turns into them again."""

    @abstractmethod
    def start(self, classes: Tensor) -> Tensor:
        """Returns the first token of images of these classes (B,) int64: (B,) int64."""


class GraphTokenizer(Tokenizer):
    """A tokenizer of graphs, whose nodes and edges have columns of whole numbers. Code 0 stands for unseen values."""

    modality = "graph"
    axes = 0
    gives_pairs = True

    @abstractmethod
    def fit(self, nodes: Tensor, edges: Tensor) -> None:
        """Learn the values of nodes (n, C) and of edges (m, E), int64, from the training split."""

    @abstractmethod
    def encode_nodes(self, nodes: Tensor) -> Tensor:
        """Returns the codes of nodes (n, C) int64, column by column: (n, C)."""

    @abstractmethod
    def encode_edges(self, edges: Tensor) -> Tensor:
        """Returns one code from 1 for each edge (m, E) int64: (m,)."""


class Parts(NamedTuple):
    """The checked factories from which a model is built. Each takes a Context first.

    source_embedder, source_position: of the source that an encoder reads; None where they are those of the sequence
    """

    embedder: Callable[[Context], Embedder]
    position: Callable[[Context], Position]
    token_mixer: Callable[[Context], TokenMixer]
    channel_mixer: Callable[[Context], ChannelMixer]
    norm: Callable[[Context], nn.Module]
    block: Callable[[Context, Any, Any, Any], Block]
    head: Callable[[Context], Head]
    source_embedder: Callable[[Context], Embedder] | None = None
    source_position: Callable[[Context], Position] | None = None


class Architecture(ABC):
    """The shape of a model: how parts are stacked. Holds the sizes, makes the Context."""

    causal: ClassVar[bool]
    takes_source: ClassVar[bool] = False  # an encoder reads a second sequence
    joins: ClassVar[bool] = False  # it stands the tokens of the source in front of the sequence
    crosses: ClassVar[bool] = False  # its blocks need a branch that reads the other sequence
    latents: ClassVar[bool] = False  # its blocks run over learned vectors without coordinates
    stacks: ClassVar[bool] = True  # it has blocks; without them, every part of a block is `none`

    @classmethod
    def shares(cls, options: dict[str, Any]) -> bool:
        """Whether the source and the sequence share one embedder under these options."""
        return False

    @classmethod
    def ties(cls, options: dict[str, Any]) -> bool:
        """Whether tokens of a source see each other although the model is causal, under these options."""
        return False

    @abstractmethod
    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """Returns the Context of this architecture over `data`."""

    def mixing(self, ctx: Context) -> Context:
        """Returns the Context of token mixers: that of the tokens, unless the blocks run over something else."""
        return ctx

    @abstractmethod
    def build(self, ctx: Context, parts: Parts) -> nn.Module:
        """Returns the model: forward(inputs, lengths=None, segment=None, cache=None) -> prediction.

        A model with an encoder and a decoder also takes `source` and `source_lengths`.
        """


class OptimizerBuilder(ABC):
    """How parameters are updated."""

    tensors_per_weight: int = 0  # that it keeps for each parameter at least, each as large as the parameter

    @abstractmethod
    def build(self, model: nn.Module) -> Any:
        """Returns a torch optimizer over every trainable parameter of `model`."""


class Schedule(ABC):
    """A factor on the learning rate over time."""

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """Returns the factor at step `step` (from 0) of `total`; 1.0 is the full learning rate."""
