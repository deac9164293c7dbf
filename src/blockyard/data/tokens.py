"""Token ids of your own, in files of any size that stay on the disk.

Source: the `.bin` files of nanoGPT, litgpt and llm.c; `.npy` files
Reference: nanoGPT data/openwebtext/prepare.py; litdata's TokensLoader

A path is a folder that `blockyard tokenize` wrote, a file, or a folder of files. Files are mapped into memory, so that
a start reads next to nothing and memory does not grow with the data. File names that begin with train, val and test
name their split; a split without files is cut from the end of the training ids, the test split in front of the
validation split:

    |------------- train -------------|-- test --|-- validation --|

Several sources are told apart in the evaluation (`loss@NAME`); `weights` are their shares of an epoch. The order of up
to a million sequences is that of the other data sets, a table; that of more is computed index by index, a function of
seed, epoch and step as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from blockyard.atomic_files import read_json
from blockyard.contracts import (
    BatchSize,
    DataSpec,
    Length,
    Positive,
    Splits,
    Text,
    TextTokenizer,
    Tokenizer,
    Vocabulary,
)
from blockyard.data.files.digest import sha256
from blockyard.data.files.token_shards import (
    TOKENIZER,
    Manifest,
    TokenizerRecord,
    TokenSource,
    read_manifest,
    read_source,
    token_files,
    total,
)
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.split import Fraction, check_fractions
from blockyard.data.splits.text_tokenizer import text_tokenizer
from blockyard.data.splits.token_stream import TokenStream, TokenWindows
from blockyard.errors import UserError

_OF_MODEL = ("scale",)  # options of a tokenizer that its token ids do not depend on
TokenId = Annotated[int, Ge(0), Le(2**32 - 1)]


@dataclass(kw_only=True, eq=False)
class Tokens(LoadedData):
    """Shards of token ids, mapped into memory and cut into sequences.

    Options:
        path: a folder of `blockyard tokenize`, a .bin or .npy file or a folder of them; a list of several sources
        weights: the share of each source in an epoch, in any unit; null takes every sequence of all sources once
        dtype: of .bin files without a header; null is uint16, and refuses ids that look like uint32
        vocabulary: number of token ids, of shards without a manifest that tokenizer=ids reads; null takes a manifest's
        separator: the token id that ends a document; documents within a sequence are then kept apart. null has none
        validation_fraction: share of the ids that is the validation split, where no file is
        test_fraction: share of the ids that is the test split, where no file is
        context: tokens of a sequence that a model reads
        train_size: training sequences to keep, from the beginning of one source; null keeps all
        validation_size: validation sequences to keep, likewise
        test_size: test sequences to keep, likewise
        batch_size: sequences in a training step, over all processes
        eval_batch_size: sequences in a validation or test step, over all processes
    """

    path: Text | list[Text] = "data/tokens"
    weights: list[Positive] | None = None
    dtype: Literal["uint16", "uint32"] | None = None
    vocabulary: Vocabulary | None = None
    separator: TokenId | None = None
    validation_fraction: Fraction = 0.1
    test_fraction: Fraction = 0.05
    context: Length = 128
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 64

    def __post_init__(self) -> None:
        check_fractions(self.validation_fraction, self.test_fraction)
        if not self._paths:
            raise UserError("data.path=[] names no source; name one or more")
        if self.weights is not None and len(self.weights) != len(self._paths):
            raise UserError(
                f"data.weights has {len(self.weights)} numbers and data.path {len(self._paths)} sources; "
                "give one for each"
            )

    @property
    def spec(self) -> DataSpec:
        """Sequences of `context` tokens. At most the manifest is read."""
        return DataSpec(
            "text",
            (self.context,),
            packed=self.separator is not None,
            resizable=True,
            slices=self._names if len(self._paths) > 1 else (),
            vocabulary=self.vocabulary or self._manifest.get("vocabulary"),
        )

    def missing(self) -> str | None:
        """Return a message that names the missing source and the remedy, or None."""
        for path in self._paths:
            if path.is_dir() and (token_files(path) or any(path.rglob("index.json"))):
                continue
            if not path.is_file():
                what = "no .bin or .npy file under" if path.is_dir() else "nothing at"
                return f"{what} {path.absolute()}; set data.path=FOLDER, or write shards with `blockyard tokenize`"
        return None

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Open the shards. Raises UserError for shards that do not fit each other, the tokenizer or the options."""
        tokenizer = text_tokenizer(tokenizer, "token ids of texts need")
        sources = [read_source(path, self.dtype) for path in self._paths]
        check_tokenizer(tokenizer, sources)
        vocabulary = tokenizer.spec(self.spec).vocabulary
        assert vocabulary is not None, "text tokenizers have a vocabulary"
        if self.vocabulary not in (None, vocabulary):
            raise UserError(
                f"data.vocabulary={self.vocabulary}: the tokenizer has {vocabulary}; use data.vocabulary=null"
            )
        self._fingerprint = sha256(source.digest() for source in sources)
        splits = [self._split(name, sources, vocabulary) for name in Splits._fields]
        return Splits(*(self._first(number, split) for number, split in enumerate(splits)))

    def _first(self, number: int, split: TokenWindows) -> TokenWindows:
        """Return as many sequences of a split as the options keep, from its beginning."""
        size = self.size_of(number, len(split))
        if size == len(split):
            return split
        if len(self._paths) > 1:
            name = f"data.{Splits._fields[number]}_size={size}"
            raise UserError(f"{name} is for one source, and data.path names {len(self._paths)}; use null")
        return split.at_length(size, 1)

    def _split(self, name: str, sources: list[TokenSource], vocabulary: int) -> TokenWindows:
        streams = [self._stream(name, source, vocabulary) for source in sources]
        sizes = [source.bytes_of_text(name) for source in sources]
        text_sizes = [size for size in sizes if size is not None]
        # Bits per byte need the bytes of every source.
        bytes_per_token = None
        if len(text_sizes) == len(sizes):
            bytes_per_token = sum(text_sizes) / sum(map(len, streams))
        return TokenWindows(
            streams,
            self.context,
            bytes_per_token=bytes_per_token,
            separator=self.separator,
            weights=self.weights if name == "train" else None,
            sliced=len(sources) > 1,
        )

    def _stream(self, name: str, source: TokenSource, vocabulary: int) -> TokenStream:
        """Return the ids of a split of one source: the ids of its files, or a range of the training ids."""
        shards = source.shards.get(name, source.shards["train"])
        count = total(shards)
        validation = 0.0 if "validation" in source.shards else self.validation_fraction
        test = 0.0 if "test" in source.shards else self.test_fraction
        start, stop = 0.0, 1.0
        if shards is source.shards["train"]:
            # The training ids come first, then the test ids, then the validation ids.
            bounds = (0.0, 1 - (validation + test), 1 - validation, 1.0)
            index = ("train", "test", "validation").index(name)
            start, stop = bounds[index], bounds[index + 1]
        stream = TokenStream(shards, int(count * start), int(count * stop), vocabulary)
        if len(stream) <= self.context:
            raise UserError(
                f"data.context={self.context}: the {name} split of {source.path} has {len(stream)} token ids and needs "
                f"at least {self.context + 1}; use a smaller context, or more ids"
            )
        return stream

    @cached_property
    def _manifest(self) -> Manifest:
        """The manifest of the first source, in which all agree."""
        return read_manifest(self._paths[0])

    @property
    def _paths(self) -> list[Path]:
        paths = [self.path] if isinstance(self.path, str) else self.path
        return [Path(os.path.expanduser(path)) for path in paths]

    @property
    def _names(self) -> tuple[str, ...]:
        """A name for each source: the name of its file or folder where no other has it, else its path."""
        stems = [path.stem if path.suffix else path.name for path in self._paths]
        names = []
        for path, stem in zip(self._paths, stems, strict=True):
            names.append(stem if stems.count(stem) == 1 else str(path))
        return tuple(names)


