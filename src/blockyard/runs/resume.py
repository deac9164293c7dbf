"""Going on with a run: nothing that decides its outcome may change on the way.

`resume=RUN` takes overrides of what is incidental (loggers, devices, workers, tags); whatever else
differs from the frozen config is refused and named, because it would be ignored or make the run
neither the old one nor a new one.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from typing import Any

from blockyard.config import dotted
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity
from blockyard.runs.load import named, trusted
from blockyard.runs.provenance import host_facts, versions
from blockyard.runs.rank import rank_in
from blockyard.runs.start import join, take_over
from blockyard.runs.store import find

_FIXED = {"name": "the folder is named by it", "seed": "it is the run's replicate"}


def reopen(
    run: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    command: Sequence[str] | None = None,
    *,
    config_dirs: Sequence[str] = (),
) -> RunFolder:
    """The run, locked, with incidental overrides frozen anew; ready for `train(folder, resume=True)`.

    config_dirs: the user's own config folders, where a choice among `overrides` may lie

    Raises AlreadyDone for a finished run, UserError for one in use, for an override that differs
    from the frozen config, and for a config that this version cannot build.
    """
    given = _values(overrides)
    folder = find(run, str(given.pop("outputs", "outputs")))
    if given.pop("force", False):
        raise UserError("resume goes on with a run, force=true starts it over; give one of them")
    allow = given.pop("allow", []) or []
    named(folder, allow)  # first: the identity asks the classes that are named, and so imports them
    recorded = folder.facts().get("identity")
    if recorded and recorded != identity(folder.config):
        raise UserError(
            f"{folder.name} cannot go on: its config.yaml is not what it was started with (identity {recorded}, now "
            f"{identity(folder.config)}); it was edited, or is of another version of blockyard. Start a new run"
        )
    config, refused = apply(folder, given, config_dirs)
    if refused:
        raise UserError(
            f"{folder.name} cannot go on with other settings: {'; '.join(refused)}; leave them out, "
            "or start a run of its own with `blockyard train` and all settings"
        )
    if rank_in(config):
        return join(folder.path, config)
    folder.lock()
    try:
        checked = RunFolder(folder.path, config)
        trusted(checked, allow)
        note = differences(folder, config)
        take_over(folder, config, command, failed_too=True)
        folder.resumes = True
        folder.message = "; ".join(filter(None, [folder.message or f"going on with {folder.path}", note]))
    except OSError as error:
        folder.release()
        raise UserError(f"cannot write {folder.path}: {error.strerror or error}") from error
    except BaseException:
        folder.release()
        raise
    return folder


def apply(
    folder: RunFolder, given: dict[str, Any], config_dirs: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """The frozen config with the incidental ones of `given`, and a line for each that is refused."""
    frozen = folder.config
    choices = folder.facts().get("choices") or {}
    config, refused = copy.deepcopy(frozen), []
    mark = identity(frozen)
    # Choices first: an option may belong to the new choice.
    for key in sorted(given, key=lambda key: (key not in choices and "." in key, key)):
        value = given[key]
        if key in choices and (value is None or isinstance(value, str)) and value == choices[key]:
            continue
        if key in choices and not frozen.get(key):
            # An experiment or a debug setting is no part of a config, it writes into all parts of it.
            refused.append(f"it has {key}={_word(choices[key])}, {_word(value)} was given")
            continue
        if key in choices and isinstance(value, str):
            node, was = _choice(key, value, choices, frozen, config_dirs), f"{key}={choices[key]}"
        else:
            node, found = value, dotted.get(config, key)
            if found is dotted.ABSENT:
                refused.append(f"{key} is no setting of this run")
                continue
            was = f"{key}={_word(found)}"
        trial = copy.deepcopy(config)
        _put(trial, key, node)
        if key in _FIXED and trial != config:
            refused.append(f"it has {was}, {_word(value)} was given ({_FIXED[key]})")
        elif identity(trial) != mark:
            refused.append(f"it has {was}, {_word(value)} was given")
        else:
            config = trial
    return config, refused


def differences(folder: RunFolder, config: dict[str, Any]) -> str | None:
    """What has changed around the run, and in its `config` now, so that it may not go on bit by bit; or None."""
    facts = folder.facts()
    old = {**(facts.get("versions") or {}), **_machine(facts.get("host") or {})}
    new = {**versions(), **_machine(host_facts())}
    changed = [
        f"{name} was {old[name]}, is {new.get(name)}"
        for name in ("torch", "blockyard", "cpu", "usable_cores", "threads")
        if name in old and old[name] != new.get(name)
    ]
    keys = [f"trainer.{name}" for name in ("accelerator", "devices", "num_nodes", "strategy", "threads", "accumulate")]
    changed += [
        f"{key} was {_word(dotted.get(folder.config, key))}, is {_word(dotted.get(config, key))}"
        for key in keys
        if dotted.get(folder.config, key) != dotted.get(config, key)
    ]
    return f"not bit by bit as it would have gone: {', '.join(changed)}" if changed else None


def _machine(host: dict[str, Any]) -> dict[str, Any]:
    return {name: host.get(name) for name in ("cpu", "usable_cores", "threads")}


def _values(overrides: Sequence[str]) -> dict[str, Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, values = OverridesParser.create(), {}
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            raise UserError(f"{text!r} cannot be read ({str(error).splitlines()[0]}); write key=value") from error
        if override.is_sweep_override() or override.is_delete():
            raise UserError(f"{text!r}: resume takes one value per key")
        values[str(override.key_or_group)] = override.value()
    return values


def _choice(
    family: str, choice: str, choices: dict[str, Any], frozen: dict[str, Any], config_dirs: Sequence[str]
) -> Any:
    """The node that another choice of a family stands for, composed with the run's other choices."""
    from blockyard.config.compose import compose

    rest = [f"{key}={value}" for key, value in choices.items() if key != family and value is not None]
    allow = [f"allow=[{','.join(map(str, frozen['allow']))}]"] if frozen.get("allow") else []
    composed = compose([*rest, *allow, f"{family}={choice}"], config_dirs)
    wrong = [issue for issue in composed.issues if issue.key == family or not composed.config]
    if wrong or family not in composed.config:
        raise UserError("; ".join(map(str, wrong)) or f"{family}={choice} is no choice")
    return composed.config[family]


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        config = config[part]
    config[last] = value


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("_target_", "a mapping")).rpartition(".")[2]
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
