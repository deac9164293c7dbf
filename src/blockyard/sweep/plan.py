"""What a sweep will run, frozen: every cell composed before the first one starts.

    outputs/sweeps/<name>/
      plan.json         this plan; the last one kept as plan-<time>.json when the file has changed
      comparison.json   what `compare` found
      report.html       the page
      search.db         Optuna's record, where the file searches

A cell is a run folder: its address is the hash of its config and its seed, so a cell that any sweep or
`blockyard train` has run before is done already, and more seeds or arms reuse what is there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blockyard.errors import UserError
from blockyard.runs.files import read_json, write_json

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
    config: complete and plain; its `seed` counts for nothing
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

    question: the sweep file's content as plain data, complete
    outputs: the folder that holds all runs; the sweep's own is `folder`
    """

    name: str
    question: dict[str, Any]
    outputs: str
    arms: tuple[Arm, ...]
    variants: dict[str, Variant]
    cells: tuple[Cell, ...]
    refused: tuple[Refused, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)  # command, versions, git, time, notes of matching

    @property
    def folder(self) -> Path:
        """The sweep's own folder."""
        return Path(self.outputs) / FOLDER / self.name

    def config(self, cell: Cell) -> dict[str, Any]:
        """The complete config of a cell."""
        return self.variants[cell.variant].config | {"seed": cell.seed, "outputs": self.outputs}

    def path(self, cell: Cell) -> Path:
        """The cell's run folder."""
        return Path(self.outputs) / cell.run

    def save(self) -> Path:
        """Write plan.json, whole or not at all. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / FILE, asdict(self))
        return self.folder / FILE

    @classmethod
    def load(cls, folder: Path) -> SweepPlan:
        """The plan of a sweep's folder. Raises UserError where there is none or it is damaged."""
        try:
            data = read_json(folder / FILE)
            return cls(
                name=data["name"],
                question=data["question"],
                # The folder may have been moved with its runs.
                outputs=str(folder.absolute().parents[1]),
                arms=tuple(Arm(a["name"], tuple(a["overrides"]), a["levels"]) for a in data["arms"]),
                variants={key: Variant(**value) for key, value in data["variants"].items()},
                cells=tuple(Cell(**cell) for cell in data["cells"]),
                refused=tuple(Refused(r["arm"], r["setting"], tuple(r["reasons"])) for r in data["refused"]),
                facts=data["facts"],
            )
        except FileNotFoundError as error:
            raise UserError(f"{folder} is no sweep: it has no {FILE}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / FILE} is damaged ({error}); run the sweep's command again") from error