def describe(tokenizer: TextTokenizer) -> TokenizerRecord:
    """Return the record of a tokenizer in a manifest: its class, and the options that its token ids depend on."""
    declared: tuple[Field[Any], ...] = fields(tokenizer) if is_dataclass(tokenizer) else ()
    options = {}
    for field in declared:
        if field.init and field.name not in _OF_MODEL:
            options[field.name] = getattr(tokenizer, field.name)
    cls = type(tokenizer)
    return {"target": f"{cls.__module__}.{cls.__qualname__}", "options": options}


def check_tokenizer(tokenizer: TextTokenizer, sources: Sequence[TokenSource]) -> None:
    """Load the state of the tokenizer that wrote the shards. Raises UserError where this is another tokenizer.

    A tokenizer that only passes ids through (`reads_ids`) fits all shards.
    """
    if tokenizer.reads_ids:
        return
    for source in sources:
        if not source.manifest:
            if tokenizer.learns and not tokenizer.state():
                raise UserError(
                    f"{source.path} has no manifest that says what its token ids stand for, and this tokenizer would "
                    "learn its own; use tokenizer=ids data.vocabulary=N, or write shards with `blockyard tokenize`"
                )
            continue
        written = source.manifest["tokenizer"]
        configured = describe(tokenizer)
        if written.get("target") != configured["target"] or written.get("options") != configured["options"]:
            raise UserError(
                f"{source.path} was written with {_named(written)}, this config has {_named(configured)}; use the same "
                "tokenizer, or tokenizer=ids to read the ids alone"
            )
        state = _state(source)
        if tokenizer.state() and tokenizer.state() != state:
            raise UserError(
                f"the vocabulary of {source.path} is not that of the other sources, or of the run; write all "
                "sources with one tokenizer"
            )
        tokenizer.load_state(state)


def _state(source: TokenSource) -> dict[str, Any]:
    file = source.path / TOKENIZER
    try:
        state = read_json(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(state, dict) or sha256([_text(state)]) != source.manifest["tokenizer"].get("sha256"):
        raise UserError(f"{file} is not the one that the shards were written with; write them again")
    return state


def state_hash(tokenizer: TextTokenizer) -> str:
    """Return the SHA-256 of the fitted state of a tokenizer."""
    return sha256([_text(tokenizer.state())])


def _text(state: dict[str, Any]) -> str:
    return json.dumps(state, sort_keys=True)


def _named(record: TokenizerRecord) -> str:
    """Return a tokenizer as overrides."""
    name = str(record.get("target", "?")).split(".")[-2:][0]
    options = record.get("options") or {}
    return " ".join([f"tokenizer={name}", *(f"tokenizer.{key}={value}" for key, value in options.items())])
