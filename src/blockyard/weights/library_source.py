"""Weights of transformers and timm as a source: `init.from=hf:NAME`, `init.from=timm:NAME`, or a folder of either.

A name is looked up in the local cache of Hugging Face, which both libraries fill. Nothing is downloaded: a run would
otherwise depend on what a name means on the day it starts. The weights are converted as `blockyard import` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError, did_you_mean, first_line

if TYPE_CHECKING:
    from torch import Tensor

KEY = "init.from"
LIBRARIES = ("timm:", "hf:")


def library_of(name: str) -> str | None:
    """The library that a source names, with its colon; None where it names none."""
    return next((each for each in LIBRARIES if name.startswith(each)), None)


def library_folder(name: str) -> Path:
    """The folder with config.json and safetensors that `hf:NAME` or `timm:NAME` stands for.

    NAME: a folder, a repository of Hugging Face (`openai-community/gpt2`, with `@REVISION`), or a model of timm

    Raises UserError for a name that is unknown, or not in the cache.
    """
    library = library_of(name)
    assert library is not None
    rest = name.removeprefix(library)
    if not rest:
        raise UserError(f"{KEY}={name}: a name is missing; write {library}NAME or {library}FOLDER")
    folder = local_path(rest, KEY)
    if folder.is_dir():
        return folder.absolute()
    repository, _, revision = rest.partition("@")
    if library == "timm:" and not repository.startswith("timm/"):
        repository = _of_timm(name, repository)
    return _cached(name, repository, revision or None)


def converted_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a library's folder under the names of ours. Raises UserError where no preset is like the model."""
    from blockyard.config.build import Components
    from blockyard.weights.convert.importing import architecture, context_of, converted
    from blockyard.weights.convert.source import read_source

    try:
        read = read_source(folder)
        components = Components(architecture(read.converter.preset, read.foreign))
        return converted(read, components, context_of(components, read.foreign))[0]
    except UserError as error:
        raise UserError(f"{KEY}: {error}") from error


def files_to_watch(folder: Path) -> Sequence[Path]:
    """The files whose change means that the weights are read again. Raises UserError where there are none."""
    files = sorted(path for path in (*folder.glob("*.safetensors"), folder / "config.json") if path.is_file())
    if not any(path.suffix == ".safetensors" for path in files):
        raise UserError(f"{KEY}: {folder} has no .safetensors file; files that may hold code are not read")
    return files


def _of_timm(name: str, model: str) -> str:
    """The repository of a pretrained model of timm. Raises UserError."""
    import timm

    if not timm.is_model(model):
        raise UserError(f"{KEY}={name}: timm has no model {model!r}{did_you_mean(model, timm.list_models())}")
    settings = timm.get_pretrained_cfg(model)
    repository = settings.hf_hub_id if settings is not None else None
    if not repository:
        raise UserError(f"{KEY}={name}: timm has no pretrained weights of {model}; name a folder, timm:FOLDER")
    return str(repository)


def _cached(name: str, repository: str, revision: str | None) -> Path:
    """The folder of a repository in the cache. Raises UserError where it is not there."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except HFValidationError as error:
        raise UserError(f"{KEY}={name}: no name of a repository, and no folder ({first_line(error)})") from error
    except LocalEntryNotFoundError as error:
        at = f" --revision {revision}" if revision else ""
        raise UserError(
            f"{KEY}={name}: {repository} is not in the local cache ({constants.HF_HUB_CACHE}), and runs download "
            f"nothing; fetch it once with `hf download {repository}{at} --include '*.json' '*.safetensors'`, or name "
            "a folder"
        ) from error
