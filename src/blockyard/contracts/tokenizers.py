"""Tokenizers: how raw items of each modality become tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from blockyard.contracts.modules import Embedder
from blockyard.contracts.specs import Context, DataSpec, FittingValue, TokenSpec

if TYPE_CHECKING:
    import tokenizers


TokenizerState = dict[str, Any]  # plain JSON, under names that only the tokenizer knows


class Tokenizer(ABC):
    """Turns raw items into tokens. Names its `modality`; text tokenizers also encode and decode.

    run_seed: the seed of the run that the tokenizer is built for; `fit` draws at random from it, if the options say
        that draws follow the run
    """

    modality: ClassVar[str]
    axes: ClassVar[int | None] = None  # of its tokens, where computing `spec` takes long
    gives_features: ClassVar[bool] = False  # its embedder fills `Seq.features`
    own_patches: ClassVar[str] = ""  # options with which its tokens have a `TokenSpec.patch`, if any
    causal_patches: ClassVar[str] = ""  # options with which it is `TokenSpec.causal`, if any
    gives_pairs: ClassVar[bool] = False  # the data that it reads has facts of pairs (`Batch.pairs`)
    reads_ids: ClassVar[bool] = False  # it passes token ids through that another tokenizer made
    reads_levels: ClassVar[bool] = False  # it reads images as stored, in `DataSpec.levels` gray levels
    writes_sound: ClassVar[bool] = False  # its tokens are those of sounds that a model writes, a `SoundTokenizer`
    run_seed: int = 0

    @abstractmethod
    def spec(self, data: DataSpec) -> TokenSpec:
        """Return the tokens of `data`. Raises ValueError if its shape does not suit the options.

        Before `fit`, a trained tokenizer returns the largest vocabulary that it may learn.
        """

    @abstractmethod
    def embedder(self, ctx: Context) -> Embedder:
        """Return the module that turns inputs into vectors."""

    def resolved(self, data: DataSpec) -> dict[str, Any]:
        """Return the values of its `auto` options, which follow from the data; none by default.

        A config records them when it is composed.
        """
        return {}

    def fitting(self, data: DataSpec) -> list[FittingValue]:
        """Return values of its options that fit the size of the data, for a recipe; none by default."""
        return []

    def remarks(self, data: DataSpec) -> Iterator[str]:
        """Yield remarks for the user on its options with this data, a sentence each; none by default.

        `check` prints them, and a run does before training.
        """
        return iter(())

    def token_name(self, token_id: int) -> str | None:
        """Return the name of a token id in tables and figures; None if it has none alone."""
        return None

    def state(self) -> TokenizerState:
        """Return the state that `fit` learned, as plain JSON; saved with the run."""
        return {}

    def load_state(self, state: TokenizerState) -> None:  # noqa: B027
        """Restore a result of `state`."""


class TextTokenizer(Tokenizer):
    """A tokenizer of strings.

    learns: whether `fit` learns the vocabulary; the meaning of token ids is then unknown before
    """

    modality = "text"
    learns: ClassVar[bool] = True

    @abstractmethod
    def fit(self, texts: Iterable[str]) -> None:
        """Learn the vocabulary from the training split. Deterministic; cached by content."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`. Unknown characters become the tokenizer's unknown token."""

    @abstractmethod
    def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids; the inverse of `encode` for known characters."""

    def pieces(self, text: str) -> list[str] | None:
        """Return the part of `text` of each token, known or not; None if tokens are no parts of the text."""
        return None

    def expected_length(self, text: str) -> int:
        """Return about how many tokens a text has, before `fit` too; of parts of words two for each word."""
        parts = self.pieces(text)
        if parts is None:
            return 2 * len(text.split())
        return len(parts)

    def to_tokenizers(self) -> tokenizers.Tokenizer | None:
        """Return a new tokenizer of Hugging Face's `tokenizers` with equal ids and texts; None if there is none."""
        return None

    def token_name(self, token_id: int) -> str | None:
        """Return the text of the token alone, if it has any."""
        try:
            return self.decode([token_id]) or None
        except (ValueError, KeyError, IndexError, OverflowError):
            return None


