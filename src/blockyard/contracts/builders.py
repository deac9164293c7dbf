"""Builders: made from options alone, without weights. Data, model, optimizer, schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import nn

from blockyard.contracts.batch import Position
from blockyard.contracts.modules import Block, ChannelMixer, Embedder, Head, Model, Residual, TokenMixer
from blockyard.contracts.option_types import ChoiceOptions
from blockyard.contracts.specs import Context, DataSpec, FittingValue, TokenSpec, UpdateRule
from blockyard.contracts.splits import InputReader, NewInputs, Splits
from blockyard.contracts.tokenizers import Tokenizer

BASE_KIND = "base"  # the kind of layers with the config's parts


class DataModule(ABC):
    """A data set. `spec` is known before any file is read.

    Lightning gets it through `engine.loader`. It is not a LightningDataModule itself, so that `check` and
    `explain` need not import Lightning.
    """

    batch_size: int
    eval_batch_size: int
    published_under: ClassVar[str | None] = None  # the licence of data that always is the same

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """The facts that follow from the options; at most a folder is listed."""

    def missing(self) -> str | None:
        """Return the missing files and how to get them, or None. Reads and downloads nothing."""
        return None

    def to_download(self) -> bool:
        """Return whether `prepare` has something to download."""
        return False

    def prepare(self) -> None:  # noqa: B027 - most data sets need nothing
        """Download files, if the options allow it. Called once on each machine, before `load`."""

    def token_name(self, token_id: int) -> str | None:
        """Return the name of a token id in tables and figures; None leaves it to the tokenizer."""
        return None

    def limits(self) -> tuple[str, ...]:
        """Return the limits of this data, a sentence each. Printed as a run starts, and recorded with it."""
        return ()

    def fitting_contents(self) -> list[FittingValue]:
        """Return values of options that decide what is read of the files, for a recipe; none by default.

        `spec` may raise an error without them, such as for a table of numbers without a column of texts.
        """
        return []

    def fitting(self, length: Callable[[str], int], source_length: Callable[[str], int]) -> list[FittingValue]:
        """Return values of options that fit the files, for a recipe, as far as they are cheap to find; none by default.

        length, source_length: give the expected number of tokens of a text, and of a text of the source
        """
        return []

    def licence(self) -> str | None:
        """Return the licence under which the data is published, by its SPDX name; None if unknown."""
        return self.published_under

    def hub_name(self) -> str | None:
        """Return the name of the data set on Hugging Face's hub, if it was taken from there."""
        return None

    def bytes_in_memory(self) -> int:
        """Return the least bytes of memory that `load` fills, as far as the options say; 0 if they do not."""
        return 0

    @abstractmethod
    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read, split and encode the data. A trained tokenizer is fitted here, on the training split only."""

    def load_both(self, tokenizer: Tokenizer, source: Tokenizer) -> Splits:
        """Load data with a separate tokenizer of the source, which is fitted and encodes the source here if it must.

        Overridden by data whose source is a text.
        """
        return self.load(tokenizer)

    def read_new(self, inputs: Sequence[str], reader: InputReader) -> NewInputs:
        """Read new inputs, such as texts or files, as `load` reads the data. Raises UserError where it cannot.

        Overridden by data that is read from files of its own kind.
        """
        return reader.read(inputs)

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the loaded content, recorded with the run. Valid after `load`."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The parts of the layers of one kind, in place of the config's; None keeps the config's part.

    Options:
        position: the position scheme that acts in these layers
        token_mixer: the token mixer
        channel_mixer: the channel mixer
        norm: the norms of the blocks
        block: the block
    """

    position: Callable[[Context], Position] | None = None
    token_mixer: Callable[[Context], TokenMixer] | None = None
    channel_mixer: Callable[[Context], ChannelMixer] | None = None
    norm: Callable[[Context], nn.Module] | None = None
    block: Callable[[Context, Any, Any, Any], Block] | None = None

    def parts(self) -> dict[str, Callable[..., Any]]:
        """Return the factories that it has, by family."""
        return {family: factory for family, factory in vars(self).items() if factory is not None}


class Layers(ABC):
    """The kinds of the layers of a model. kinds: by name"""

    decides_function: ClassVar[bool] = True  # of a model, together with its weights
    kinds: Mapping[str, Kind]

    @abstractmethod
    def names(self, depth: int) -> tuple[str, ...]:
        """Return the kind of each layer by name, `BASE_KIND` for a layer as the config says.

        Raises ValueError if they do not fit the depth.
        """


