"""Sources of weights: a finished run, a safetensors file, a folder of such files, or a model of a library.

`find_source` finds the source that `init.from` names, and `read_weights` reads its tensors under the names of our
models. Nothing here runs code of a file: a run's checkpoint loads with `weights_only`, and pickles of other programs
are refused.

A model of transformers or timm is `init.from=hf:NAME`, `init.from=timm:NAME`, or a folder of either. `weights/library/`
has a file for each library, which is found on the disk, finds the model, and converts its config and its weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from blockyard.atomic_files import is_regular, read_json, read_member, stamp
from blockyard.config.build import Components
from blockyard.config.project_file import default_outputs
from blockyard.config.tree import Node
from blockyard.config.untrusted.local_path import local_path
from blockyard.contracts import TextTokenizer
from blockyard.errors import UserError
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import CONFIG, SOURCE_TOKENIZER, TOKENIZER, RunFolder
from blockyard.runs.identity import semantic
from blockyard.runs.load import WHICH, components_of
from blockyard.runs.store import NoSuchRunError, find
from blockyard.runs.weights_file import INDEX, WEIGHTS, files_of_folder, read_files
from blockyard.weights.lora import merged
from blockyard.weights.transfer import WeightLayout, content_hash

KEY = "init.from"
LIBRARIES = Path(__file__).parent / "library"
LIBRARY_CONFIG = "config.json"
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt", ".tar")
TOKENIZERS = {"tokenizer": TOKENIZER, "source_tokenizer": SOURCE_TOKENIZER}  # the files of their states in a run
_MODEL = "model."  # the prefix of the model's weights in a checkpoint


@dataclass(frozen=True)
class Source:
    """Files with weights.

    run: the folder of a run, or None
    library: `hf:NAME` or `timm:NAME` for weights under a library's names; None for weights under our names
    """

    path: Path
    files: tuple[Path, ...]
    run: RunFolder | None = None
    library: str | None = None

    def __str__(self) -> str:
        return self.library or (f"{self.path} ({self.files[0].name})" if self.run else str(self.path))

    def tokenizer_states(self) -> dict[str, Path]:
        """Return the files with the states that a run's tokenizers learned from its data, by config key.

        Raises UserError for a file outside the run's folder: the run that starts from this one gets a copy.
        """
        if self.run is None:
            return {}
        self.run.check_members()
        paths = {key: self.run.path / name for key, name in TOKENIZERS.items()}
        return {key: path for key, path in paths.items() if path.exists()}


@dataclass(frozen=True)
class SourceWeights:
    """Tensors by name, on the CPU, and the hash of their content: names, types, shapes and values."""

    tensors: Mapping[str, Tensor]
    sha256: str


@dataclass(frozen=True)
class Outline:
    """The shape and number type of each weight of a source, and the hash of all, without the values."""

    shapes: Mapping[str, tuple[int, ...]]
    sha256: str
    dtypes: Mapping[str, torch.dtype]


def find_source(name: str, *, which: str = "best", outputs: str = "outputs") -> Source:
    """Return the source that `init.from` names: a path, a model of a library, or a run as `run=` names it.

    which: the checkpoint of a run, by `WHICH`
    outputs: the folder in which runs are looked up first; then in the default outputs
    Raises UserError if there is no source, a file is no safetensors file, or a run is not finished.
    """
    if library_of(name):
        folder = library_folder(name)
        return Source(folder, tuple(files_to_watch(folder)), library=name)
    path = local_path(name, KEY).absolute()
    if path.is_dir() and not (path / CONFIG).is_file():
        files = files_of_folder(path)
        if files:
            return Source(path, tuple(files))
    if path.is_file() or path.suffix in (".safetensors", *PICKLES):
        return Source(path, (_safetensors(name, path),))
    if path.is_dir() and not any(path.iterdir()):
        raise UserError(f"{KEY}={name}: the folder is empty; expected safetensors files, or a run")
    try:
        run = _find_run(name, outputs)
    except UserError as error:
        text = str(error)
        if text.startswith("run="):
            raise UserError(f"{KEY}={text.removeprefix('run=')}") from None
        raise UserError(f"{KEY}={name}: {text}") from None
    if is_regular(run.path / WEIGHTS) and not run.checkpoints.exists():  # imported or exported
        return Source(run.path, (run.path / WEIGHTS,), run)
    if not run.finished:
        raise UserError(
            f"{KEY}={name}: {run.name} is not finished ({run.status}), so its weights may still change; finish it "
            f"with `blockyard train resume={run.path}`"
        )
    return Source(run.path, (run.checkpoints / WHICH[which],), run)


def read_weights(source: Source) -> SourceWeights:
    """Read the tensors of a source. Raises UserError for files that are missing or damaged."""
    # The tokenizer decides the meaning of token ids, so that its state is a part of the content.
    states = [read_member(path) for path in source.tokenizer_states().values()]
    if source.library is not None:
        try:
            tensors = library(source.library).weights(source.path)
        except UserError as error:
            raise UserError(f"{KEY}: {error}") from error
        return SourceWeights(tensors, content_hash(tensors))
    if source.run is None or source.files[0].name == WEIGHTS:
        tensors = read_files(source.files)
        return SourceWeights(tensors, content_hash(tensors, states))
    (path,) = source.files
    try:
        content = read(path, identity=source.run.identity, seed=source.run.seed)
    except FileNotFoundError:
        raise UserError(f"{KEY}: {source.run.name} has no {path.name}; init.which names another checkpoint") from None
    saved: dict[str, Any] = content["state_dict"]
    model_state = {name.removeprefix(_MODEL): saved[name] for name in saved if name.startswith(_MODEL)}
    tensors = merged(model_state)  # the new run trains whole weights, or its own additions to them
    return SourceWeights(tensors, content_hash(tensors, states))


def outline(source: Source) -> Outline:
    """Return the names, shapes and hash of a source. Its files are read again only after they have changed."""
    try:
        stamps = tuple(stamp(path) for path in (*source.files, *source.tokenizer_states().values()))
    except FileNotFoundError:
        stamps = ()  # the reader says which file is missing
    return _outline(source.path, source.files, source.library, stamps)


# By the stamps of the files: a check and the start of a run ask for the same source, and would read and hash it twice.
@lru_cache(maxsize=64)
def _outline(path: Path, files: tuple[Path, ...], library: str | None, _stamps: tuple[tuple[int, ...], ...]) -> Outline:
    is_run = library is None and path.is_dir() and (path / CONFIG).is_file()
    run = RunFolder.open(path) if is_run else None
    weights = read_weights(Source(path, files, run, library))
    tensors = weights.tensors
    return Outline(
        {name: tuple(tensor.shape) for name, tensor in tensors.items()},
        weights.sha256,
        {name: tensor.dtype for name, tensor in tensors.items()},
    )


def _find_run(name: str, outputs: str) -> RunFolder:
    """Return a run in `outputs`, or else in the default outputs: a sweep may have another folder of outputs."""
    try:
        return find(name, outputs)
    except NoSuchRunError:
        default = default_outputs()
        if os.path.abspath(default) == os.path.abspath(outputs):
            raise
        try:
            return find(name, default)
        except NoSuchRunError as error:
            raise UserError(f"{error} (nor is there one under {os.path.abspath(outputs)})") from None


def _safetensors(name: str, path: Path) -> Path:
    """Return the path of a safetensors file. Raises UserError for any other file."""
    if path.suffix in PICKLES:
        inside = path.parent.name == "checkpoints" and (path.parent.parent / CONFIG).is_file()
        if inside:
            raise UserError(
                f"{KEY}={name}: {path.name} is a checkpoint of a run; use {KEY}={path.parent.parent} "
                f"init.which={path.stem}"
            )
        if not path.is_file():
            raise UserError(
                f"{KEY}={name}: the file does not exist; {KEY}=RUN starts from the weights of a run, and "
                "`blockyard train resume=RUN` continues one"
            )
        raise UserError(
            f"{KEY}={name}: {path.name} is not a safetensors file; a pickle can run code as it is read. Convert it "
            "once, in Python: "
            f"safetensors.torch.save_file(torch.load('{path.name}', weights_only=True), '{path.stem}.safetensors')"
        )
    if not path.is_file():
        raise UserError(f"{KEY}={name}: the file does not exist")
    return path


@dataclass(frozen=True)
class SourceFacts:
    """Facts of the weights of a run or of a config.

    task: text that is equal for two models whose heads predict the same; layout: of their tokens
    """

    task: str
    layout: WeightLayout


def facts(components: Components) -> SourceFacts:
    """Return the task that weights of these components solve, and the layout of their tokens."""
    ctx, spec, config = components.context(), components.data.spec, components.config
    targets = {key: config[key]["_target_"] for key in ("head", "objective")}
    if spec.target in (None, "symbols"):  # the head predicts token ids, whose meaning the tokenizers decide
        meaning: Any = _tokenizer_nodes(config)
    else:
        meaning = list(spec.class_names) or config["data"]["_target_"]
    task = json.dumps([targets, ctx.outputs, meaning], sort_keys=True)
    # With a source there are two sequences, and their tables of positions have two grids.
    grid = ctx.tokens.grid if ctx.source is None else None
    return SourceFacts(task, WeightLayout(grid, mask=ctx.tokens.mask is not None))


def facts_of_run(run: RunFolder, allow: list[str]) -> SourceFacts:
    """Return the facts of a finished run. Raises UserError if it cannot be rebuilt without packages not in `allow`."""
    return facts(components_of(run, allow))


def fit_tokenizers(components: Components, source: Source) -> None:
    """Load the states of the source's tokenizers, so that token ids mean the same as there."""
    for key, path in source.tokenizer_states().items():
        tokenizer = components.tokenizer if key == "tokenizer" else components.source_tokenizer
        try:
            tokenizer.load_state(read_json(path))
        except (ValueError, OSError, AttributeError) as error:
            raise UserError(f"init.from: {path} cannot be read ({error})") from error


