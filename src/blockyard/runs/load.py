"""Rebuild a run from its folder alone: `blockyard.load("last").model`."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import is_regular, read_json
from blockyard.config.tree import Node
from blockyard.errors import UserError, first_line, quoted
from blockyard.runs.checkpoint import BEST, LAST, PREFIX, PREVIOUS, BadCheckpointError, average_in, load_weights, read
from blockyard.runs.folder import CONFIG, RUN, TOKENIZER_FILES, RunFolder
from blockyard.runs.identity import identity
from blockyard.runs.store import find
from blockyard.runs.weights_file import WEIGHTS, read_weights

if TYPE_CHECKING:
    from blockyard.config.build import Components
    from blockyard.contracts import DataModule, Model, Objective, Splits, Tokenizer


WHICH = {"best": BEST, "last": LAST, "previous": PREVIOUS}
log = logging.getLogger("blockyard")


def check_allowed(folder: RunFolder, allow: tuple[str, ...] | list[str] = ()) -> None:
    """Raise UserError if the run uses packages that are not in `allow`. Imports nothing."""
    packages = [str(package) for package in folder.config.get("allow") or ()]
    missing = [package for package in packages if package not in allow]
    if missing:
        raise UserError(
            f"{folder.path} uses components of {', '.join(missing)}; if you trust the folder, add "
            f"allow=[{','.join(missing)}]"
        )


def trusted_config(
    folder: RunFolder,
    allow: tuple[str, ...] | list[str] = (),
    position: Mapping[str, Any] | None = None,
    metrics: Any = None,
    *,
    training: bool = False,
) -> Node:
    """Return the frozen config with the user's own `allow` and with options of `position` replaced.

    They are replaced in every kind of layers that has the same scheme, too.

    training: whether the run goes on, and so must fit into the memory of this machine with its gradients

    Raises UserError with every problem that `check` reports.
    """
    from blockyard.config.check import check
    from blockyard.config.compose import Composed
    from blockyard.config.layer_kinds import with_position

    check_allowed(folder, allow)
    config = folder.config | {"allow": list(allow)}
    if folder.moved:
        config["data"] = {**config["data"], **folder.moved}
    if position:
        config = with_position(config, position)
    if metrics is not None:
        config["objective"] = {**config["objective"], "metrics": metrics}
    choices = dict(folder.facts().get("choices", {}))
    issues = check(Composed(config, choices), training=training, starts=False)
    if issues:
        if missing := _missing_data(config):
            raise UserError(f"{folder.path}: {missing}")
        raise UserError(f"{folder.path} cannot be rebuilt from its {CONFIG}: " + "; ".join(map(str, issues)))
    return config


def _missing_data(config: Node) -> str | None:
    """Return why the data of a config is missing; None if it is there, or nobody can tell without reading it."""
    from blockyard.config.build import Components

    with contextlib.suppress(ValueError, TypeError, KeyError, OSError, RuntimeError):
        return Components(config).data.missing()
    return None


@dataclass(frozen=True)
class Loaded:
    """A run in memory. No data is read yet: `components.load()` reads it.

    model: with its weights, on the requested device, in evaluation mode
    components: everything its config describes
    checkpoint: the file of the weights; step: their optimizer step
    weights: the name of the file, with @NAME for the average that callbacks.NAME kept
    """

    model: Model
    tokenizer: Tokenizer
    objective: Objective
    data: DataModule
    config: Node
    components: Components
    folder: RunFolder
    checkpoint: Path
    step: int
    weights: str


def load(
    run: str | os.PathLike[str] | RunFolder,
    *,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    device: str = "cpu",
    allow: tuple[str, ...] | list[str] = (),
    position: Mapping[str, Any] | None = None,
    metrics: Any = None,
    data: Mapping[str, Any] | None = None,
) -> Loaded:
    """Rebuild the model of a run with its weights; no data is read.

    run: a path, a name, an id, a unique part of one, or `last`
    which: "best" by validation, "last", or "previous"; with @NAME the average that callbacks.NAME kept: "best@ema"
    allow: further packages that the run's components may come from; the run's own config does not count, because
        the folder may come from a stranger
    position: options of the position scheme that replace the run's own
    metrics: further metrics by name, in place of the run's own (`objective.metrics`)
    data: where the files of its data lie now, such as {"root": "/data"}; `eval` compares their content

    Raises UserError if the run does not exist, or its checkpoint is missing, damaged or of another run.
    """
    which, _, average = which.partition("@")
    if which not in WHICH:
        raise UserError(f"which={which!r}: expected one of {', '.join(WHICH)}, or of those with @ema for an average")
    folder = run if isinstance(run, RunFolder) else find(run, outputs)
    if data:
        folder = folder.with_data(data)
    components = components_of(folder, allow, position, metrics)
    _report_edits(folder, allow)
    path, content = _content(folder, which)
    if average:
        content = content | {"state_dict": average_in(content, average, path)}
    try:
        model = components.model(folder.seed)
    except (RuntimeError, MemoryError) as error:  # a folder from elsewhere may describe more than the memory holds
        raise UserError(f"{folder.path} cannot be rebuilt: {first_line(error)}") from error
    try:
        load_weights(model, content, path)
    except BadCheckpointError as bad:
        raise _with_hint(bad, folder, which) from None
    weights = path.name
    if average:
        weights += f"@{average}"
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
        weights=weights,
    )


def splits_of(loaded: Loaded) -> Splits:
    """Return the splits of a run's data. Raises UserError where it is missing."""
    missing = loaded.data.missing()
    if missing:
        raise UserError(missing)
    loaded.data.prepare()
    return loaded.components.load()


