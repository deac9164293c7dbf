"""A checkpoint of a library on disk: its config, its weights in safetensors, its tokenizer. Pickles are not read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from blockyard.atomic_files import read_json
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError, did_you_mean, quoted
from blockyard.runs.weights_file import INDEX, WEIGHTS, files_of_folder, read_files, shapes_of
from blockyard.weights.convert.converter import Converter, Foreign, converters
from blockyard.weights.convert.declared_sizes import Stored, mapping, names
from blockyard.weights.convert.rules import has_own_head
from blockyard.weights.convert.settings import LibrarySettings
from blockyard.weights.convert.timm_models import checked_arguments, describe
from blockyard.weights.sources import LIBRARY_CONFIG

TOKENIZER = "tokenizer.json"  # of Hugging Face's `tokenizers`
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# The ends of names in older files -> their ends in current ones.
_OLD = {
    ".gamma": ".weight",
    ".beta": ".bias",
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}


def aligned(weights: Mapping[str, Tensor], expected: Iterable[str]) -> dict[str, Tensor]:
    """Return weights of older files, or of a model without its head, under the expected names.

    A renaming by which two weights would have one name is not used: it would drop one of them.
    """
    expected_names = set(expected)
    renewed_names = [_renewed(name, expected_names) for name in weights]
    layouts = [renewed_names]
    # Files of the model without its head lack the first part of each name, or have one that the model lacks.
    layouts.append([name.partition(".")[2] or name for name in renewed_names])
    for prefix in sorted({name.partition(".")[0] for name in expected_names}):
        layouts.append([f"{prefix}.{name}" for name in renewed_names])
    layouts.append(list(weights))
    unambiguous = [layout for layout in layouts if len(set(layout)) == len(weights)]
    best = max(unambiguous, key=lambda layout: len(expected_names.intersection(layout)))
    return dict(zip(best, weights.values(), strict=True))


def _renewed(name: str, expected: set[str]) -> str:
    """Return the current name of a weight that has the name of an older file."""
    if name in expected:
        return name
    for old, new in _OLD.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


@dataclass(frozen=True)
class LibrarySource:
    """The content of a library's checkpoint.

    foreign: the library's config in our terms; weights: under the library names of the converter's rules
    tokenizer: the file of Hugging Face's `tokenizers`, if there is one
    sha256: of the files of weights; config: the library's
    """

    path: Path
    converter: Converter
    foreign: Foreign
    weights: dict[str, Tensor]
    config: dict[str, Any]
    tokenizer: Path | None
    sha256: str

    @property
    def architecture(self) -> str:
        """The class that the config names; the converter's class if the config names none with the same head."""
        accepted = {self.converter.architecture, *self.converter.others}
        for name in self.config.get("architectures") or ():
            if name in accepted:
                return str(name)
        return self.converter.architecture

    @property
    def name(self) -> str:
        """The library and its class."""
        return f"{self.converter.library} {self.architecture}"

    @property
    def partly(self) -> str:
        """The reason why it is only a part of a model of ours; "" for a whole one."""
        return self.converter.partly or self.foreign.partly


def read_source(
    path: str | Path, preset: str | None = None, timm: str | None = None, *, own_head: bool = False
) -> LibrarySource:
    """Read a folder of a library's checkpoint, or a file of weights of a model of timm.

    preset: the converter to use; None takes the one that the config names
    timm: the name of a model of timm, for weights without a config
    own_head: read an output layer that is tied to the table of token ids as a weight of its own

    Raises UserError for anything that is missing, damaged, unknown, or not expressible.
    """
    path = local_path(str(path), "import")
    if preset is not None and preset not in converters():
        hint = did_you_mean(preset, converters())
        raise UserError(f"as={preset}: no converter{hint} (there are {', '.join(converters())})")
    folder = path if path.is_dir() else path.parent
    files = _files(path)
    config = {}
    if path.is_dir() or timm is None:
        config = _config(folder / LIBRARY_CONFIG)
    stored = Stored.of(shapes_of(files))
    if timm is not None or "architecture" in config:
        converter, settings = _of_timm(timm or config["architecture"], config, preset, folder, stored)
    else:
        converter, settings = _of_transformers(config, folder, preset, stored)
    foreign = converter.read(settings)
    settings.finish(converter.preset)
    tensors = read_files(files)
    weights = _aligned(tensors, foreign)
    if own_head or has_own_head(
        foreign.rules, weights
    ):  # transformers does not tie such weights, whatever its config says
        settings = LibrarySettings(settings.values, settings.name, settings.stored, has_own_head=True)
        foreign = converter.read(settings)
        weights = _aligned(tensors, foreign)
    tokenizer = folder / TOKENIZER
    return LibrarySource(
        path=path,
        converter=converter,
        foreign=foreign,
        weights=weights,
        config=config,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        sha256=_hash(files),
    )


