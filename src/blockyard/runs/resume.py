"""Resume a run. Nothing that decides its outcome may change.

`resume=RUN` accepts overrides of incidental options (loggers, devices, workers, tags). Any other difference from the
frozen config is refused by name: it would either be ignored, or mix two runs in one folder. A path of the data may
change where the content is the same.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from blockyard.config import tree
from blockyard.config.override_grammar import parse_override
from blockyard.config.tree import Node
from blockyard.errors import UserError, quoted
from blockyard.runs.changed_data import check_moved, pop_moved
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity
from blockyard.runs.load import check_allowed, trusted_config
from blockyard.runs.provenance import host_facts, versions
from blockyard.runs.rank import rank_in
from blockyard.runs.start import changed_code, join_run, take_over
from blockyard.runs.store import find

_FIXED = {"name": "it names the folder", "seed": "it numbers the replicate"}


def reopen(
    run: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    config_dirs: Sequence[str] = (),
) -> RunFolder:
    """Lock a run and freeze its incidental overrides; the result is ready for `train(folder, resume=True)`.

    config_dirs: further config folders, for choices among `overrides`

    Raises AlreadyDoneError for a finished run, UserError for one in use, for an override that differs
    from the frozen config, and for a config that this version cannot build.
    """
    values = parse_overrides(overrides)
    folder = find(run, str(values.pop("outputs", "outputs")), option="resume")
    if values.pop("force", False):
        raise UserError("resume= continues a run and force=true starts it again; give one of them")
    allow = values.pop("allow", []) or []
    check_allowed(folder, allow)  # first, because computing the identity imports the named classes
    recorded = folder.facts().get("identity")
    if recorded and recorded != (now := identity(folder.config)):
        raise UserError(
            f"{folder.name} cannot be resumed: the identity of its config.yaml was {quoted(recorded)} at the start and "
            f"is {quoted(now)} now, by run.json; one of them was edited, or written by another version of "
            "blockyard. Start a new run"
        )
    moved = pop_moved(folder, values)
    config, refused = apply(folder, values, config_dirs)
    if refused:
        raise UserError(
            f"{folder.name} cannot be resumed with other settings: {'; '.join(refused)}; leave them out, "
            "or start a new run with `blockyard train`"
        )
    if rank_in(config):
        return join_run(folder.path, config)
    folder.lock()
    try:
        here = config | {"data": {**config["data"], **moved}} if moved else config
        checked = RunFolder(folder.path, here)
        trusted_config(checked, allow, training=True)
        if moved:
            check_moved(folder, here)
        note = differences(folder, config)
        take_over(folder, config, retry_failed=True)
        choices = folder.facts().get("choices", {})
        if chosen := {key: value for key, value in values.items() if key in choices and value != choices[key]}:
            folder.add_facts({"choices": {**choices, **chosen}})
        folder.config = here  # config.yaml keeps the path that the identity is of
        folder.resumes = True
        folder.message = "; ".join(filter(None, [folder.message or f"resuming {folder.path}", note]))
    except OSError as error:
        folder.release()
        raise UserError(f"cannot write {folder.path}: {error.strerror or error}") from error
    except BaseException:
        folder.release()
        raise
    return folder


def apply(folder: RunFolder, overrides: Mapping[str, Any], config_dirs: Sequence[str] = ()) -> tuple[Node, list[str]]:
    """Return the frozen config with the incidental `overrides`, and one line for each refused one."""
    frozen = folder.config
    choices = folder.facts().get("choices", {})
    config, refused = copy.deepcopy(frozen), []
    frozen_identity = identity(frozen)
    # Choices first: an option may belong to the new choice.
    for key in sorted(overrides, key=lambda key: (key not in choices and "." in key, key)):
        value = overrides[key]
        if key in choices and (value is None or isinstance(value, str)) and value == choices[key]:
            continue
        if key in choices and not frozen.get(key):
            # An experiment or debug choice has no node of its own: it sets values all over the config.
            refused.append(f"{key} is {_text(choices[key])} and cannot become {_text(value)}")
            continue
        if key in choices and isinstance(value, str):
            node, was = choice_node(key, value, choices, frozen, config_dirs), f"{key} is {choices[key]}"
        else:
            node, current = value, tree.get(config, key)
            if current is tree.ABSENT:
                refused.append(f"{key} is not a setting of this run")
                continue
            was = f"{key} is {_text(current)}"
        trial = copy.deepcopy(config)
        *path, last = key.split(".")
        tree.reach(trial, path)[last] = node
        if key in _FIXED and trial != config:
            refused.append(f"{was} and cannot become {_text(value)} ({_FIXED[key]})")
        elif identity(trial) != frozen_identity:
            refused.append(f"{was} and cannot become {_text(value)}")
        else:
            config = trial
    return config, refused


def differences(folder: RunFolder, config: Node) -> str | None:
    """Return a sentence about changes in versions, own code, machine and `config`; None if there are none.

    Where something changed, the run may not equal an uninterrupted one.
    """
    facts = folder.facts()
    old = {**facts.get("versions", {}), **_machine(facts.get("host", {}))}
    new = {**versions(), **_machine(host_facts())}
    changed = []
    for name in ("torch", "blockyard", "cpu", "usable_cores", "threads"):
        if name in old and old[name] != new.get(name):
            changed.append(f"{name} was {old[name]} and is {new.get(name)}")
    # Options of the trainer that change the order of additions.
    for name in ("accelerator", "devices", "num_nodes", "strategy", "threads", "accumulate", "attention"):
        key = f"trainer.{name}"
        was, value = tree.get(folder.config, key), tree.get(config, key)
        if was != value:
            changed.append(f"{key} was {_text(was)} and is {_text(value)}")
    changed += [f"the code of {name} has changed" for name in changed_code(folder, config)]
    if not changed:
        return None
    return f"not bitwise equal to an uninterrupted run: {', '.join(changed)}"


def _machine(host: Mapping[str, object]) -> dict[str, object]:
    return {name: host.get(name) for name in ("cpu", "usable_cores", "threads")}


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of overrides by key. Raises UserError for one that takes no single value."""
    values = {}
    for text in overrides:
        try:
            override = parse_override(text)
        except ValueError as error:
            raise UserError(f"{text!r} cannot be parsed ({error}); write key=value") from error
        if override.is_sweep_override() or override.is_delete():
            raise UserError(f"{text!r}: resume takes one value per key")
        values[str(override.key_or_group)] = override.value()
    return values


def choice_node(family: str, choice: str, choices: dict[str, Any], frozen: Node, config_dirs: Sequence[str]) -> Any:
    """Return the config node of another choice of a family, composed with the run's other choices."""
    from blockyard.config.compose import compose

    overrides = [f"{key}={value}" for key, value in choices.items() if key != family and value is not None]
    if frozen.get("allow"):
        overrides.append(f"allow=[{','.join(map(str, frozen['allow']))}]")
    composed = compose([*overrides, f"{family}={choice}"], config_dirs)
    issues = [issue for issue in composed.issues if issue.key == family or not composed.config]
    if issues or family not in composed.config:
        raise UserError("; ".join(map(str, issues)) or f"unknown {family} {choice!r}; see `blockyard list {family}`")
    return composed.config[family]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("_target_", "a mapping")).rpartition(".")[2]
    if value is None or isinstance(value, bool):  # as an override writes them: null, true
        return json.dumps(value)
    return str(value)