def tokenizer_problems(components: Components, source: Source) -> Iterator[str]:
    """Yield the reasons why token vectors of the source would stand for other tokens here."""
    if source.run is None:
        tokenizer = components.tokenizer
        if isinstance(tokenizer, TextTokenizer) and tokenizer.learns and tokenizer.state() == {}:
            yield (
                f"the tokenizer learns its token ids from this run's data, and {source.path.name} does not say which "
                "it had; start from a run, use a tokenizer that learns nothing, or leave the embedder out of init.parts"
            )
        return
    source_nodes, nodes = _tokenizer_nodes(source.run.config), _tokenizer_nodes(components.config)
    states = source.tokenizer_states()
    choices = source.run.facts().get("choices") or {}
    for key in TOKENIZERS:
        tokenizer = components.tokenizer if key == "tokenizer" else components.source_tokenizer
        if source_nodes.get(key) == nodes.get(key):
            continue
        if key in states or isinstance(tokenizer, TextTokenizer):
            verb = "learned" if key in states else "has"
            yield (
                f"the {key} of {source.run.name} {verb} its own token ids, and the one here has other options; use "
                f"{key}={choices.get(key)} with the same options, or leave the embedder out of init.parts"
            )


def _tokenizer_nodes(config: Node) -> Node:
    """Return the nodes of a config that decide what its tokenizers compute."""
    return semantic({key: config[key] for key in TOKENIZERS if config.get(key)} | {"allow": config.get("allow")})