def _aligned(tensors: Mapping[str, Tensor], foreign: Foreign) -> dict[str, Tensor]:
    """Return weights under the library names of a converter's rules."""
    expected: list[str] = []
    for rule in foreign.rules:
        expected += rule.library_names
    return aligned(tensors, expected)


def _files(path: Path) -> list[Path]:
    """Return the files of weights. Raises UserError if none can be read safely."""
    if path.is_file():
        if path.suffix != ".safetensors":
            raise UserError(f"{path} is no .safetensors file; other formats may hold code and are not read")
        return [path]
    if not path.is_dir():
        raise UserError(f"no file or folder {path}")
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if (path / INDEX).is_file():
        return files_of_folder(path)
    single = sorted(path.glob("*.safetensors"))
    if len(single) == 1:
        return single
    if single:
        raise UserError(f"{path} has several .safetensors files and no {INDEX}; give one of them")
    pickles: list[str] = []
    for pattern in _PICKLES:
        pickles += sorted(file.name for file in path.glob(pattern))
    if pickles:
        names = ", ".join(pickles)
        raise UserError(f"{path} has no {WEIGHTS}; {names} may hold code and is not read: save it as safetensors")
    raise UserError(f"{path} has no {WEIGHTS}")


def _config(path: Path) -> dict[str, Any]:
    """Return the library's config. Raises UserError if it is missing or damaged."""
    try:
        config = read_json(path)
    except FileNotFoundError:
        raise UserError(
            f"there is no {path}; weights alone need the name of their model: timm=NAME (`timm.list_models()`)"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a config: expected a mapping")
    return config


def _of_transformers(
    config: Mapping[str, Any], folder: Path, preset: str | None, stored: Stored
) -> tuple[Converter, LibrarySettings]:
    """Return the converter and the settings of a config of transformers."""
    if preset is None:
        by_type: dict[str, Converter] = {}
        for candidate in converters().values():
            if candidate.library == "transformers":
                by_type[candidate.model_type] = candidate
        model_type = config.get("model_type")
        if not isinstance(model_type, str) or model_type not in by_type:
            raise UserError(
                f"{folder / LIBRARY_CONFIG}: model_type={quoted(model_type)} has no converter (there are "
                f"{', '.join(sorted(by_type))}); as=PRESET reads it as one of another name"
            )
        converter = by_type[model_type]
    else:
        converter = converters()[preset]
    if converter.library != "transformers":
        raise UserError(f"as={preset} reads {converter.name}; {folder / LIBRARY_CONFIG} is of transformers")
    architectures = names(str(folder / LIBRARY_CONFIG), "architectures", config.get("architectures") or ())
    heads = {converter.architecture, *converter.others}
    # A model without a head, such as GPT2Model; but GPT2DoubleHeadsModel and GPT2LMHeadModel have one.
    bare = re.compile(r"[A-Za-z0-9]+(?<!Heads)(?<!Head)Model")
    other = [name for name in architectures if name not in heads and not bare.fullmatch(name)]
    if preset is None and other:
        raise UserError(
            f"{folder / LIBRARY_CONFIG}: architectures={architectures}; preset={converter.preset} reads "
            f"{' or '.join(sorted(heads))}. as={converter.preset} takes what both have in common"
        )
    values = dict(config)
    first = special_id(folder / TOKENIZER, "[CLS]", "<s>")
    if first is not None:
        values.setdefault("cls_token_id", first)
    return converter, LibrarySettings(values, str(folder / LIBRARY_CONFIG), stored)


def special_id(path: Path, *names: str) -> int | None:
    """Return the id of the special token with one of these names in a file of `tokenizers`, if it has one."""
    try:
        content = read_json(path)
        for token in content.get("added_tokens") or []:
            if token.get("content") in names:
                return int(token["id"])
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None  # `tokenizer=pretrained` refuses a damaged file with the reason
    return None


def _of_timm(
    name: Any, config: Mapping[str, Any], preset: str | None, folder: Path, stored: Stored
) -> tuple[Converter, LibrarySettings]:
    if not isinstance(name, str):
        raise UserError(f"{folder / LIBRARY_CONFIG}: architecture={quoted(name)} is not the name of a model of timm")
    arguments = mapping(str(folder / LIBRARY_CONFIG), "model_args", config.get("model_args") or {})
    if "num_classes" in config:
        arguments.setdefault("num_classes", config["num_classes"])
    kind, sizes = describe(name, checked_arguments(name, arguments, stored))
    if preset is not None and preset != kind:
        raise UserError(f"as={preset}: {name} of timm is like preset={kind}")
    return converters()[kind], LibrarySettings(sizes, f"{name} of timm")


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def plain(config: Mapping[str, Any]) -> str:
    """Return the text of a config as a library writes it."""
    return json.dumps(config, indent=2, sort_keys=True) + "\n"
