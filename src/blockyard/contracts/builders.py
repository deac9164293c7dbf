"""Plans: built from options alone, without weights. Data, tokenizer, objective, model, optimizer, schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from blockyard.contracts.modules import Block, ChannelMixer, Embedder, Head, Position, TokenMixer
from blockyard.contracts.specs import Batch, Context, DataSpec, TokenSpec

if TYPE_CHECKING:
    import torchmetrics


class Split(Protocol):
    """One part of a data set, from which whole batches are taken by number."""

    def __len__(self) -> int:
        """How many samples."""

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """The samples `order` (B,) int64; `key` seeds augmentation, None leaves it out."""


@runtime_checkable
class Resizable(Protocol):
    """A split that an evaluation can ask for longer rows.

    redrawn: False where rows are pieces of one text, which are then joined, so that the same tokens are asked
        for at every length; True where rows follow a rule and as many are drawn anew at that length
    """

    redrawn: bool

    def at_length(self, rows: int, factor: int) -> Split:
        """The first `rows` rows, or as many new ones, `factor` times as long.

        rows: at most as many as there are, and a multiple of `factor` where they are joined
        """


class Splits(NamedTuple):
    """Three disjoint parts. `test` is never used to choose anything."""

    train: Split
    validation: Split
    test: Split


class DataModule(ABC):
    """A data set. `spec` is known before any file is read.

    Lightning sees it through `engine.loader.Loaders`; it is no LightningDataModule itself so that
    `check` and `explain` need not import Lightning.
    """

    batch_size: int
    eval_batch_size: int

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """Known from the options; at most a folder is listed."""

    def missing(self) -> str | None:
        """What is not on the disk and how to get it, or None. Looks, never reads or fetches."""
        return None

    def prepare(self) -> None:  # noqa: B027 - most data sets need nothing
        """Fetch what was asked to be fetched. Called once on a machine, before `load`."""

    def token_name(self, symbol: int) -> str | None:
        """What a symbol is called where tables and pictures show it; None where the tokenizer knows better."""
        return None

    @abstractmethod
    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read, split and encode. A trained tokenizer is fitted here, on the training part only."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content that was loaded, recorded with the run. Valid after `load`."""


class Tokenizer(ABC):
    """How raw items become tokens. Names its `modality`; text tokenizers also encode and decode."""

    modality: ClassVar[str]
    axes: ClassVar[int | None] = None  # of its tokens, where `spec` takes long to say it
    gives_features: ClassVar[bool] = False  # its embedder fills `Seq.features`

    @abstractmethod
    def spec(self, data: DataSpec) -> TokenSpec:
        """The tokens of `data`. Raises ValueError where the shape does not fit the options.

        Before `fit`, a trained tokenizer answers with the largest vocabulary it may come to.
        """

    @abstractmethod
    def embedder(self, ctx: Context) -> Embedder:
        """The weights that turn inputs into vectors."""

    def token_name(self, symbol: int) -> str | None:
        """What a symbol is called where tables and pictures show it; None where nothing reads it alone."""
        return None

    def state(self) -> dict[str, Any]:
        """What `fit` learned, as plain JSON; saved with the run."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """The inverse of `state`."""


class TextTokenizer(Tokenizer):
    """A tokenizer of strings."""

    modality = "text"

    @abstractmethod
    def fit(self, texts: Iterable[str]) -> None:
        """Learn the vocabulary from the training part. Deterministic; cached by content."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Symbols of `text`. Unknown symbols become the tokenizer's unknown symbol."""

    @abstractmethod
    def decode(self, symbols: list[int]) -> str:
        """Text of `symbols`; the inverse of `encode` for known symbols."""

    def token_name(self, symbol: int) -> str | None:
        """The text of the symbol alone, where it has any."""
        try:
            return self.decode([symbol]) or None
        except (ValueError, KeyError, IndexError, OverflowError):
            return None


class Objective(ABC):
    """What is asked of a model, and how the answer is judged."""

    needs_causal: ClassVar[bool | None] = None  # True, False, or None where both will do
    takes: ClassVar[str]  # "token" or "sequence": what the head must give
    target: ClassVar[str | None] = None  # what the data must bring; None where it is made here
    modality: ClassVar[str | None] = None  # the only modality it is for, or None
    needs_source: ClassVar[bool] = False  # it is about a row that is written from another one

    @abstractmethod
    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """V, the width of the head."""

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """The tokens as the model sees them: the tokenizer's, and what this objective adds to them.

        Asked again whenever the tokenizer has learned its vocabulary, and before any `prepare`.
        """
        return tokens

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """The batch as the model and the loss see it. Whatever is drawn is a hash of (key, sample).

        key: in training a number that follows from (seed, epoch, step) alone, the same in every process
            and for every piece of an update; None takes one fixed draw for each sample, so that
            evaluation gives the same figures whenever and however it is run
        """
        return batch

    @abstractmethod
    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean loss, a scalar, in nats where it is a likelihood. prediction: (B, V) or (B, N, V)."""

    @abstractmethod
    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Fresh metrics for one pass over a split, fed with (prediction, target).

        `split` may bring facts that a metric needs, such as `bytes_per_token` of a text.
        """

    @abstractmethod
    def best(self) -> tuple[str, str]:
        """The validation metric that chooses a checkpoint, and "min" or "max"."""

    def directions(self, split: Split | None = None) -> dict[str, str]:
        """The better direction of each metric, "min" or "max", as its class declares `higher_is_better`.

        A metric that declares none is left out; the one that chooses is always there.
        """
        declared = {name: metric.higher_is_better for name, metric in self.metrics(split).items()}
        found = {name: "max" if better else "min" for name, better in declared.items() if better is not None}
        name, mode = self.best()
        return {**found, name: mode}


class Parts(NamedTuple):
    """The checked factories a model is built from. All but `embedder` take a Context."""

    embedder: Callable[[Context], Embedder]
    position: Callable[[Context], Position]
    token_mixer: Callable[[Context], TokenMixer]
    channel_mixer: Callable[[Context], ChannelMixer]
    norm: Callable[[Context], nn.Module]
    block: Callable[[Context, Any, Any, Any], Block]
    head: Callable[[Context], Head]


class Architecture(ABC):
    """The shape of a model: how parts are stacked. Holds the sizes, makes the Context."""

    causal: ClassVar[bool]
    takes_source: ClassVar[bool] = False  # an encoder reads a second row beside the one that is predicted
    crosses: ClassVar[bool] = False  # its blocks need a branch of their own that reads the other row
    latents: ClassVar[bool] = False  # its blocks run over learned vectors that lie nowhere, not over the tokens
    stacks: ClassVar[bool] = True  # it has blocks; one without takes `none` for every part of a block

    @abstractmethod
    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """The Context of this architecture over `data`."""

    def mixing(self, ctx: Context) -> Context:
        """Where token mixers are built: among the tokens, unless its blocks run over something else."""
        return ctx

    @abstractmethod
    def build(self, ctx: Context, parts: Parts) -> nn.Module:
        """The model: forward(inputs, lengths=None, segment=None, cache=None) -> prediction.

        One with an encoder of its own takes `source` and `source_lengths` too.
        """


class OptimizerBuilder(ABC):
    """Which parameters are updated how."""

    @abstractmethod
    def build(self, model: nn.Module) -> Any:
        """A torch optimizer over every trainable parameter of `model`."""


class Schedule(ABC):
    """A factor on the learning rate."""

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """The factor for update number `step` (from 0) of `total`; 1.0 is the full rate."""
