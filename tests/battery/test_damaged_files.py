"""Damaged, foreign, hostile and special files in place of every file of a run and of a sweep.

A command either goes on, says what it found and ends with the right bits, or it refuses with one message that names
the file. Nothing hangs, no code of a file is executed, nothing is left over.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import pytest

from blockyard.runs.folder import RunFolder
from tests.battery import damaged_runs
from tests.battery.cases import battery, cases
from tests.battery.damage import DAMAGES, TRAINING, WEIGHTS, Damage
from tests.battery.damaged_runs import Result
from tests.battery.killed_runs import _same
from tests.support.engine_runs import state

pytestmark = battery("damaged_files")

PARTS = 160


class Case(NamedTuple):
    """A damage to a file of a folder of some kind, and the command that then runs there."""

    kind: str
    file: str
    damage: str
    command: str

    def __str__(self) -> str:
        return f"{self.command}: {self.file} {self.damage}"


def _cases(kind: str, file: str, command: str, damages: dict[str, Damage], *, one_in: int = 1) -> list[Case]:
    """One case in `one_in` of a command; another command begins elsewhere."""
    first = sum(map(ord, command)) % one_in
    return [Case(kind, file, damage, command) for damage in list(damages)[first::one_in]]


ALL_DAMAGES = DAMAGES | WEIGHTS | TRAINING
CASES = [
    *_cases("killed", "checkpoints/last.ckpt", "train", ALL_DAMAGES),
    *_cases("killed", "checkpoints/best.ckpt", "resume", DAMAGES, one_in=3),
    *_cases("killed", "checkpoints/previous.ckpt", "resume", DAMAGES, one_in=3),
    *_cases("killed", "run.json", "train", DAMAGES, one_in=2),
    *_cases("killed", "run.json", "resume", DAMAGES, one_in=3),
    *_cases("killed", "status.json", "train", DAMAGES, one_in=2),
    *_cases("killed", "metrics.csv", "train", DAMAGES),
    *_cases("killed", "config.yaml", "train", DAMAGES, one_in=2),
    *_cases("done", "status.json", "train", DAMAGES, one_in=3),
    *(
        case
        for file in ("checkpoints/best.ckpt", "config.yaml", "run.json", "summary.json")
        for case in _cases("done", file, "eval", DAMAGES | WEIGHTS if "ckpt" in file else DAMAGES, one_in=2)
    ),
    *(
        case
        for file in ("config.yaml", "run.json", "summary.json", "status.json", "metrics.csv")
        for case in _cases("done", file, "compare", DAMAGES, one_in=3)
    ),
    *_cases("text", "tokenizer.json", "generate", DAMAGES),
    *_cases("text", "tokenizer.json", "eval", DAMAGES, one_in=3),
    *_cases("sweep", "sweeps/tiny/plan.json", "sweep", DAMAGES, one_in=3),
    *_cases("sweep", "sweeps/tiny/plan.json", "compare", DAMAGES, one_in=2),
    *_cases("sweep", "sweeps/tiny/comparison.json", "sweep", DAMAGES, one_in=5),
    *_cases("sweep", "summary.json", "compare", DAMAGES, one_in=3),
    *_cases("sweep", "summary.json", "sweep", DAMAGES, one_in=5),
    *_cases("search", "sweeps/tiny/search.db", "sweep", DAMAGES, one_in=3),
]
# Files that a command has no use for, or makes anew from others without loss: a word about them is not needed.
UNREAD = {
    ("eval", "summary.json", ""),
    ("train", "metrics.csv", "without its end"),  # as a kill leaves it
    # Its last lines are options of the trainer that change no result; a run that goes on writes them again.
    ("train", "config.yaml", "without its end"),
    ("eval", "config.yaml", "without its end"),
    ("eval", "status.json", ""),
    ("compare", "metrics.csv", ""),
    ("compare", "run.json", "missing"),
    ("sweep", "comparison.json", ""),
    ("eval", "tokenizer.json", "missing"),
    ("sweep", "plan.json", "missing"),
    ("sweep", "search.db", "missing"),
    ("resume", "best.ckpt", "missing"),
    ("resume", "previous.ckpt", "missing"),
    ("train", "last.ckpt", "missing"),
}


@functools.cache
def _base(folder: Path, kind: str) -> Path:
    base = folder / kind / "base"
    base.mkdir(parents=True)
    return damaged_runs.make(kind, base)


@functools.cache
def _clean(folder: Path, kind: str, command: str) -> tuple[Path, Result]:
    """The folder and the answer where nothing is damaged."""
    copied = damaged_runs.copy(_base(folder, kind), folder / kind / f"clean-{command.replace(' ', '-')}")
    (result,) = damaged_runs.run([copied], [damaged_runs.arguments_of(command, kind)])
    assert (result.code, damaged_runs.harmless(copied, result)) == (0, []), result
    return copied, result


def _path(folder: Path, file: str) -> Path:
    """The file in a folder: of a sweep, or of the first of its runs."""
    if file.startswith("sweeps/"):
        return folder / "outputs" / file
    return min(folder.glob("outputs/*/s0/config.yaml")).parent / file


def _other(folder: Path, case: Case) -> Path:
    """A file of the same name, of another run."""
    kind = {"text": "done", "search": "sweep"}.get(case.kind, "text")
    name = "plan.json" if case.file.endswith((".db", "comparison.json")) else Path(case.file).name
    return next(_base(folder, kind).rglob(name), Path(__file__))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the runs that all tests share."""
    return tmp_path_factory.mktemp("damage")


