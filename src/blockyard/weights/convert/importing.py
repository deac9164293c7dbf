"""`blockyard import`: a library's checkpoint as a folder of ours.

model.safetensors   the weights under our names
import.json         their source, and the library's config in our terms
config.yaml, run.json, tokenizer.json   of a run that `load`, `eval`, `predict` and `generate` read; only where
                    there is data of the library's sizes: the user's, or any text for a model of text
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.atomic_files import new_folder, write_json, write_yaml
from blockyard.config.build import Components, context
from blockyard.config.check import check
from blockyard.config.compose import Composed, compose
from blockyard.config.override_grammar import to_override
from blockyard.config.tree import Node
from blockyard.config.untrusted.local_path import local_path
from blockyard.contracts import Context
from blockyard.errors import UserError
from blockyard.ops.meta import without_compiler
from blockyard.runs.folder import CONFIG, RUN, TOKENIZER
from blockyard.runs.identity import identity
from blockyard.runs.provenance import provenance
from blockyard.runs.redact import redact
from blockyard.runs.weights_file import WEIGHTS, write_weights
from blockyard.tokenizer.pretrained import Pretrained
from blockyard.weights.convert.converter import Foreign
from blockyard.weights.convert.rules import convert
from blockyard.weights.convert.source import LibrarySource, read_source, special_id

FACTS = "import.json"


def composed(preset: str, foreign: Foreign, overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> Composed:
    """Return the config of a run: the preset, the library's config in our terms, and overrides of the user's.

    config_dirs: further config folders, for choices among the overrides. Raises UserError with every problem.
    """
    composition = compose([f"preset={preset}", "logger=none", *foreign.overrides, *overrides], config_dirs)
    issues = check(composition, training=False)
    if issues:
        raise UserError("the import cannot be a run: " + "; ".join(map(str, issues)))
    return composition


def architecture(preset: str, foreign: Foreign) -> Node:
    """Return the config of the model alone; its data and tokenizer mean nothing. Raises UserError."""
    composition = compose([f"preset={preset}", "logger=none", *foreign.overrides])
    if composition.issues:
        raise UserError("; ".join(map(str, composition.issues)))
    return composition.config


def context_of(components: Components, foreign: Foreign) -> Context:
    """Return the Context of a library's config. Raises UserError if our parts refuse its sizes."""
    parts = (components.tokenizer, components.source_tokenizer, components.objective, components.architecture)
    try:
        ctx = context(foreign.data, *parts)
    except ValueError as error:
        raise UserError(f"the library's sizes are not ours: {error}") from error
    if foreign.vocabulary is not None:
        # The library's table has its own size, whatever tokenizer the architecture's config names.
        ctx = replace(ctx, tokens=replace(ctx.tokens, vocabulary=foreign.vocabulary))
    return replace(ctx, outputs=foreign.outputs or ctx.outputs)


def build(components: Components, ctx: Context, *, device: str = "meta") -> nn.Module:
    """Return the model of a context, without initial weights. Raises UserError if our parts refuse its sizes."""
    try:
        with without_compiler(), torch.device(device):
            return components.architecture.build(ctx, components.parts).eval()
    except ValueError as error:
        raise UserError(f"the library's sizes are not ours: {error}") from error


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    loads: whether the folder is a run that `blockyard.load` reads
    missing: names of our weights without a counterpart; unread: names of library weights that our model does not need
    """

    folder: Path
    source: LibrarySource
    loads: bool
    missing: list[str]
    unread: list[str]


def converted(
    source: LibrarySource, components: Components, ctx: Any
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Return weights under our names, missing names of ours, and unread names of the library. Raises UserError."""
    wanted = build(components, ctx).state_dict()
    names = {name for rule in source.foreign.rules for name in rule.library_names}
    unread = [name for name in source.weights if name not in names and source.foreign.ignored(name)]
    weights = convert(source.foreign.rules, source.weights, wanted, ignored=unread)
    missing = [name for name in wanted if name not in weights]
    if missing and not source.partly:
        raise UserError(f"{source.path}: nothing of it is {', '.join(missing)}")
    return weights, missing, unread


