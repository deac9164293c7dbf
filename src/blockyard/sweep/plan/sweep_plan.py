"""What a sweep will run, frozen: every cell composed before the first one starts.

    outputs/sweeps/<name>/
      plan.json         this plan; the last one kept as plan-<time>.json when the file has changed
      comparison.json   what `compare` found
      report.html       the page
      search.db         Optuna's record, where the file searches

A cell is a run folder: its address is the hash of its config and its seed, so a cell that any sweep has run
before is done already, and more seeds or arms reuse what is there; also a run of `blockyard train` that
names the precision that a sweep pins.
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, write_text
from blockyard.errors import UserError
from blockyard.sweep.plan import compact_json

FILE = "plan.json"
FOLDER = "sweeps"


@dataclass(frozen=True)
class Arm:
    """One answer to the question: a name and what it changes.

    overrides: command-line words beyond the sweep's base
    levels: factor -> level, where the arm comes from a grid, zip, one_at_a_time or leave_one_out
    """

    name: str
    overrides: tuple[str, ...] = ()
    levels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """An arm under one setting of what is tuned: everything of a config but the seed.

    setting: tuned key -> value; empty where nothing is tuned
    config: complete and plain; its `seed` counts for nothing. Variants share equal parts, so write into
        a copy, or take `SweepPlan.config`
    choices: the YAML of each family
    """

    key: str  # "<arm>" or "<arm>#<number of the setting>"
    arm: str
    config: dict[str, Any]
    choices: dict[str, str | None]
    setting: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One run of the plan. run: its folder under `outputs`, "<name>-<hash>/s<seed>"."""

    variant: str
    seed: int
    run: str


@dataclass(frozen=True)
class Refused:
    """What cannot run, and every reason why."""

    arm: str
    setting: dict[str, Any]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class SweepPlan:
    """A frozen plan.

    question: the sweep file's content as plain data, complete; `base` with the command line's words
    outputs: the folder that holds all runs; the sweep's own is `folder`
    cells: every one that could be asked for; of a tuned sweep `tune.due` says which are
    facts: command, versions, git, host, time (`provenance`); overrides and config_dirs of the command line; file;
        metric {name, validation, direction}; notes: what was decided for the user, in words; match
    """

    name: str
    question: dict[str, Any]
    outputs: str
    arms: tuple[Arm, ...]
    variants: dict[str, Variant]
    cells: tuple[Cell, ...]
    refused: tuple[Refused, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The sweep's own folder."""
        return Path(self.outputs) / FOLDER / self.name

    def config(self, cell: Cell) -> dict[str, Any]:
        """The complete config of a cell, the caller's own copy; a logger lists it as arm and seed."""
        config = copy.deepcopy(self.variants[cell.variant].config) | {"seed": cell.seed, "outputs": self.outputs}
        logger = config.get("logger")
        if isinstance(logger, dict) and "name" in logger and logger["name"] is None:
            logger["name"] = f"{cell.variant}/s{cell.seed}"
        return config

    def path(self, cell: Cell) -> Path:
        """The cell's run folder."""
        return Path(self.outputs) / cell.run

    def save(self) -> Path:
        """Write plan.json without secrets, whole or not at all. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        plain = {
            "name": self.name,
            "outputs": self.outputs,
            "question": self.question,
            "arms": [{"name": arm.name, "overrides": arm.overrides, "levels": arm.levels} for arm in self.arms],
            "refused": [asdict(each) for each in self.refused],
            "facts": self.facts,
            **compact_json.pack(self.variants.values(), self.cells),
        }
        write_text(self.folder / FILE, json.dumps(compact_json.clean(plain), separators=(",", ":")) + "\n")
        return self.folder / FILE

    @classmethod
    def load(cls, folder: Path, file: str = FILE) -> SweepPlan:
        """The plan of a sweep's folder, or an older one kept there. Raises UserError where it is not or is damaged."""
        try:
            data = read_json(folder / file)
            return cls(
                name=data["name"],
                question=data["question"],
                # The folder may have been moved with its runs.
                outputs=str(folder.absolute().parents[1]),
                arms=tuple(Arm(a["name"], tuple(a["overrides"]), a["levels"]) for a in data["arms"]),
                variants={each["key"]: Variant(**each) for each in compact_json.variants(data)},
                cells=tuple(Cell(*cell) for cell in compact_json.cells(data)),
                refused=tuple(Refused(r["arm"], r["setting"], tuple(r["reasons"])) for r in data["refused"]),
                facts=data["facts"],
            )
        except FileNotFoundError as error:
            raise UserError(f"{folder} is no sweep: it has no {file}") from error
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"{folder / file} is damaged ({error}); run the sweep's command again") from error
