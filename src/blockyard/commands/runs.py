"""blockyard runs [CONDITION ...] [--sort KEY | --best METRIC] [--columns KEY,...] [--limit N]
              [--csv | --json | --html [FILE]]
blockyard runs tag|untag RUN TAG...
blockyard runs note RUN TEXT
blockyard runs rename RUN NAME
blockyard runs archive|unarchive|delete RUN... [--yes]

List runs, the latest first, and keep order among them.

A CONDITION is KEY=VALUE (VALUE may hold * and ?), KEY!=VALUE, or KEY<NUMBER with <, <=, > or >=; all must hold. A word
alone asks for runs with it in their name. KEY is a metric (test/accuracy), a family (position), an option
(optimizer.lr), or run, name, sweep, arm, state, reason, started, seconds, steps, parameters, tags, note.

  --sort KEY       by any key, ascending; --sort=-KEY descending
  --best METRIC    the best first; the runs know whether more or less is better
  --columns K,...  what to show; default: sweep and arm, state, start, up to five families that differ, up to three
                   options that tell configs apart, the metric, tags
  --limit N        rows in the table, default 20; 0 shows all. CSV and JSON hold all unless it is given
  --archived       archived runs too, which are left out otherwise
  --csv, --json    to standard output; JSON with every metric, choice and the config. In CSV a text that a spreadsheet
                   would compute, such as =1+1, has an apostrophe in front
  --html [FILE]    write the home page of the folder, by default outputs/index.html: every sweep with its claim and
                   verdict, the runs with a search, and any of them side by side; one file that needs no network
  --yes            delete without asking
  outputs=FOLDER   where the runs are

A renamed run is NAME-HASH/sSEED and has `name: NAME` in its config; its identity stays, and loggers keep the old name.
A cell of a sweep cannot be renamed, because the sweep finds it by its name.

An archived run stays where it is: sweeps, compare and run=NAME find it. A deleted run is gone; cells of a sweep that
used it are trained again when the sweep is run. Only runs are deleted: folders NAME-HASH/sSEED with the config and the
status of that run, reached without a link. Whatever else a command line names is refused, and nothing is removed.

Examples:
  blockyard runs position=rope 'test/accuracy>0.9' --best test/accuracy
  blockyard runs sweep=quickstart --best test/loss
  blockyard runs state=failed --columns reason,seconds
  blockyard runs --html
  blockyard runs tag vit_digits-6cd717198b/s0 baseline
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockyard.atomic_files import csv_text
from blockyard.commands._args import Args, Parser, flag_type
from blockyard.config.option_text import integer
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError, did_you_mean, fold, printable
from blockyard.report.home.telling_apart import telling_apart
from blockyard.runs.folder import RunFolder
from blockyard.runs.housekeeping import (
    FolderSize,
    check_is_run,
    check_is_unchanged,
    delete,
    finish_deletions,
    rename,
    rests_of_deleted,
    size_of,
)
from blockyard.runs.index import records
from blockyard.runs.lock import exclusive, held
from blockyard.runs.notes import read_notes, write_notes
from blockyard.runs.query import check_keys, direction, ordered, parse, select
from blockyard.runs.record import RunRecord
from blockyard.runs.store import find
from blockyard.sweep.plan.cell_names import cell_names
from blockyard.terminal import console, table


def print_table(selected: Sequence[RunRecord], columns: Sequence[str], limit: int, total: int, outputs: str) -> None:
    """Print the selected runs as a table, at most `limit` of them; 0 prints all."""
    shown = selected[: limit or None]
    rows = table(None, "run", *columns)
    for record in shown:
        rows.add_row(record.run, *(_text(record.value(key)) for key in columns))
    if shown:
        console().print(rows)
    more = "; --limit 0 shows all" if len(shown) < len(selected) else ""
    which = f"{len(shown)} of {len(selected)}" if more else str(len(selected))
    sys.stdout.write(f"{which} run{'s'[: len(selected) != 1]} of {total} in {outputs}{more}\n")
    for record in shown:
        if record.damage:
            sys.stderr.write(f"blockyard: {record.run}: {printable(record.damage)}\n")


def write_csv(selected: Sequence[RunRecord], columns: Sequence[str]) -> None:
    """Print the selected runs as CSV."""
    rows = ([record.run, *(_cell(record.value(key)) for key in columns)] for record in selected)
    sys.stdout.write(csv_text(["run", *columns], rows))


def _cell(value: Any) -> Any:
    """A value as CSV holds it: numbers in full, lists as words."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else value