@pytest.mark.full
@pytest.mark.parametrize("part", cases(range(PARTS), short=1))
def test_a_damaged_file_is_named_and_does_no_harm(
    folder: Path, part: int, record_property: pytest.RecordProperty
) -> None:
    mine = CASES[part * len(CASES) // PARTS : (part + 1) * len(CASES) // PARTS]  # neighbours share a folder
    folders = []
    for number, case in enumerate(mine):
        copied = damaged_runs.copy(_base(folder, case.kind), folder / case.kind / f"{part}-{number}")
        ALL_DAMAGES[case.damage](_path(copied, case.file), _other(folder, case))
        folders.append(copied)
    results = damaged_runs.run(folders, [damaged_runs.arguments_of(case.command, case.kind) for case in mine])
    wrong = {
        str(case): [*problems, str(result)]
        for case, copied, result in zip(mine, folders, results, strict=True)
        if (problems := damaged_runs.harmless(copied, result) + _problems(folder, case, copied, result))
    }
    for copied in folders:
        damaged_runs.remove(copied)
    assert not wrong, "\n".join(f"{case}: {', '.join(problems)}" for case, problems in wrong.items())
    record_property("cases", len(mine))


def _problems(folder: Path, case: Case, copied: Path, result: Result) -> list[str]:
    name = Path(case.file).name
    named = name in result.out + result.err
    if name == "config.yaml" and "no runs under" in result.err:  # by definition: a run is a folder that has one
        named = True
    if result.code:
        messages = [line for line in result.err.splitlines() if line.startswith("blockyard: ") or "failed: " in line]
        return ([] if named else [f"{name} is not named"]) + ([] if len(messages) == 1 else [f"messages: {messages}"])
    whole, clean = _clean(folder, case.kind, case.command)
    problems = []
    unread = {(case.command, name, case.damage), (case.command, name, "")} & UNREAD
    if not (named or unread or "flip" in case.damage):
        problems.append("not a word about it")
    if case.command in ("train", "resume"):
        return problems + _other_bits(case, copied, whole)
    if case.command == "sweep":
        return problems + ([] if _figures(copied) == _figures(whole) or named else ["other figures"])
    return problems + ([] if result.out == clean.out or (named and case.command == "compare") else ["another answer"])


def _other_bits(case: Case, copied: Path, whole: Path) -> list[str]:
    """In what the run differs from one that nobody disturbed."""
    ours, theirs = (RunFolder.open(min(each.glob("outputs/*/s0/config.yaml")).parent) for each in (copied, whole))
    problems = [] if ours.status.state == "done" else [f"it is {ours.status}"]
    for checkpoint in ("last.ckpt", "best.ckpt"):
        left, right = state(ours, checkpoint), state(theirs, checkpoint)
        if left.keys() != right.keys() or not all(_same(left[key], right[key]) for key in left):
            problems.append(f"other weights in {checkpoint}")
    if case.file != "metrics.csv" and ours.metrics.rows() != theirs.metrics.rows():
        problems.append("other metrics")
    if case.file == "metrics.csv" and ours.metrics.rows()[-1] != theirs.metrics.rows()[-1]:
        problems.append("the last row of the metrics is another")
    return problems


def _figures(copied: Path) -> dict[str, object]:
    from blockyard.atomic_files import read_json

    values: dict[str, object] = {}
    for path in copied.glob("outputs/*/s0"):
        try:
            values[path.parent.name] = read_json(path / "summary.json")["metrics"]
        except (OSError, ValueError, TypeError):
            values[path.parent.name] = None
    return values
