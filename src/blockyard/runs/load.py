"""Rebuild a run from its folder alone: `blockyard.load("last").model`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import read_json
from blockyard.errors import UserError
from blockyard.runs.checkpoint import BEST, LAST, PREVIOUS, BadCheckpoint, read
from blockyard.runs.folder import TOKENIZER, RunFolder
from blockyard.runs.store import find

if TYPE_CHECKING:
    from torch import nn

    from blockyard.config.build import Components
    from blockyard.contracts import DataModule, Objective, Tokenizer

WHICH = {"best": BEST, "last": LAST, "previous": PREVIOUS}
_PREFIX = "model."


@dataclass(frozen=True)
class Loaded:
    """A run in memory. No data is read yet: `data.load(tokenizer)` reads it.

    model: with its weights, on the requested device, in evaluation mode
    components: everything its config describes
    checkpoint: the file of the weights; step: their optimizer step
    """

    model: nn.Module
    tokenizer: Tokenizer
    objective: Objective
    data: DataModule
    config: dict[str, Any]
    components: Components
    folder: RunFolder
    checkpoint: Path
    step: int


def load(
    run: str | os.PathLike[str] | RunFolder,
    *,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    device: str = "cpu",
    allow: tuple[str, ...] | list[str] = (),
    position: Mapping[str, Any] | None = None,
) -> Loaded:
    """Rebuild the model of a run with its weights; no data is read.

    run: a path, a name, an id, a unique part of one, or `last`
    which: "best" by validation, "last", or "previous"
    allow: further packages that the run's components may come from; the run's own config does not count, because
        the folder may come from a stranger
    position: options of the position scheme that replace the run's own

    Raises UserError if the run does not exist, or its checkpoint is missing, damaged or of another run.
    """
    if which not in WHICH:
        raise UserError(f"which={which!r}: expected one of {', '.join(WHICH)}")
    folder = run if isinstance(run, RunFolder) else find(run, outputs)
    components = components_of(folder, allow, position)
    path, content = _content(folder, which)
    model = components.model(folder.seed)
    weights = {k.removeprefix(_PREFIX): v for k, v in content["state_dict"].items() if k.startswith(_PREFIX)}
    _load_weights(model, weights, path)
    return Loaded(
        model=model.to(device).eval(),
        tokenizer=components.tokenizer,
        objective=components.objective,
        data=components.data,
        config=folder.config,
        components=components,
        folder=folder,
        checkpoint=path,
        step=int(content.get("global_step") or 0),
    )


def components_of(
    folder: RunFolder, allow: tuple[str, ...] | list[str] = (), position: Mapping[str, Any] | None = None
) -> Components:
    """The components of a run, with its fitted tokenizer. Raises UserError for a package that is not allowed."""
    from blockyard.config import build

    config = trusted_config(folder, allow, position)
    try:
        components = build.Components(config)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise UserError(f"{folder.path} cannot be rebuilt: {error}") from error
    path = folder.path / TOKENIZER
    if path.is_file():
        try:
            components.tokenizer.load_state(read_json(path))
        except Exception as error:  # tokenizers' own library raises nothing narrower
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{folder.path} cannot be rebuilt: {TOKENIZER} is damaged ({reason})") from error
    return components


def check_allowed(folder: RunFolder, allow: tuple[str, ...] | list[str] = ()) -> None:
    """Raises UserError if the run uses packages that are not in `allow`. Imports nothing."""
    packages = [str(package) for package in folder.config.get("allow") or ()]
    missing = [package for package in packages if package not in allow]
    if missing:
        raise UserError(
            f"{folder.path} uses components of {', '.join(missing)}; if you trust the folder, add "
            f"allow=[{','.join(missing)}]"
        )


def trusted_config(
    folder: RunFolder, allow: tuple[str, ...] | list[str] = (), position: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The frozen config with the user's own `allow` and with options of `position` replaced.

    Raises UserError with every problem that `check` reports.
    """
    from blockyard.config.check import check
    from blockyard.config.compose import Composed

    check_allowed(folder, allow)
    config = folder.config | {"allow": list(allow)}
    if position:
        config["position"] = {**config["position"], **position}
    choices = dict(folder.facts().get("choices") or {})
    issues = check(Composed(config, choices))
    if issues:
        raise UserError(f"{folder.path} cannot be rebuilt: " + "; ".join(map(str, issues)))
    return config


def _content(folder: RunFolder, which: str) -> tuple[Path, dict[str, Any]]:
    path = folder.checkpoints / WHICH[which]
    others = [key for key, name in WHICH.items() if key != which and (folder.checkpoints / name).is_file()]
    hint = f"; which={others[0]} exists" if others else ""
    try:
        return path, read(path, identity=folder.identity, seed=folder.seed)
    except FileNotFoundError:
        raise UserError(f"{folder.name} has no {path.name} (the run is {folder.status}){hint}") from None
    except BadCheckpoint as bad:
        bad.args = (f"{bad}{hint}",)
        raise


def _load_weights(model: nn.Module, weights: dict[str, Any], path: Path) -> None:
    expected = model.state_dict()
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    other = [name for name in expected.keys() & weights.keys() if expected[name].shape != weights[name].shape]
    if missing or extra or other:
        problems = [
            f"{kind} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            for kind, names in (("lacks", missing), ("has unknown", extra), ("has another shape of", sorted(other)))
            if names
        ]
        raise BadCheckpoint(path, f"it belongs to another architecture: it {', '.join(problems)}")
    model.load_state_dict(weights)
