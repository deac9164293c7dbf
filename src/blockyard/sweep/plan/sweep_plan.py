"""The frozen plan of a sweep: every cell is composed before the first one starts.

    outputs/sweeps/<name>/
      plan.json         this plan; when the file changes, the old one becomes plan-<time>.json
      comparison.json   the comparison of the arms
      report.html       the report page
      search.db         Optuna's storage, where the file has a search

A cell is a run folder, addressed by the hash of its config and by its seed. So a cell that any sweep has run
before is done already, and adding seeds or arms reuses all finished runs. A run of `blockyard train` counts
too if it sets the precision that the sweep fixes.
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from blockyard.atomic_files import read_json, write_text
from blockyard.config.tree import Node
from blockyard.errors import UserError
from blockyard.runs.provenance import GitState, HostFacts
from blockyard.sweep.cells import Arm, Cell, Refused, Setting, Variant, cell_name
from blockyard.sweep.plan import compact_json
from blockyard.sweep.plan.cell_settings import with_run_name, with_split
from blockyard.sweep.spec.keys import Search
from blockyard.terminal import notebook_table

if TYPE_CHECKING:
    from blockyard.sweep.plan.sizes import LadderSizes, MatchedSizes

FILE = "plan.json"
FOLDER = "sweeps"


class MetricFacts(TypedDict, total=False):
    """The metric by which the arms are compared.

    validation: the metric that chooses settings
    direction: max or min, of the comparison
    validation_direction: of the metric that chooses; it differs for outcomes of whole runs and for costs, and plans of
        earlier versions lack it
    """

    name: str
    validation: str
    direction: str
    validation_direction: str


class TrialRecord(TypedDict):
    """One trial in plan.json.

    value: the mean over its seeds, each in `values`
    run: the folder of the first seed
    curve: the values of the first seed that the pruner saw
    """

    number: int
    state: str
    setting: Setting
    value: float | None
    run: str | None
    values: dict[str, float]
    reason: str | None
    curve: list[float | None]


class ArmTrials(TypedDict):
    """The trials of an arm. chosen: the variant that won; None where no trial is complete"""

    chosen: str | None
    trials: list[TrialRecord]


class SearchFacts(TypedDict):
    """The settings of a search. metric: on validation; direction: max or min; seed: of all trials"""

    trials: int
    sampler: str
    pruner: str
    metric: str
    direction: str
    seed: int


class SearchRecord(SearchFacts):
    """A search that has ended."""

    arms: dict[str, ArmTrials]


class Amendment(TypedDict):
    """A change of the question after results of it were known: of which keys, after how many finished cells."""

    time: str | None
    keys: list[str]
    finished: int


class AskedFacts(TypedDict):
    """The registration of a question.

    hash: the SHA-256 of the question, its claim aside, and its arms; time: since when the plan has this hash
    finished: cells of the plan that had finished by then; None for a plan of an earlier release
    amendments: the earlier changes, the oldest first
    """

    hash: str
    time: str | None
    finished: int | None
    amendments: list[Amendment]


class ConfirmsFacts(TypedDict):
    """The answer that a plan confirms on fresh seeds: the name, the verdict and the seeds of the first sweep."""

    sweep: str
    verdict: str
    seeds: list[int]


class PlanFacts(TypedDict, total=False):
    """The origin of a plan. One of an earlier release lacks later keys.

    time, command, folder, versions, git, host: see `runs.provenance`
    overrides, config_dirs: of the command line
    file: the sweep file's path
    notes: the decisions of the planner
    remarks: of `check` on the configs
    search: the trials, once they have ended
    match, ladder: the sizes that were solved for
    asked: the registration of the question, set when the plan is stored
    confirms: the answer that it confirms, of a plan on fresh seeds
    """

    time: str
    command: list[str] | str
    folder: str
    versions: dict[str, str]
    git: GitState | None
    host: HostFacts
    overrides: list[str]
    file: str
    config_dirs: list[str]
    metric: MetricFacts
    notes: list[str]
    remarks: list[str]
    match: MatchedSizes
    ladder: LadderSizes
    search: SearchRecord
    asked: AskedFacts
    confirms: ConfirmsFacts


@dataclass(frozen=True)
class SweepPlan:
    """The frozen plan of a sweep.

    question: the sweep file's content as plain data, defaults included; `base` with the command line's overrides
    outputs: the folder of all runs; the sweep's own is `folder`
    cells: all that may run; for a tuned sweep `tune.cells_of_tuning` selects the ones that do
    facts: its origin
    """

    name: str
    question: dict[str, Any]
    outputs: str
    arms: tuple[Arm, ...]
    variants: dict[str, Variant]
    cells: tuple[Cell, ...]
    refused: tuple[Refused, ...] = ()
    facts: PlanFacts = field(default_factory=PlanFacts)

    def _repr_html_(self) -> str:
        """Return the arms with their overrides and numbers of cells, for a notebook."""
        rows = []
        for arm in self.arms:
            cells = sum(self.variants[cell.variant].arm == arm.name for cell in self.cells)
            refused = sum(refusal.arm == arm.name for refusal in self.refused)
            rows.append([arm.name, " ".join(compact_json.without_secrets(list(arm.overrides))), cells, refused or ""])
        title = f"plan {self.name}: {len(self.cells)} cells of {len(self.arms)} arms"
        return notebook_table(title, ["arm", "overrides", "cells", "refused"], rows, [self.question.get("claim")])

    @property
    def folder(self) -> Path:
        """The sweep's own folder."""
        return Path(self.outputs) / FOLDER / self.name

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metric that is compared and of the one that chooses settings."""
        metric = self.facts.get("metric") or MetricFacts()
        return tuple(metric[key] for key in ("name", "validation") if key in metric)

    @property
    def search(self) -> Search:
        """The search of a sweep file that has one."""
        search = self.question["search"]
        assert search is not None
        return search

    def config(self, cell: Cell) -> Node:
        """Return a copy of the complete config of a cell. A logger names the run after arm and seed."""
        variant = self.variants[cell.variant]
        config = copy.deepcopy(variant.config) | {"seed": cell.seed, "outputs": self.outputs}
        if self.question.get("resplit"):
            config = with_split(config, cell.seed)
        return with_run_name(config, cell_name(variant.arm, variant.setting, cell.seed))

    def path(self, cell: Cell) -> Path:
        """Return the cell's run folder."""
        return Path(self.outputs) / cell.run

    def save(self) -> Path:
        """Write plan.json atomically and without secrets. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        plain = {
            "name": self.name,
            "outputs": self.outputs,
            "question": self.question,
            "arms": [{"name": arm.name, "overrides": arm.overrides, "levels": arm.levels} for arm in self.arms],
            "refused": [asdict(refused) for refused in self.refused],
            "facts": self.facts,
            **compact_json.pack(self.variants.values(), self.cells),
        }
        write_text(self.folder / FILE, json.dumps(compact_json.without_secrets(plain), separators=(",", ":")) + "\n")
        return self.folder / FILE

    @classmethod
    def load(cls, folder: Path, file: str = FILE) -> SweepPlan:
        """Load the plan of a sweep's folder, or an older one there. Raises UserError where it is missing or damaged."""
        try:
            data = read_json(folder / file)
            return cls(
                name=data["name"],
                question=data["question"],
                # From the path, because the folder may have moved together with its runs.
                outputs=str(folder.absolute().parents[1]),
                arms=tuple(Arm(arm["name"], tuple(arm["overrides"]), arm["levels"]) for arm in data["arms"]),
                variants={variant.key: variant for variant in compact_json.variants(data)},
                cells=tuple(Cell(*cell) for cell in compact_json.cells(data)),
                refused=tuple(
                    Refused(record["arm"], record["setting"], tuple(record["reasons"])) for record in data["refused"]
                ),
                facts=data["facts"],
            )
        except FileNotFoundError as error:
            raise UserError(f"{folder} is not a sweep's folder: it has no {file}") from error
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"{folder / file} is damaged ({error}); run the sweep's command again") from error
