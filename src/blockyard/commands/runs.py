"""`blockyard runs`: list runs, and keep order among them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from blockyard.atomic_files import csv_text
from blockyard.commands._signature import command, functions_of
from blockyard.commands._types import OUTPUTS, Allow, Flag, FlagForm, Outputs, Value, run_names
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
from blockyard.runs.notes import RunNotes, read_notes, write_notes
from blockyard.runs.query import Condition, check_keys, direction, ordered, parse, select
from blockyard.runs.record import RunRecord
from blockyard.runs.store import find
from blockyard.sweep.plan.cell_names import cell_names
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from blockyard.remote.address import Remote
    from blockyard.remote.transfer import Event

SHOWN = 20  # rows of the table where no limit is given
DIFFERING = 5  # families that differ and get a column


def _is_page(text: str) -> bool:
    return text.lower().endswith((".html", ".htm"))


@dataclass(frozen=True)
class Listing:
    """How runs are listed.

    Options:
        sort: by any key, ascending; --sort=-KEY descending
        best: the best first; the runs know whether more or less is better
        columns: what to show; by default sweep and arm, state, start, up to five families that differ, up to three
            options that tell configs apart, the metric, tags
        limit: rows in the table, by default 20; 0 shows all. CSV and JSON hold all unless it is given
        archived: show archived runs too, which are left out otherwise
        csv: print CSV. A text that a spreadsheet would compute, such as =1+1, has an apostrophe in front
        json: print JSON with every metric, choice and the config
        html: write the home page of the folder, by default outputs/index.html: every sweep with its claim and verdict,
            the runs with a search, and any of them side by side; one file that needs no network
        outputs: where the runs are
    """

    sort: Flag[Annotated[str, Value("KEY")]] | None = None
    best: Flag[Annotated[str, Value("METRIC")]] | None = None
    columns: Flag[Annotated[str, Value("KEY,...")]] | None = None
    limit: Flag[Annotated[int, Ge(0)]] | None = None
    archived: Flag[bool] = False
    csv: Flag[bool] = False
    json: Flag[bool] = False
    html: Annotated[str, FlagForm(bare="", follows=_is_page), Value("FILE")] | None = None
    outputs: Outputs = OUTPUTS


RunAndMore = Annotated[str, Value("RUN TEXT", everything="overrides", help="a run, and what is written")]
Conditions = Annotated[str, Value("ADDRESS CONDITION", everything="overrides", help="a storage, and which runs")]
RunNames = Annotated[str, Value("RUN", values=run_names, everything="overrides", help="paths, names, ids, or last")]


@command()
def runs(*conditions: Annotated[str, Value("CONDITION", everything="overrides")], listing: Listing = Listing()) -> None:
    """List runs, the latest first.

    A CONDITION is KEY=VALUE (VALUE may hold * and ?), KEY!=VALUE, or KEY<NUMBER with <, <=, > or >=; all must hold. A
    word alone asks for runs with it in their name. KEY is a metric (test/accuracy), a family (position), an option
    (optimizer.lr), or run, name, sweep, arm, state, reason, started, seconds, steps, parameters, tags, note.

    Examples:
        blockyard runs position=rope 'test/accuracy>0.9' --best test/accuracy
        blockyard runs sweep=quickstart --best test/loss
        blockyard runs state=failed --columns reason,seconds
        blockyard runs --html
        blockyard runs tag vit_digits-6cd717198b/s0 baseline
    """
    if (listing.sort and listing.best) or (listing.csv + listing.json + (listing.html is not None) > 1):
        raise UserError("one of --sort and --best, and one of --csv, --json and --html, can be given")
    if listing.html is not None:
        _write_home(conditions, listing)
        return
    every = cell_names(records(listing.outputs), listing.outputs)
    _check_first(conditions, every)
    selected = select(every, [parse(text) for text in conditions])
    if not listing.archived:
        selected = [record for record in selected if not record.archived]
    columns = _columns(every, selected, conditions, listing)
    if listing.best:
        selected = ordered(selected, listing.best, descending=direction(every, listing.best) == "max")
    elif listing.sort:
        selected = ordered(selected, listing.sort.removeprefix("-"), descending=listing.sort.startswith("-"))
    if listing.json:
        plain = [record.plain() for record in selected[: listing.limit or None]]
        sys.stdout.write(json.dumps(plain, indent=2) + "\n")
    elif listing.csv:
        write_csv(selected[: listing.limit or None], columns)
    else:
        limit = SHOWN if listing.limit is None else listing.limit
        print_table(selected, columns, limit, len(every), listing.outputs)
        for rest in rests_of_deleted(local_path(listing.outputs, "outputs")):
            sys.stderr.write(
                f"blockyard: {printable(str(rest))} is left of a run that was being deleted; "
                "the next `blockyard runs delete` removes it once no process does\n"
            )


def _check_first(conditions: Sequence[str], every: Sequence[RunRecord]) -> None:
    """Raise UserError for a first word that is no action and in the name of no run: `runs list` asks for something."""
    first = conditions[0] if conditions else ""
    actions = [function.subcommand for function in functions_of("runs") if function.subcommand]
    if re.fullmatch(r"[a-z_-]+", first) and not select(every, [parse(first)]):
        raise UserError(
            f"runs {first}: no such action, and no run has {first} in its name{did_you_mean(first, actions)} "
            f"(actions: {', '.join(actions)}; `blockyard runs` alone lists)"
        )


def _write_home(conditions: Sequence[str], listing: Listing) -> None:
    """Write the home page of all runs that meet the conditions; archived ones are behind a switch of the page."""
    if listing.sort or listing.best or listing.columns or listing.limit is not None:
        raise UserError("--html: the page sorts and has all columns; leave --sort, --best, --columns and --limit out")
    from blockyard.report.home.page import write_home

    root = local_path(listing.outputs, "outputs")
    if not root.is_dir():
        raise UserError(f"no folder {root}; give outputs=FOLDER")
    selected = select(cell_names(records(listing.outputs), root), [parse(text) for text in conditions])
    path = local_path(listing.html, "--html") if listing.html else root / "index.html"
    try:
        write_home(path, root, selected)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    sys.stderr.write(f"{printable(str(path))}\n")


def _columns(
    every: Sequence[RunRecord], selected: Sequence[RunRecord], conditions: Sequence[str], listing: Listing
) -> list[str]:
    """Return the keys to show: the named ones, or keys that tell these runs apart. Raises UserError for an unknown one.

    every: all runs, of which one at least has to have each key
    """
    sorted_by = (listing.sort or "").removeprefix("-")
    if listing.columns is not None:
        columns = [name.strip() for name in listing.columns.split(",") if name.strip()]
    else:
        keys = [*(parse(text).key for text in conditions), sorted_by]
        limit = SHOWN if listing.limit is None else listing.limit
        shown = selected if listing.csv else selected[: limit or None]
        columns = default_columns(selected, shown, keys, listing.best)
    columns = [name for name in dict.fromkeys(columns) if name and name != "run"]
    check_keys(every, [*columns, *filter(None, [listing.best, sorted_by])])
    return columns


def default_columns(
    selected: Sequence[RunRecord], shown: Sequence[RunRecord], keys: Sequence[str] = (), metric: str | None = None
) -> list[str]:
    """Return the columns that tell runs apart, with the metric that most of them have.

    shown: the first of the selected runs; keys: further columns
    """
    members = [key for key in ("sweep", "arm") if any(record.value(key) for record in selected)]
    families = _differing(selected)
    options = telling_apart(shown, [*families, *keys])
    return [*members, "state", "started", *families, *options, *keys, metric or _main_metric(selected), "tags"]


def _differing(selected: Sequence[RunRecord]) -> list[str]:
    """Return the families whose choices differ between the runs, the family with the fewest choices first."""
    values: dict[str, set[str]] = {}
    for record in selected:
        for family, choice in record.choices.items():
            values.setdefault(family, set()).add(str(choice))
    differing = [family for family, choices in values.items() if len(choices) > 1]
    return sorted(differing, key=lambda family: len(values[family]))[:DIFFERING]


def _main_metric(selected: Sequence[RunRecord]) -> str:
    """Return the test metric that most runs have, other than the loss where there is another."""
    names: Counter[str] = Counter()
    for record in selected:
        names.update(name for name in record.metrics if name.startswith("test/") and "@" not in name)
    return max(names, key=lambda name: (name != "test/loss", names[name]), default="")


def print_table(selected: Sequence[RunRecord], columns: Sequence[str], limit: int, total: int, outputs: str) -> None:
    """Print the selected runs as a table, at most `limit` of them; 0 prints all."""
    shown = selected[: limit or None]
    rows = table(None, "run", *columns)
    for record in shown:
        rows.add_row(record.run, *(as_text(record.value(key)) for key in columns))
    if shown:
        console().print(rows)
    count = _count(len(selected))
    more = ""
    if len(shown) < len(selected):
        count = f"{len(shown)} of {count}"
        more = "; --limit 0 shows all"
    sys.stdout.write(f"{count} of {total} in {outputs}{more}\n")
    for record in shown:
        if record.damage:
            sys.stderr.write(f"blockyard: {record.run}: {printable(record.damage)}\n")


def _count(runs: int) -> str:
    """Return a number of runs as a text: `1 run`, `2 runs`."""
    return "1 run" if runs == 1 else f"{runs} runs"


def write_csv(selected: Sequence[RunRecord], columns: Sequence[str]) -> None:
    """Print the selected runs as CSV."""
    rows = ([record.run, *(_cell(record.value(key)) for key in columns)] for record in selected)
    sys.stdout.write(csv_text(["run", *columns], rows))


def _cell(value: Any) -> Any:
    """Return a value as CSV holds it: numbers in full, lists as words."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if value is None:
        return ""
    return value


