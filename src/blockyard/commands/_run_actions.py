"""What `blockyard runs` does to runs: tags, notes, the archive, and deletion."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blockyard.config.local_path import local_path
from blockyard.errors import UserError, fold, printable
from blockyard.runs.delete import Size, check_is_run, check_is_unchanged, delete, size_of
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import held
from blockyard.runs.notes import read_notes, write_notes
from blockyard.runs.rename import rename
from blockyard.runs.store import find


def act(action: str, arguments: Sequence[str], outputs: str, *, yes: bool) -> int:
    """Carry out one action. Raises UserError, before anything is changed, if a run is unclear or in use."""
    if not arguments:
        raise UserError(f"runs {action} needs a run: a path, a name with its seed, an id, or last")
    if action in ("tag", "untag", "note"):
        run, rest = find(arguments[0], outputs), list(arguments[1:])
        if not rest:
            raise UserError(f"runs {action} {arguments[0]} needs {'a text' if action == 'note' else 'a tag'}")
        check_is_run(run, f"runs {action}")
        notes = read_notes(run.path)
        if action == "note":
            notes = replace(notes, note=" ".join(rest))
        else:
            notes = notes.tagged(rest) if action == "tag" else notes.tagged(remove=rest)
        write_notes(run.path, notes)
        sys.stdout.write(
            f"{run.name}: {notes.note if action == 'note' else 'tags ' + (', '.join(notes.tags) or 'none')}\n"
        )
        return 0
    if action == "rename":
        return _rename(arguments, Path(local_path(outputs, "outputs")), outputs)
    folders = list({run.path: run for run in (find(name, outputs) for name in arguments)}.values())
    for run in folders:
        (check_is_unchanged if action == "delete" else check_is_run)(run, f"runs {action}")
    if action == "delete":
        return _delete(folders, Path(local_path(outputs, "outputs")), yes=yes)
    for run, notes in [(run, read_notes(run.path)) for run in folders]:
        write_notes(run.path, replace(notes, archived=action == "archive"))
        sys.stdout.write(f"{run.name}: {action}d\n")
    return 0


def _delete(runs: Sequence[RunFolder], outputs: Path, *, yes: bool) -> int:
    busy = [run.name for run in runs if held(run.path)]
    if busy:
        raise UserError(f"{fold(busy)}: a process is running it; nothing was deleted")
    used = _sweeps_with(runs, outputs)
    count = f"{len(runs)} run{'s'[: len(runs) != 1]}"
    sizes = {run.path: size_of(run) for run in runs}
    whole = Size(sum(size.files for size in sizes.values()), sum(size.bytes for size in sizes.values()))
    what = f"delete {count} ({whole}): {fold([run.name for run in runs])}"
    if used:
        what += f"; cells of {fold(used)}, which would be trained again"
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"{what}? Without a terminal to ask in, --yes confirms; nothing was deleted")
        if input(f"{what}? [y/N] ").strip().lower() not in ("y", "yes"):
            sys.stdout.write("nothing was deleted\n")
            return 0
    for run in runs:
        sys.stdout.write(f"deleting {printable(str(run.path))} ({sizes[run.path]})\n")
        delete(run)
    sys.stdout.write(f"{count} deleted\n")
    return 0


def _rename(arguments: Sequence[str], outputs: Path, where: str) -> int:
    if len(arguments) != 2:
        raise UserError("runs rename takes a run and its new name: blockyard runs rename RUN NAME")
    run = find(arguments[0], where)
    check_is_unchanged(run, "runs rename")
    if used := _sweeps_with([run], outputs):
        raise UserError(
            f"runs rename: {run.name} is a cell of {fold(used)}, which finds it by its name; "
            f"`blockyard runs note {run.name} TEXT` or `tag` marks it"
        )
    old = run.name
    sys.stdout.write(f"{old} is now {rename(run, arguments[1]).name}\n")
    return 0


def _sweeps_with(runs: Sequence[RunFolder], outputs: Path) -> list[str]:
    """The sweeps in `outputs` with a cell that is one of the runs."""
    from blockyard.sweep.plan.sweep_plan import SweepPlan

    paths = {run.path for run in runs}
    sweeps = []
    for file in sorted(outputs.glob("sweeps/*/plan.json")):
        try:
            plan = SweepPlan.load(file.parent)
        except UserError:
            continue  # `blockyard sweep` names a damaged plan; nothing can be trained again from it
        if any(plan.path(cell).absolute() in paths for cell in plan.cells):
            sweeps.append(f"sweep {plan.name}")
    return sweeps