class Library(Protocol):
    """The `LIBRARY` of a file in `weights/library/`."""

    def cached(self, model: str) -> Path:
        """Return the folder of a model in the local cache. Raises UserError if it is unknown, or not there."""

    def weights(self, folder: Path) -> dict[str, Tensor]:
        """Return the weights of a folder under our names. Raises UserError if no preset is like the model."""

    def config(self, folder: Path) -> Node:
        """Return the config of the model in a folder. Raises UserError if no preset is like the model."""


@cache
def library_prefixes() -> tuple[str, ...]:
    """Return the prefixes of sources in libraries, such as "hf:": the files of `weights/library/`."""
    return tuple(f"{path.stem}:" for path in sorted(LIBRARIES.glob("[a-z]*.py")))


def library_of(name: str) -> str | None:
    """Return the prefix of the library that a source names; None if it names none."""
    return next((prefix for prefix in library_prefixes() if name.startswith(prefix)), None)


def library(name: str) -> Library:
    """Return the library of a source such as "hf:NAME"."""
    stem = name.partition(":")[0]
    reader: Library = import_module(f"{__package__}.{LIBRARIES.name}.{stem}").LIBRARY
    return reader


def library_folder(name: str) -> Path:
    """Return the folder with config.json and safetensors that `hf:NAME` or `timm:NAME` stands for.

    NAME: a folder, a repository of Hugging Face (`openai-community/gpt2`, with `@REVISION`), or a model of timm

    Raises UserError for a name that is unknown, or not in the cache.
    """
    prefix = library_of(name)
    assert prefix is not None
    model = name.removeprefix(prefix)
    if not model:
        raise UserError(f"{KEY}={name}: a name is missing; write {prefix}NAME or {prefix}FOLDER")
    folder = local_path(model, KEY)
    if folder.is_dir():
        return folder.absolute()
    try:
        return library(name).cached(model)
    except UserError as error:
        raise UserError(f"{KEY}={name}: {error}") from error


def files_to_watch(folder: Path) -> Sequence[Path]:
    """Return the files of a library's model: they are read again after they have changed. Raises UserError for none."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(f"{KEY}: {folder} has no .safetensors file; files that may hold code are not read")
    if not (folder / LIBRARY_CONFIG).is_file():
        raise UserError(f"{KEY}: {folder} has no {LIBRARY_CONFIG}, which says what model its weights are of")
    others = (folder / name for name in (LIBRARY_CONFIG, INDEX, TOKENIZER))
    return [*weights, *(path for path in others if path.is_file())]