def as_text(value: Any) -> str:
    """Return a value as the table shows it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(_cell(value))
    # A time is shown without its seconds and its zone: 2025-01-31T12:00:05+00:00 as 2025-01-31 12:00.
    if text[10:11] == "T" and text[:4].isdigit():
        return text[:16].replace("T", " ")
    return text


@command(subcommand="tag")
def tag(*run_and_tags: RunAndMore, outputs: Outputs = OUTPUTS) -> None:
    """`runs tag` adds tags to a run."""
    run, notes = _noted("tag", run_and_tags, outputs, lambda notes, tags: notes.tagged(tags))
    sys.stdout.write(f"{run.name}: tags {', '.join(notes.tags) or 'none'}\n")


@command(subcommand="untag")
def untag(*run_and_tags: RunAndMore, outputs: Outputs = OUTPUTS) -> None:
    """`runs untag` takes tags away."""
    run, notes = _noted("untag", run_and_tags, outputs, lambda notes, tags: notes.tagged(remove=tags))
    sys.stdout.write(f"{run.name}: tags {', '.join(notes.tags) or 'none'}\n")


@command(subcommand="note")
def note(*run_and_text: RunAndMore, outputs: Outputs = OUTPUTS) -> None:
    """`runs note` writes a text."""
    run, notes = _noted("note", run_and_text, outputs, lambda notes, texts: replace(notes, note=" ".join(texts)))
    sys.stdout.write(f"{run.name}: {notes.note}\n")


def _noted(
    action: str, arguments: Sequence[str], outputs: str, change: Callable[[RunNotes, list[str]], RunNotes]
) -> tuple[RunFolder, RunNotes]:
    """Change the notes of a run by the texts behind its name, and return both. Raises UserError."""
    _check_named(action, arguments)
    run = find(arguments[0], outputs)
    if len(arguments) == 1:
        noun = "a text" if action == "note" else "a tag"
        raise UserError(f"runs {action} {arguments[0]} needs {noun}")
    check_is_run(run, f"runs {action}")
    with exclusive(run.path, ".notes.lock"):
        notes = change(read_notes(run.path), list(arguments[1:]))
        write_notes(run.path, notes)
    return run, notes


@command(subcommand="rename")
def rename_run(
    *run_and_name: Annotated[str, Value("RUN NAME", everything="overrides")], outputs: Outputs = OUTPUTS
) -> None:
    """A renamed run is NAME-HASH/sSEED and has `name: NAME` in its config.

    Its identity stays, and loggers keep the old name. A cell of a sweep cannot be renamed, because the sweep finds it
    by its name.
    """
    if len(run_and_name) != 2:
        _check_named("rename", run_and_name)
        raise UserError("runs rename takes a run and its new name: blockyard runs rename RUN NAME")
    name, new_name = run_and_name
    run = find(name, outputs)
    check_is_unchanged(run, "runs rename")
    sweeps = _sweeps_with([run])
    if sweeps:
        raise UserError(
            f"runs rename: {run.name} is a cell of {fold(sweeps)}, which finds it by its name; "
            f"`blockyard runs note {run.name} TEXT` or `tag` marks it"
        )
    old = run.name
    sys.stdout.write(f"{old} is now {rename(run, new_name).name}\n")


@command(subcommand="archive")
def archive(  # `--yes` is taken, as by `delete`, though nothing is asked
    *names: RunNames,
    yes: Flag[bool] = False,  # noqa: ARG001
    outputs: Outputs = OUTPUTS,
) -> None:
    """`runs archive` takes a run out of listings. It stays where it is: sweeps, compare and run=NAME find it."""
    _archive("archive", names, outputs)


@command(subcommand="unarchive")
def unarchive(
    *names: RunNames,
    yes: Flag[bool] = False,  # noqa: ARG001
    outputs: Outputs = OUTPUTS,
) -> None:
    """`runs unarchive` puts it back."""
    _archive("unarchive", names, outputs)


def _archive(action: str, names: Sequence[str], outputs: str) -> None:
    """Archive runs or put them back, and print each."""
    folders = _folders(action, names, outputs)
    for run in folders:
        check_is_run(run, f"runs {action}")
    every = [read_notes(run.path) for run in folders]  # all are read before the first is written
    for run, notes in zip(folders, every, strict=True):
        write_notes(run.path, replace(notes, archived=action == "archive"))
        sys.stdout.write(f"{run.name}: {action}d\n")


@command(subcommand="delete")
def delete_runs(*names: RunNames, yes: Flag[bool] = False, outputs: Outputs = OUTPUTS) -> None:
    """A deleted run is gone; cells of a sweep that used it are trained again when the sweep is run.

    Only runs are deleted: folders NAME-HASH/sSEED with the config and the status of that run, reached without a link.
    Whatever else a command line names is refused, and nothing is removed.

    Options:
        yes: delete without asking
    """
    _check_named("delete", names)
    finish_deletions(local_path(outputs, "outputs"))
    folders = _folders("delete", names, outputs)
    for run in folders:
        check_is_unchanged(run, "runs delete")
    busy = [run.name for run in folders if held(run.path)]
    if busy:
        raise UserError(f"{fold(busy)}: a process is running it; nothing was deleted")
    used = _sweeps_with(folders)
    count = _count(len(folders))
    sizes = {run.path: size_of(run) for run in folders}
    total = FolderSize(sum(size.files for size in sizes.values()), sum(size.bytes for size in sizes.values()))
    question = f"delete {count} ({total}): {fold([run.name for run in folders])}"
    if used:
        question += f"; cells of {fold(used)}, which would be trained again"
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"{question}? Without a terminal to ask in, --yes confirms; nothing was deleted")
        if input(f"{question}? [y/N] ").strip().lower() not in ("y", "yes"):
            sys.stdout.write("nothing was deleted\n")
            return
    for run in folders:
        sys.stdout.write(f"deleting {printable(str(run.path))} ({sizes[run.path]})\n")
        delete(run)
    sys.stdout.write(f"{count} deleted\n")


@command(subcommand="push")
def push_runs(*address_and_conditions: Conditions, replace: Flag[bool] = False, outputs: Outputs = OUTPUTS) -> int:
    """`runs push` copies finished and failed runs to a storage, s3://BUCKET/FOLDER or any other that fsspec knows.

    Conditions select runs as in a listing, archived ones included; without one all are copied. A sweep goes along where
    all of its runs do. What is there already is not sent again.

    Options:
        replace: copy over what differs there, or here
    """
    remote, conditions = _remote("push", address_and_conditions)
    from blockyard.remote.push import push
    from blockyard.remote.transfer import check_apart, sweeps_within

    root = local_path(outputs, "outputs")
    every = cell_names(records(root), root)
    selected = select(every, conditions)
    if not selected:
        raise UserError(f"none of the {_count(len(every))} in {outputs} meets the conditions; nothing was copied")
    check_apart(remote, root)
    names = [record.run for record in selected]
    return _transfer(push(remote, root, names, sweeps_within(selected, every), replace=replace), remote.address)


@command(subcommand="pull")
def pull_runs(
    *address_and_conditions: Conditions, replace: Flag[bool] = False, allow: Allow = (), outputs: Outputs = OUTPUTS
) -> int:
    """`runs pull` copies them from there, as from a stranger: checked before they lie in outputs, and nothing is run.

    exit codes of both: 0 all is copied, 1 it broke off, or a run differs or is refused, 2 nothing was copied
    """
    remote, conditions = _remote("pull", address_and_conditions)
    from blockyard.remote.pull import pull
    from blockyard.remote.transfer import check_apart

    root = local_path(outputs, "outputs")
    check_apart(remote, root)
    return _transfer(pull(remote, root, conditions, allow=allow, replace=replace), str(root))


def _remote(action: str, texts: Sequence[str]) -> tuple[Remote, list[Condition]]:
    """Return the storage and the conditions behind it. Raises UserError."""
    if not texts:
        raise UserError(f"runs {action} needs an address: blockyard runs {action} s3://BUCKET/FOLDER [CONDITION ...]")
    from blockyard.remote.address import Remote

    return Remote.open(texts[0]), [parse(text) for text in texts[1:]]


def _transfer(events: Iterator[Event], target: str) -> int:
    """Print each event of a transfer as it comes, and its outcome at the end; return the exit code."""
    from blockyard.remote.address import TransferError
    from blockyard.remote.transfer import Verb

    counts: Counter[Verb] = Counter()
    sweeps = 0
    left: Counter[str] = Counter()
    broken = ""
    try:
        for event in events:
            counts[event.verb] += 1
            left.update(event.left)
            if event.verb is Verb.COPIED and event.name.startswith("sweeps/"):
                sweeps += 1
            if event.verb is Verb.BEGINS:
                sys.stdout.write(printable(f"{event.name}: {event.text}\n"))
                sys.stdout.flush()
            elif event.text:
                sys.stderr.write(printable(f"blockyard: {event.name}: {event.verb.value}: {event.text}\n"))
    except (TransferError, OSError) as error:
        if not counts[Verb.BEGINS]:
            raise UserError(f"{error}; nothing was copied") from error
        broken = str(error)
    copied = _count(counts[Verb.COPIED] - sweeps)
    if sweeps:
        copied += f" and {sweeps} sweep{'s'[: sweeps != 1]}"
    parts = [f"{copied} copied to {target}"]
    for verb in (Verb.THERE, Verb.SKIPPED, Verb.DIFFERS, Verb.REFUSED):
        if counts[verb]:
            parts.append(f"{counts[verb]} {verb.value}")
    sys.stdout.write(printable(f"{', '.join(parts)}\n"))
    if left:
        names = [f"{name} of {_count(count)}" for name, count in left.items()]
        sys.stdout.write(printable(f"not copied: {fold(names)}\n"))
    if counts[Verb.DIFFERS]:
        sys.stderr.write("blockyard: what differs was left as it is; --replace copies over it\n")
    if broken:
        sys.stderr.write(printable(f"blockyard: it broke off: {broken}; the same command goes on\n"))
    return 1 if broken or counts[Verb.DIFFERS] or counts[Verb.REFUSED] else 0


def _check_named(action: str, names: Sequence[str]) -> None:
    """Raise UserError where no run is named."""
    if not names:
        raise UserError(f"runs {action} needs a run: a path, a name with its seed, an id, or last")


def _folders(action: str, names: Sequence[str], outputs: str) -> list[RunFolder]:
    """Return the runs of these names, each once. Raises UserError for none, and for a name that is unclear."""
    _check_named(action, names)
    folders: dict[Path, RunFolder] = {}
    for name in names:
        run = find(name, outputs)
        folders[run.path] = run
    return list(folders.values())


def _sweeps_with(runs: Sequence[RunFolder]) -> list[str]:
    """Return the sweeps in the runs' folders of outputs that have one of the runs as a cell."""
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