class Parts(NamedTuple):
    """The checked factories of the parts of a model. Each takes a Context first.

    layers: the kinds of the layers; None if all are alike
    source_embedder, source_position: of the source that an encoder reads; None if they are the sequence's
    """

    embedder: Callable[[Context], Embedder]
    position: Callable[[Context], Position]
    token_mixer: Callable[[Context], TokenMixer]
    channel_mixer: Callable[[Context], ChannelMixer]
    norm: Callable[[Context], nn.Module]
    block: Callable[[Context, Any, Any, Any], Block]
    head: Callable[[Context], Head]
    residual: Callable[[Context], Residual] | None = None  # None adds
    layers: Layers | None = None
    source_embedder: Callable[[Context], Embedder] | None = None
    source_position: Callable[[Context], Position] | None = None

    def kinds(self, depth: int) -> tuple[str, ...]:
        """Return the kind of each of `depth` layers by name. Raises ValueError if `layers` does not fit them."""
        if self.layers is None:
            return (BASE_KIND,) * depth
        return self.layers.names(depth)

    def of_kind(self, name: str) -> Parts:
        """Return the factories of the layers of a kind."""
        if self.layers is None or name == BASE_KIND:
            return self
        factories: dict[str, Any] = self.layers.kinds[name].parts()
        return self._replace(**factories)


class Architecture(ABC):
    """The shape of a model: how parts are stacked. Holds the sizes, makes the Context."""

    decides_function: ClassVar[bool] = True  # of a model, together with its weights
    causal: ClassVar[bool]
    takes_source: ClassVar[bool] = False  # an encoder reads a second sequence
    joins: ClassVar[bool] = False  # it stands the tokens of the source in front of the sequence
    crosses: ClassVar[bool] = False  # its blocks need a branch that reads the other sequence
    latents: ClassVar[bool] = False  # its blocks run over learned vectors without coordinates
    extends: ClassVar[bool] = False  # its head may have blocks of its own, behind those of the model
    stacks: ClassVar[bool] = True  # it has blocks; without them, every part of a block is `none`

    @classmethod
    def shares(cls, options: ChoiceOptions) -> bool:
        """Return whether the source and the sequence share one embedder under these options."""
        return False

    @classmethod
    def ties(cls, options: ChoiceOptions) -> bool:
        """Return whether source tokens attend to each other in a causal model, under these options."""
        return False

    @abstractmethod
    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """Return the Context of this architecture over `data`."""

    def mixer_context(self, ctx: Context) -> Context:
        """Return the Context of token mixers: `ctx`, unless the blocks run over something else than the tokens."""
        return ctx

    @abstractmethod
    def build(self, ctx: Context, parts: Parts) -> Model:
        """Return the model: forward(inputs, cache=None, record=None) -> prediction. inputs: an `Inputs`, or a tensor.

        Only a model that decodes token by token needs `cache`, and only a model with named intermediates `record`.
        """


class OptimizerBuilder(ABC):
    """How parameters are updated."""

    tensors_per_weight: int = 0  # that it keeps for each parameter at least, each as large as the parameter
    shards: ClassVar[bool] = True  # whether its update can do with weights that are spread over processes

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return the rule for the size of its updates under these options, for a parametrization; None if unknown."""
        return None

    @abstractmethod
    def build(self, model: nn.Module) -> Any:
        """Return a torch optimizer over every trainable parameter of `model`."""

    def start_step(self, optimizer: Any, factor: float) -> None:
        """Called before each step, after learning rates are set. factor: of the schedule.

        Not called if a Lightning callback has a schedule of its own. Values that it sets must be in the state of the
        optimizer, or follow from the factor.
        """
        return

    def exchange(self, optimizer: Any) -> None:
        """Exchange the trained weights with the weights that are evaluated and saved, if the optimizer keeps both.

        The optimizer's state holds the second ones, so that a run resumes exactly. A second call undoes the first.
        """
        return

    def exchanged(self, optimizer: Any) -> bool:
        """Return whether the model has the weights that are evaluated, such as after loading a checkpoint."""
        return False

    def model_problems(self, model: nn.Module) -> list[str]:
        """Return the parts of a model, on the meta device, that this optimizer cannot train, one sentence each."""
        return []


class Schedule(ABC):
    """A factor on the learning rate over time."""

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """Return the factor at step `step` (from 0) of `total`; 1.0 is the full learning rate."""

    def remarks(self, total: int) -> Iterator[str]:
        """Yield remarks for the user on a run of `total` steps before it, a sentence each; none by default."""
        return iter(())
