"""One run as a listing sees it: plain facts from its small files, no checkpoint and no component."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_yaml_as_json
from blockyard.config.tree import Node
from blockyard.errors import UserError
from blockyard.runs.costs import costs
from blockyard.runs.folder import CONFIG, RUN, SUMMARY, read_mapping
from blockyard.runs.notes import FILE as NOTES
from blockyard.runs.notes import read_notes
from blockyard.runs.status import FILE as STATUS
from blockyard.runs.status import read_status

SOURCES = (CONFIG, RUN, STATUS, SUMMARY, NOTES)  # the files that a record is read from
# What a condition or a column may name besides metrics, families and config keys.
FACTS = ("run", "name", "sweep", "arm", "state", "reason", "started", "seconds", "steps", "parameters", "tags", "note")


@dataclass(frozen=True)
class RunRecord:
    """run: `NAME-HASH/sSEED`; metrics: final values by name, of the weights that the summary names

    directions: max or min for each metric; choices: family -> choice
    config_json: the whole config, redacted as on disk; ten thousand are listed without a look into theirs
    damage: why files of the run could not be read, or None; their facts are then missing
    sweep, arm: the sweeps with a cell that is this run, and the arm in each; empty until `cell_names` gives them
    """

    run: str
    state: str
    reason: str | None = None
    started: str | None = None
    seconds: float | None = None
    steps: int | None = None
    parameters: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    directions: dict[str, str] = field(default_factory=dict)
    choices: dict[str, Any] = field(default_factory=dict)
    config_json: str = "{}"
    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False
    damage: str | None = None
    sweep: tuple[str, ...] = ()
    arm: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name without the hash and the seed."""
        return self.run.rpartition("/")[0].rpartition("-")[0]

    @cached_property
    def config(self) -> Node:
        """The whole config. Raises UserError where an index of runs holds something else."""
        try:
            config = json.loads(self.config_json)
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise UserError(f"the index of runs is damaged at {self.run}: remove .runs.sqlite3 from the folder of runs")
        return config

    @cached_property
    def keys(self) -> frozenset[str]:
        """Everything that a condition can name for this run."""
        return frozenset((*FACTS, *self.metrics, *self.choices, *_leaves(self.config)))

    def value(self, key: str) -> Any:
        """The value of a fact, a metric, a family's choice or a config key; None where the run has none."""
        if key in FACTS:
            return getattr(self, key)
        if key in self.metrics:
            return self.metrics[key]
        if key in self.choices:
            return self.choices[key]
        node: Any = self.config
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return None
            node = node[part]
        return node

    def plain(self) -> dict[str, Any]:
        """Return the record as JSON writes it, with the config as a mapping."""
        fields = asdict(self) | {"tags": list(self.tags), "config": self.config}
        fields |= {"sweep": list(self.sweep), "arm": list(self.arm)}
        del fields["config_json"]
        return fields


def read_record(path: Path) -> RunRecord:
    """Read the record of a run folder. Damage to one of its files is recorded, and the others are read."""
    problems: list[str] = []

    def content(name: str) -> dict[str, Any]:
        try:
            return read_mapping(path / name)
        except FileNotFoundError:
            return {}
        except (ValueError, OSError) as error:
            problems.append(str(error))
            return {}

    try:
        config_json = read_yaml_as_json(path / CONFIG)
    except (ValueError, OSError) as error:
        config_json = "{}"
        if not isinstance(error, FileNotFoundError):
            problems.append(str(error))
    facts, summary = content(RUN), content(SUMMARY)
    status = read_status(path)
    try:
        notes = read_notes(path)
    except UserError as error:
        problems.append(str(error))
        notes = None
    parameters = costs(summary).get("parameters")
    return RunRecord(
        run=f"{path.parent.name}/{path.name}",
        state=status.state,
        reason=status.reason,
        started=status.started,
        seconds=_seconds(status.started, status.ended),
        steps=status.step,
        parameters=None if parameters is None else int(parameters),
        metrics={name: float(v) for name, v in summary.get("metrics", {}).items() if isinstance(v, int | float)},
        directions={name: str(direction) for name, direction in summary.get("directions", {}).items()},
        choices={family: v for family, v in facts.get("choices", {}).items() if isinstance(v, str | None)},
        config_json=config_json,
        tags=notes.tags if notes else (),
        note=notes.note if notes else "",
        archived=notes.archived if notes else False,
        damage="; ".join(problems) or None,
    )


def _seconds(started: str | None, ended: str | None) -> float | None:
    """Return the seconds from the last start to the end."""
    try:
        return (datetime.fromisoformat(str(ended)) - datetime.fromisoformat(str(started))).total_seconds()
    except (ValueError, TypeError):
        return None


def _leaves(node: Node, prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