def components_of(
    folder: RunFolder,
    allow: tuple[str, ...] | list[str] = (),
    position: Mapping[str, Any] | None = None,
    metrics: Any = None,
) -> Components:
    """Return the components of a run, with its fitted tokenizer. Raises UserError for a package that is not allowed."""
    from blockyard.config import build

    config = trusted_config(folder, allow, position, metrics)
    try:
        components = build.Components(config)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise UserError(f"{folder.path} cannot be rebuilt from its {CONFIG}: {error}") from error
    for name, tokenizer in components.tokenizers.items():
        _load_state(tokenizer, folder, TOKENIZER_FILES[name])
    return components


def _load_state(tokenizer: Tokenizer, folder: RunFolder, name: str) -> None:
    """Load a tokenizer's state from a file of the run, if it is there. Raises UserError if it is damaged."""
    path = folder.path / name
    if os.path.lexists(path):
        try:
            if not path.is_file():
                raise ValueError("it is not a regular file")
            state = read_json(path)
            if not isinstance(state, dict) or not state:
                raise ValueError("it holds no saved tokenizer")
            tokenizer.load_state(state)
        except BaseException as error:  # tokenizers' own library raises nothing narrower, a panic of Rust among it
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise UserError(f"{folder.path} cannot be rebuilt: {name} is damaged ({first_line(error)})") from error


def _content(folder: RunFolder, which: str) -> tuple[Path, dict[str, Any]]:
    path = folder.checkpoints / WHICH[which]
    alone = folder.path / WEIGHTS
    if which != "previous" and is_regular(alone) and not folder.checkpoints.exists():
        # An imported or exported folder has weights of one moment, and no state of a training.
        weights = {f"{PREFIX}{name}": value for name, value in read_weights(alone).items()}
        return alone, {"state_dict": weights}
    try:
        return path, read(path, identity=folder.identity, seed=folder.seed)
    except FileNotFoundError:
        raise UserError(
            f"{folder.name} has no {path.name} (the run is {folder.status}){_hint(folder, which)}"
        ) from None
    except BadCheckpointError as bad:
        raise _with_hint(bad, folder, which) from None


def _report_edits(folder: RunFolder, allow: tuple[str, ...] | list[str]) -> None:
    """Warn if run.json cannot be read, or config.yaml has changed since the run began."""
    recorded = folder.facts().get("identity")
    if not recorded:
        log.warning(
            "%s is missing or damaged; the precision, threads and data of the run are unknown", folder.path / RUN
        )
    elif recorded != (now := identity(folder.config | {"allow": list(allow)})):
        log.warning(
            "the identity of %s was %s at the start, says %s, and is %s now: one was edited, is of another run, "
            "or was written by another version",
            *(folder.path / CONFIG, quoted(recorded), RUN, quoted(now)),
        )


def _hint(folder: RunFolder, which: str) -> str:
    """Return a hint at another checkpoint of the run, or an empty text."""
    for key, name in WHICH.items():
        if key != which and is_regular(folder.checkpoints / name):
            return f"; which={key} exists"
    return ""


def _with_hint(bad: BadCheckpointError, folder: RunFolder, which: str) -> BadCheckpointError:
    return BadCheckpointError(bad.path, f"{bad.reason}{_hint(folder, which)}")