def _text(value: Any) -> str:
    """A value as the table shows it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(_cell(value))
    return text[:16].replace("T", " ") if text[10:11] == "T" and text[:4].isdigit() else text


SHOWN = 20  # rows of the table where no limit is given
ACTIONS = ("tag", "untag", "note", "rename", "archive", "unarchive", "delete")
_DIFFERING = 5  # families that differ and get a column
KEYS = ("outputs",)


@dataclass
class RunsArgs(Args):
    """The command line of `blockyard runs`."""

    sort: str | None = None
    best: str | None = None
    columns: str | None = None
    limit: int | None = None
    archived: bool = False
    csv: bool = False
    json: bool = False
    html: str | None = None
    yes: bool = False


def run(arguments: Sequence[str]) -> int:
    """Print the runs, or carry out an action on some of them."""
    args = parser().read(_with_html(arguments), RunsArgs)
    outputs = args.pop("outputs", "outputs") or "outputs"
    if args.overrides and args.overrides[0] in ACTIONS:
        return act(args.overrides[0], args.overrides[1:], outputs, yes=args.yes)
    if args.yes:
        raise UserError("--yes is for `blockyard runs delete RUN...`")
    if (args.sort and args.best) or (args.csv + args.json + (args.html is not None) > 1):
        raise UserError("one of --sort and --best, and one of --csv, --json and --html, can be given")
    if args.html is not None:
        return _write_home(args, str(outputs))
    every = cell_names(records(outputs), str(outputs))
    _check_first(args.overrides, every)
    selected = [
        each for each in select(every, [parse(text) for text in args.overrides]) if args.archived or not each.archived
    ]
    columns = _columns(every, selected, args)
    if args.best:
        selected = ordered(selected, args.best, descending=direction(every, args.best) == "max")
    elif args.sort:
        selected = ordered(selected, args.sort.removeprefix("-"), descending=args.sort.startswith("-"))
    if args.json:
        sys.stdout.write(json.dumps([each.plain() for each in selected[: args.limit or None]], indent=2) + "\n")
    elif args.csv:
        write_csv(selected[: args.limit or None], columns)
    else:
        print_table(selected, columns, SHOWN if args.limit is None else args.limit, len(every), str(outputs))
        for rest in rests_of_deleted(local_path(outputs, "outputs")):
            sys.stderr.write(
                f"blockyard: {printable(str(rest))} is left of a run that was being deleted; "
                "the next `blockyard runs delete` removes it once no process does\n"
            )
    return 0


def _check_first(conditions: Sequence[str], every: Sequence[RunRecord]) -> None:
    """Raise UserError for a first word that is no action and in the name of no run: `runs list` asks for something."""
    first = conditions[0] if conditions else ""
    if re.fullmatch(r"[a-z_-]+", first) and not select(every, [parse(first)]):
        raise UserError(
            f"runs {first}: no such action, and no run has {first} in its name{did_you_mean(first, ACTIONS)} "
            f"(actions: {', '.join(ACTIONS)}; `blockyard runs` alone lists)"
        )


def parser() -> Parser:
    """The flags of the command."""
    flags = Parser("runs")
    for flag in ("--sort", "--best", "--columns"):
        flags.add_argument(flag)
    flags.add_argument("--html")
    flags.add_argument("--limit", type=flag_type(integer()))
    for flag in ("--archived", "--csv", "--json", "--yes"):
        flags.add_argument(flag, action="store_true")
    return flags


def _with_html(arguments: Sequence[str]) -> list[str]:
    """The arguments with the file of --html joined to it, which may be left out."""
    joined: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--html":
            is_file = bool(rest) and rest[0].lower().endswith((".html", ".htm"))
            argument = f"--html={rest.pop(0) if is_file else ''}"
        joined.append(argument)
    return joined


def _write_home(args: RunsArgs, outputs: str) -> int:
    """Write the home page of all runs that meet the conditions; archived ones are behind a switch of the page."""
    if args.sort or args.best or args.columns or args.limit is not None:
        raise UserError("--html: the page sorts and has all columns; leave --sort, --best, --columns and --limit out")
    from blockyard.report.home.page import write_home

    root = local_path(outputs, "outputs")
    if not root.is_dir():
        raise UserError(f"no folder {root}; give outputs=FOLDER")
    selected = select(cell_names(records(outputs), root), [parse(text) for text in args.overrides])
    path = local_path(args.html, "--html") if args.html else root / "index.html"
    try:
        write_home(path, root, selected)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    sys.stderr.write(f"{printable(str(path))}\n")
    return 0


def _columns(every: Sequence[RunRecord], selected: Sequence[RunRecord], args: RunsArgs) -> list[str]:
    """The keys to show: those asked for, or those that tell these runs apart. Raises UserError for an unknown one."""
    if args.columns is not None:
        columns = [name.strip() for name in args.columns.split(",") if name.strip()]
    else:
        metric = args.best or _main_metric(selected)
        keys = [parse(text).key for text in args.overrides] + [(args.sort or "").removeprefix("-")]
        members = [key for key in ("sweep", "arm") if any(record.value(key) for record in selected)]
        families = _differing(selected)
        shown = selected if args.csv else selected[: SHOWN if args.limit is None else args.limit or None]
        options = telling_apart(shown, [*families, *keys])
        columns = [*members, "state", "started", *families, *options, *keys, metric, "tags"]
    columns = [name for name in dict.fromkeys(columns) if name and name != "run"]
    check_keys(every, [*columns, *filter(None, [args.best, (args.sort or "").removeprefix("-")])])
    return columns


def _differing(selected: Sequence[RunRecord]) -> list[str]:
    """The families whose choices differ between the runs, those with the fewest choices first."""
    values: dict[str, set[str]] = {}
    for record in selected:
        for family, choice in record.choices.items():
            values.setdefault(family, set()).add(str(choice))
    differing = [family for family, choices in values.items() if len(choices) > 1]
    return sorted(differing, key=lambda family: len(values[family]))[:_DIFFERING]


def _main_metric(selected: Sequence[RunRecord]) -> str:
    """The test metric that most runs have, other than the loss where there is another."""
    names = Counter(name for each in selected for name in each.metrics if name.startswith("test/") and "@" not in name)
    return max(names, key=lambda name: (name != "test/loss", names[name]), default="")


# What `blockyard runs` does to runs: tags, notes, the archive, and deletion.


def act(action: str, arguments: Sequence[str], outputs: str, *, yes: bool) -> int:
    """Carry out one action. Raises UserError, before anything is changed, if a run is unclear or in use."""
    if not arguments:
        raise UserError(f"runs {action} needs a run: a path, a name with its seed, an id, or last")
    if action in ("tag", "untag", "note"):
        run, rest = find(arguments[0], outputs), list(arguments[1:])
        if not rest:
            raise UserError(f"runs {action} {arguments[0]} needs {'a text' if action == 'note' else 'a tag'}")
        check_is_run(run, f"runs {action}")
        with exclusive(run.path, ".notes.lock"):
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
        return _rename(arguments, outputs)
    if action == "delete":
        finish_deletions(local_path(outputs, "outputs"))
    folders = list({run.path: run for run in (find(name, outputs) for name in arguments)}.values())
    for run in folders:
        (check_is_unchanged if action == "delete" else check_is_run)(run, f"runs {action}")
    if action == "delete":
        return _delete(folders, yes=yes)
    for run, notes in [(run, read_notes(run.path)) for run in folders]:
        write_notes(run.path, replace(notes, archived=action == "archive"))
        sys.stdout.write(f"{run.name}: {action}d\n")
    return 0


def _delete(runs: Sequence[RunFolder], *, yes: bool) -> int:
    busy = [run.name for run in runs if held(run.path)]
    if busy:
        raise UserError(f"{fold(busy)}: a process is running it; nothing was deleted")
    used = _sweeps_with(runs)
    count = f"{len(runs)} run{'s'[: len(runs) != 1]}"
    sizes = {run.path: size_of(run) for run in runs}
    whole = FolderSize(sum(size.files for size in sizes.values()), sum(size.bytes for size in sizes.values()))
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


def _rename(arguments: Sequence[str], outputs: str) -> int:
    if len(arguments) != 2:
        raise UserError("runs rename takes a run and its new name: blockyard runs rename RUN NAME")
    run = find(arguments[0], outputs)
    check_is_unchanged(run, "runs rename")
    if used := _sweeps_with([run]):
        raise UserError(
            f"runs rename: {run.name} is a cell of {fold(used)}, which finds it by its name; "
            f"`blockyard runs note {run.name} TEXT` or `tag` marks it"
        )
    old = run.name
    sys.stdout.write(f"{old} is now {rename(run, arguments[1]).name}\n")
    return 0


def _sweeps_with(runs: Sequence[RunFolder]) -> list[str]:
    """The sweeps in the runs' folders of outputs with a cell that is one of the runs."""
    from blockyard.sweep.plan.sweep_plan import SweepPlan

    paths = {run.path for run in runs}
    sweeps = []
    plans = {file for path in paths for file in path.parents[1].glob("sweeps/*/plan.json")}
    for file in sorted(plans):
        try:
            plan = SweepPlan.load(file.parent)
        except UserError:
            continue  # `blockyard sweep` names a damaged plan; nothing can be trained again from it
        if any(plan.path(cell).absolute() in paths for cell in plan.cells):
            sweeps.append(f"sweep {plan.name}")
    return sweeps
