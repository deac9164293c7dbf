"""What a run that others start from says of its weights: what its head predicts, and what its token ids mean."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.config.build import Components
from blockyard.contracts import TextTokenizer
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import semantic
from blockyard.runs.load import components_of
from blockyard.weights.resizing import Layout
from blockyard.weights.sources import TOKENIZERS, Source


@dataclass(frozen=True)
class Facts:
    """Of a run or of a config. task: what its head predicts; layout: of its tokens"""

    task: str
    layout: Layout


def facts(components: Components) -> Facts:
    """What the weights of these components are for."""
    ctx, spec, config = components.context(), components.data.spec, components.config
    targets = {key: config[key]["_target_"] for key in ("head", "objective")}
    if spec.target in (None, "symbols"):  # predicted are token ids, which mean the same wherever the tokenizer is
        meaning: Any = _nodes(config)
    else:
        meaning = list(spec.class_names) or config["data"]["_target_"]
    task = json.dumps([targets, ctx.outputs, meaning], sort_keys=True)
    # Beside a source there are two sequences, whose tables of positions have grids of their own.
    return Facts(task, Layout(ctx.tokens.grid if ctx.source is None else None, ctx.tokens.mask is not None))


def facts_of_run(run: RunFolder, allow: list[str]) -> Facts:
    """The facts of a finished run. Raises UserError where it cannot be rebuilt, or needs a package not in `allow`."""
    return facts(components_of(run, allow))


def fit_tokenizers(components: Components, source: Source) -> None:
    """Give tokenizers what those of the source learned, so that token ids mean what they meant there."""
    for key, path in source.tokenizer_states().items():
        tokenizer = components.tokenizer if key == "tokenizer" else components.source_tokenizer
        try:
            tokenizer.load_state(read_json(path))  # type: ignore[attr-defined]
        except (ValueError, OSError, AttributeError) as error:
            raise UserError(f"init.from: {path} cannot be read ({error})") from error


def tokenizer_problems(components: Components, source: Source) -> Iterator[str]:
    """Why token vectors of the source would stand for other tokens than they did there."""
    if source.run is None:
        tokenizer = components.tokenizer
        if isinstance(tokenizer, TextTokenizer) and tokenizer.learns and tokenizer.state() == {}:
            yield (
                f"the tokenizer learns its token ids from this run's data, and {source.path.name} does not say which "
                "it had; start from a run, use a tokenizer that learns nothing, or leave the embedder out of init.parts"
            )
        return
    theirs, ours, fitted = _nodes(source.run.config), _nodes(components.config), source.tokenizer_states()
    for key in TOKENIZERS:
        differ = theirs.get(key) != ours.get(key)
        if differ and key in fitted:
            yield (
                f"the {key} of {source.run.name} learned its token ids, and the one here has other options; use "
                f"{key}={(source.run.facts().get('choices') or {}).get(key)} with the same options, or leave the "
                "embedder out of init.parts"
            )


def _nodes(config: dict[str, Any]) -> dict[str, Any]:
    """What the tokenizers of a config compute."""
    return semantic({key: config[key] for key in TOKENIZERS if config.get(key)} | {"allow": config.get("allow")})
