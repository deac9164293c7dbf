"""Models of transformers: `hf:NAME` is a repository in the local cache of Hugging Face, `hf:FOLDER` a folder like it.

Their weights and configs are converted as `blockyard import` does.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from blockyard.config.build import Components
from blockyard.config.tree import Node
from blockyard.errors import UserError, first_line
from blockyard.weights.convert.importing import architecture, composed_run, context_of, converted
from blockyard.weights.convert.source import read_source


class HuggingFaceLibrary:
    """Models in the local cache of Hugging Face, and in folders like those in it."""

    def cached(self, model: str) -> Path:
        """Return the folder of a model in the cache; model: REPOSITORY or REPOSITORY@REVISION.

        Nothing is downloaded: a run would otherwise depend on the repository's content on the day it starts.
        Raises UserError for a name that is unknown, or not in the cache.
        """
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        name, _, revision = model.partition("@")
        repository = self.repository(name)
        try:
            return Path(snapshot_download(repository, revision=revision or None, local_files_only=True))
        except HFValidationError as error:
            raise UserError(f"no name of a repository, and no folder ({first_line(error)})") from error
        except LocalEntryNotFoundError as error:
            at = f" --revision {revision}" if revision else ""
            raise UserError(
                f"{repository} is not in the local cache ({constants.HF_HUB_CACHE}), and runs download nothing; fetch "
                f"it once with `hf download {repository}{at} --include '*.json' '*.safetensors'`, or name a folder"
            ) from error

    def repository(self, name: str) -> str:
        """Return the repository of Hugging Face that holds a model."""
        return name

    def weights(self, folder: Path) -> dict[str, Tensor]:
        """Return the weights of a folder under our names. Raises UserError if no preset is like the model."""
        source = read_source(folder)
        # The architecture alone: its data and tokenizer do not matter to weights.
        components = Components(architecture(source.converter.preset, source.foreign))
        return converted(source, components, context_of(components, source.foreign))[0]

    def config(self, folder: Path) -> Node:
        """Return the config of the model in a folder, with its tokenizer if it reads token ids.

        Raises UserError if no preset is like the model, or the model is only a part of ours.
        """
        source = read_source(folder)
        if source.partly:
            raise UserError(f"{source.name} is only a part of a model here, because {source.partly}")
        composition = None if source.foreign.vocabulary is None else composed_run(source, ())
        if composition is None:
            return architecture(source.converter.preset, source.foreign)
        return composition.config


LIBRARY = HuggingFaceLibrary()
