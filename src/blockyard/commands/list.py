"""`blockyard list`: list the choices of families."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from blockyard.atomic_files import read_json
from blockyard.commands._signature import command
from blockyard.commands._types import ConfigDirs, Flag, Value, check_config_dirs, overrides_of
from blockyard.config.choices import catalog
from blockyard.errors import UserError, did_you_mean
from blockyard.sweep.spec.locate import shipped_folders, sweep_names, verdicts_file
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from rich.table import Table

SWEEPS = "sweeps"


def _completed(before: Sequence[str], typed: str) -> list[str]:
    overrides = overrides_of(catalog.run_keys(), typed) if "--compatible" in before else []
    return [*catalog.groups(), SWEEPS, *overrides]


@command()
def list_choices(
    *families: Annotated[str, Value("FAMILY", values=_completed, everything="overrides")],
    compatible: Flag[bool] = False,
    config_dirs: ConfigDirs = (),
) -> None:
    """List the choices of every family, or of the named ones, with one line and the source of each.

    Beside choices of installed packages and of folders of your own, it also shows where each comes from. `list sweeps`
    shows the sweep files in sweeps/ and the shipped ones: the claim of each, and the recorded verdict on a shipped one.

    Options:
        families: also sweeps; with --compatible also overrides, key=value
        compatible: show only the choices that `blockyard check` accepts with the given overrides, each in place of the
            family's own choice

    Examples:
        blockyard list position
        blockyard list sweeps
        blockyard list token_mixer --compatible experiment=gpt_code_small position=rope
    """
    folders, groups = check_config_dirs(config_dirs, families), catalog.groups()
    overrides = [text for text in families if "=" in text]
    names = []
    for text in families:
        singular = text.removesuffix("s")
        if singular in groups:
            names.append(singular)
        elif "=" not in text:
            names.append(text)
    for name in names:
        if name not in (*groups, *catalog.OF_SOURCE, SWEEPS):
            raise UserError(_unknown_family(name, groups))
    if overrides and not compatible:
        raise UserError(f"{overrides[0]}: list takes overrides with --compatible only")
    if compatible:
        from blockyard.config.compose import compose

        # These overrides are wrong whatever else is chosen.
        if issues := compose(overrides, config_dirs).issues:
            raise UserError("; ".join(map(str, issues)))
    screen = console()
    for family in names or (catalog.families() if compatible else groups):
        if family == SWEEPS:
            screen.print(_sweeps())
            screen.print()
            continue
        choices = catalog.choices(family, folders)
        if compatible:
            accepted = _accepted(family, list(choices), overrides, config_dirs)
            choices = {name: choices[name] for name in accepted}
        origins = [catalog.origin(choice) for choice in choices.values()]
        own = len({*origins}) > 1  # with choices of other packages or folders
        rows = table(family, "choice", "what it is", *(["from"] if own else []), "source")
        for choice, origin in zip(choices.values(), origins, strict=True):
            rows.add_row(choice.name, choice.summary, *([origin] if own else []), choice.source)
        screen.print(rows)
        screen.print()


def _unknown_family(name: str, groups: Sequence[str]) -> str:
    """Return the message about an unknown family, which may be the name of a choice."""
    from blockyard.config.overrides import meant_by

    if choices := meant_by(name):
        return f"{name}: not a family but a choice; see `blockyard explain {choices[0]}`"
    hint = did_you_mean(name, (*groups, SWEEPS))
    return f"{name}: unknown family{hint} (families: {', '.join(groups)}; also {SWEEPS})"


def _sweeps() -> Table:
    """Return the table of the sweep files that can be named: claims, and recorded verdicts on the shipped ones."""
    records: dict[str, Any] = {}
    file = verdicts_file()
    if file is not None:
        records = {record["sweep"]: record for record in read_json(file)}
    shipped = [folder.resolve() for folder in shipped_folders()]
    rows = table(SWEEPS, "sweep", "claim", "verdict")
    for name, path in sweep_names().items():
        verdict = ""
        if name in records and path.resolve().parent in shipped:
            record = records[name]
            verdict = f"{record['verdict']} ({record['seeds']} seeds, {record['date']})"
        rows.add_row(name, _claim(path), verdict)
    return rows


def _claim(path: Path) -> str:
    """Return the claim of a sweep file; a file that cannot be read is listed too."""
    import yaml

    try:
        content = catalog.content(path)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return f"{path} cannot be read"
    if not isinstance(content, dict):
        return ""
    return " ".join(str(content.get("claim") or "").split())


def _accepted(family: str, names: list[str], overrides: Sequence[str], config_dirs: Sequence[str]) -> list[str]:
    """Return the choices of a family that `check` accepts with the overrides, without those of the family itself."""
    from blockyard.config.check import check
    from blockyard.config.compose import compose

    if family in catalog.OUTSIDE_RUN:
        return names
    others = [text for text in overrides if not text.lstrip("+~").startswith((f"{family}=", f"{family}."))]
    return [name for name in names if not check(compose([*others, f"{family}={name}"], config_dirs))]
