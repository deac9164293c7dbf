"""A run from its folder alone: `blockyard.load("last").model`."""

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
    """A run in memory. Data is described, not read: `data.load(tokenizer)` reads it.

    model: with its weights, on the device asked for, in evaluation mode
    step: updates the weights have seen; checkpoint: the file they are from
    """

    model: nn.Module
    tokenizer: Tokenizer
    objective: Objective
    data: DataModule
    config: dict[str, Any]
    plan: Components
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

    run: a path, a name, an id or the beginning of one, or `last`
    which: "best" by validation, "last", or "previous"
    allow: packages besides blockyard's own that the run's components may come from; the run's own
        word is not taken for it, because a folder may come from anywhere
    position: options of the position scheme to read the weights with, in place of the run's own

    Raises UserError where there is no such run, or its checkpoint is missing, damaged or foreign.
    """
    if which not in WHICH:
        raise UserError(f"which={which!r}: takes one of {', '.join(WHICH)}")
    folder = run if isinstance(run, RunFolder) else find(run, outputs)
    plan = plan_of(folder, allow, position)
    path, content = _content(folder, which)
    model = plan.model(folder.seed)
    weights = {k.removeprefix(_PREFIX): v for k, v in content["state_dict"].items() if k.startswith(_PREFIX)}
    _fit(model, weights, path)
    return Loaded(
        model=model.to(device).eval(),
        tokenizer=plan.tokenizer,
        objective=plan.objective,
        data=plan.data,
        config=folder.config,
        plan=plan,
        folder=folder,
        checkpoint=path,
        step=int(content.get("global_step") or 0),
    )


def plan_of(
    folder: RunFolder, allow: tuple[str, ...] | list[str] = (), position: Mapping[str, Any] | None = None
) -> Components:
    """The plan of a run, its tokenizer as it was trained. Raises UserError for what it may not name."""
    from blockyard.config import build

    config = trusted(folder, allow, position)
    try:
        plan = build.Components(config)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise UserError(f"{folder.path} cannot be rebuilt: {error}") from error
    path = folder.path / TOKENIZER
    if path.is_file():
        try:
            plan.tokenizer.load_state(read_json(path))
        except Exception as error:  # tokenizers' own library raises nothing narrower
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{folder.path} cannot be rebuilt: {TOKENIZER} is damaged ({why})") from error
    return plan


def named(folder: RunFolder, allow: tuple[str, ...] | list[str] = ()) -> None:
    """Raises UserError where the run's config names packages that the user did not. Imports nothing."""
    asked = [str(package) for package in folder.config.get("allow") or ()]
    missing = [package for package in asked if package not in allow]
    if missing:
        raise UserError(
            f"{folder.path} uses components of {', '.join(missing)}; if you trust it, say allow=[{','.join(missing)}]"
        )


def trusted(
    folder: RunFolder, allow: tuple[str, ...] | list[str] = (), position: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The frozen config with `allow` as the user said it, and options of `position` changed.

    Raises UserError naming all that is wrong with it.
    """
    from blockyard.config.check import check
    from blockyard.config.compose import Composed

    named(folder, allow)
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
    others = [word for word, name in WHICH.items() if word != which and (folder.checkpoints / name).is_file()]
    way_out = f"; which={others[0]} is there" if others else ""
    try:
        return path, read(path, identity=folder.identity, seed=folder.seed)
    except FileNotFoundError:
        raise UserError(f"{folder.name} has no {path.name} (it is {folder.status}){way_out}") from None
    except BadCheckpoint as bad:
        bad.args = (f"{bad}{way_out}",)
        raise


def _fit(model: nn.Module, weights: dict[str, Any], path: Path) -> None:
    own = model.state_dict()
    missing, extra = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    other = [name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape]
    if missing or extra or other:
        words = [
            f"{kind} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            for kind, names in (("lacks", missing), ("has unknown", extra), ("has another shape of", sorted(other)))
            if names
        ]
        raise BadCheckpoint(path, f"it is of another architecture: it {', '.join(words)}")
    model.load_state_dict(weights)