def import_weights(
    source: str | Path,
    out: str | Path,
    *,
    preset: str | None = None,
    timm: str | None = None,
    overrides: Sequence[str] = (),
    config_dirs: Sequence[str] = (),
) -> Imported:
    """Read a checkpoint of a library and write it as a folder of ours, whole or not at all.

    overrides: of the run that the folder is, such as `data=image_folder data.root=photos`; config_dirs: further
        config folders, for choices among them

    Raises UserError for a checkpoint that cannot be read or expressed, overrides that do not suit it, and a folder
    that is not empty.
    """
    folder = local_path(str(out), "out").absolute()
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"out={out}: it exists; choose another folder")
    read = read_source(source, preset, timm)
    composition = composed_run(read, overrides, config_dirs)
    if composition is None:
        config = architecture(read.converter.preset, read.foreign)
        components = Components(config)
        ctx = context_of(components, read.foreign)
    else:
        components = Components(composition.config)
        if read.tokenizer is not None and isinstance(components.tokenizer, Pretrained):
            components.tokenizer.fit(())  # its file, which the folder keeps
        _check_fit(read, components)
        ctx = components.context()
    # Converted before the folder exists: an import is whole or not there.
    weights, missing, unread = converted(read, components, ctx)
    facts = _facts(read, missing, unread)
    with new_folder(folder) as temporary:
        write_weights(temporary / WEIGHTS, weights)
        write_json(temporary / FACTS, facts)
        if composition is not None:
            _write_run(temporary, composition, components, facts)
    return Imported(folder, read, composition is not None, missing, unread)


def composed_run(source: LibrarySource, overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> Composed | None:
    """Return the config of the imported run; None if no data is known that suits the model. Raises UserError."""
    if source.partly:
        if overrides:
            raise UserError(f"{overrides[0]} has no effect: the import is not a run, because {source.partly}")
        return None
    chosen = {text.partition("=")[0] for text in overrides}
    defaults: list[str] = []
    if source.foreign.text and "data" not in chosen:
        defaults += source.foreign.text
    if source.tokenizer is not None and "tokenizer" not in chosen and source.foreign.vocabulary is not None:
        defaults += ["tokenizer=pretrained", to_override("tokenizer.path", str(source.tokenizer.absolute()))]
        defaults += [f"tokenizer.vocab_size={source.foreign.vocabulary}", *_special(source)]
    has_data = "data" in chosen or source.foreign.text
    has_tokens = source.foreign.vocabulary is None or source.tokenizer is not None or "tokenizer" in chosen
    if not overrides and not (has_data and has_tokens and defaults):
        return None
    return composed(source.converter.preset, source.foreign, [*defaults, *overrides], config_dirs)


def _special(source: LibrarySource) -> list[str]:
    """Return the overrides of the mask's token id, and of the token ids around a decoder's text."""
    ids = source.config
    overrides = []
    start, end = ids.get("decoder_start_token_id"), ids.get("eos_token_id")
    if source.foreign.data.source is not None and isinstance(start, int) and isinstance(end, int):
        overrides += [f"tokenizer.start_id={start}", f"tokenizer.end_id={end}"]
    if source.tokenizer is not None:
        mask = special_id(source.tokenizer, "[MASK]", "<mask>")
        if mask is not None:
            overrides.append(f"tokenizer.mask_id={mask}")
    return overrides


def _check_fit(source: LibrarySource, components: Components) -> None:
    """Raise UserError if the data or the tokenizer has other sizes than the library's model."""
    ctx, wanted = components.context(), source.foreign
    sizes: dict[str, tuple[Any, Any]] = {
        "token ids": (ctx.tokens.vocabulary, wanted.vocabulary),
        "outputs": (ctx.outputs, wanted.outputs),
    }
    if wanted.data.modality == "image":
        sizes["channels, height and width"] = (tuple(ctx.data.shape), tuple(wanted.data.shape))
    for name, (actual, expected) in sizes.items():
        if expected is not None and actual != expected:
            raise UserError(
                f"the model has {expected} {name}, the data and tokenizer of the run give {actual}; change data= or "
                "tokenizer=, or leave them out to import weights for init.from"
            )


def _facts(source: LibrarySource, missing: list[str], unread: list[str]) -> dict[str, Any]:
    return {
        "preset": source.converter.preset,
        "overrides": source.foreign.overrides,
        "library": source.converter.library,
        "architecture": source.architecture,
        "from": str(source.path),
        "sha256": source.sha256,
        "missing": missing,
        "unread": unread,
    }


def _write_run(folder: Path, composition: Composed, components: Components, facts: dict[str, Any]) -> None:
    write_yaml(folder / CONFIG, redact(composition.config))
    state = components.tokenizer.state()
    if state:
        write_json(folder / TOKENIZER, state, checked=True)
    run = {"identity": identity(composition.config), "choices": composition.choices, "resumes": [], "import": facts}
    write_json(folder / RUN, {**provenance(), **run}, checked=True)