class CodeTokenizer(Tokenizer):
    """A tokenizer that turns images or sounds into tokens that a decoder can generate, and back.

    A sequence is a start token and then the N tokens of an item of data. It learns from items of the training split
    alone. For data with a source, `spec` names the id of the start token (`TokenSpec.start`), and of an end token if
    items are of different lengths: a decoder writes up to it, or all N tokens.

    A token is an id, or several levels: `item` is its shape, () or (V,).

    unit: the meaning of one number, in names of metrics: "dim", a value of a pixel, or "code", a whole patch
    codes: token ids of an item of data, from 0; those of start tokens follow. Known from `spec` on
    """

    unit: ClassVar[str]
    item: tuple[int, ...]
    codes: int

    @abstractmethod
    def fit(self, values: Any) -> None:
        """Learn from data of the training split, a tensor of all or a list. Deterministic; cached by content."""

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """Return the tokens of data (B, ...): (B, N, *item) int64."""

    @abstractmethod
    def decode(self, token_ids: Tensor) -> Tensor:
        """Return the data (B, ...) of tokens (B, N, *item), the inverse of `encode`."""

    @abstractmethod
    def start(self, classes: Tensor) -> Tensor:
        """Return the first token of data of these classes (B,) int64: (B, *item) int64."""


class ImageTokenizer(CodeTokenizer):
    """A tokenizer that makes tokens of images that a decoder can write, and images of those tokens.

    Images are uint8 (B, C, height, width) of `DataSpec.levels` gray levels, as the data stores them.

    levels: gray levels of the data, known from `spec` on
    """

    modality = "image"
    axes = 2
    reads_levels = True
    levels: int

    @abstractmethod
    def fit(self, images: Tensor) -> None:
        """Learn from images of the training split. Deterministic; cached by content."""

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Return the tokens of images (B, C, height, width) uint8: (B, N, *item) int64."""

    @abstractmethod
    def decode(self, token_ids: Tensor) -> Tensor:
        """Return images (B, C, height, width) uint8 of tokens (B, N, *item), the inverse of `encode`."""


class SoundTokenizer(CodeTokenizer):
    """A tokenizer that makes tokens of sounds that a decoder can write, and sounds of those tokens.

    Sounds are int16 (B, T) of `DataSpec.rate` samples a second, of any length; a sequence has an end token.

    rate: samples a second of the data, known from `spec` on
    """

    modality = "audio"
    axes = 1
    writes_sound = True
    item: tuple[int, ...] = ()
    rate: int

    @abstractmethod
    def fit(self, values: Sequence[Tensor]) -> None:
        """Learn from sounds (T,) int16 of the training split. Deterministic; cached by content."""

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """Return the token ids of sounds (B, T) int16, without start and end token: (B, N) int64."""

    @abstractmethod
    def decode(self, token_ids: Tensor) -> Tensor:
        """Return sounds (B, T) int16 of token ids (B, N) in whatever order they come, silent behind shorter ones."""

    @abstractmethod
    def distance(self, first: Tensor, second: Tensor) -> float:
        """Return the distance of two sounds (T,) int16, in decibels of their spectra."""


class GraphTokenizer(Tokenizer):
    """A tokenizer of graphs with columns of whole numbers for nodes and edges. Code 0 stands for unseen values."""

    modality = "graph"
    axes = 0
    gives_pairs = True

    @abstractmethod
    def fit(self, nodes: Tensor, edges: Tensor) -> None:
        """Learn the values of nodes (n, C) and of edges (m, E), int64, from the training split."""

    @abstractmethod
    def encode_nodes(self, nodes: Tensor) -> Tensor:
        """Return the codes of nodes (n, C) int64, column by column: (n, C)."""

    @abstractmethod
    def encode_edges(self, edges: Tensor) -> Tensor:
        """Return one code from 1 for each edge (m, E) int64: (m,)."""
