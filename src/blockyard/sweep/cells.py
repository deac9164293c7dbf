"""The parts of a sweep as plain data: arms, their variants, cells, the task of a cell and its outcome.

Arm ── × settings ──▶ Variant ── × seeds ──▶ Cell ── composed ──▶ Task ── executor ──▶ Outcome
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from blockyard.config.tree import Node

ARM_LEVEL = "arm"  # the level that names the arm of the file of which an arm is a rung
JOB_FILES = "submitit"  # the folder of a scheduler's files, in the sweep's folder
BUSY = 75  # exit code: another process holds the run; `EX_TEMPFAIL` of sysexits.h
SEARCH_LOCK = "search"  # first part of the name of a searching process's lock: search-PID-RANDOM
Setting = dict[str, Any]  # config key -> its value in a variant or a trial


class TrialAddress(TypedDict):
    """The place of a run's Optuna trial. prunes: whether the run reports to it, and may be ended early"""

    storage: str
    study: str
    number: int
    prunes: bool


@dataclass(frozen=True)
class Arm:
    """One of the compared configurations: a name and its overrides.

    overrides: in addition to the sweep's base
    levels: factor -> level, for the arms of a grid, zip, one_at_a_time or leave_one_out
    """

    name: str
    overrides: tuple[str, ...] = ()
    levels: dict[str, str] = field(default_factory=dict)


def cell_name(arm: str, setting: Mapping[str, Any], seed: int | None = None) -> str:
    """Return the display name of a cell, or of all seeds of a setting: `rope lr=0.001 s0`, `rope lr=0.001`."""
    short_names = {key: key.rpartition(".")[2] for key in setting}
    if len(set(short_names.values())) < len(setting):
        short_names = {key: key for key in setting}
    parts = [arm]
    for key, value in setting.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        parts.append(f"{short_names[key]}={text}")
    if seed is not None:
        parts.append(f"s{seed}")
    return " ".join(parts)


@dataclass(frozen=True)
class Variant:
    """An arm under one setting of the tuned keys: a complete config except for the seed.

    setting: tuned key -> value; empty where nothing is tuned
    config: complete and plain; its `seed` has no meaning. Variants share equal nodes, so write only into
        a copy, or use `SweepPlan.config`
    choices: the chosen YAML of each family
    """

    key: str  # "<arm>" or "<arm>#<number of the setting>"
    arm: str
    config: Node
    choices: dict[str, str | None]
    setting: Setting = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One run of the plan. run: its folder below `outputs`, "<name>-<hash>/s<seed>"."""

    variant: str
    seed: int
    run: str


@dataclass(frozen=True)
class Refused:
    """An arm, or one of its settings, that cannot run, with every reason."""

    arm: str
    setting: Setting
    reasons: tuple[str, ...]

    def problems(self, role: str = "arm") -> list[str]:
        """Return a line for each reason, with the arm; role: of the arm in the file, such as baseline"""
        return [f"{role} {self.arm}: {reason}" for reason in self.reasons]


@dataclass(frozen=True)
class Task:
    """One cell to run: everything its process needs, as plain data.

    key: the run's folder below `outputs`, unique within the sweep
    config: complete, with seed and outputs
    retry: whether a run that failed before starts again
    trial: for a search, the storage, study and number of the Optuna trial that this run belongs to
    """

    key: str
    config: Node
    choices: dict[str, str | None] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    retry: bool = False
    trial: TrialAddress | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of a cell.

    code: the exit code of `blockyard train`, BUSY, or the negative number of the signal that killed the process
    """

    key: str
    code: int
    reason: str | None = None
