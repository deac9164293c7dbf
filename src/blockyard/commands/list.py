"""`blockyard list`: list the choices of families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from blockyard.commands._signature import command
from blockyard.commands._types import ConfigDirs, Flag, Value, check_config_dirs, overrides_of
from blockyard.config.choices import catalog
from blockyard.errors import UserError, did_you_mean
from blockyard.terminal import console, table


def _completed(before: Sequence[str], typed: str) -> list[str]:
    overrides = overrides_of(catalog.run_keys(), typed) if "--compatible" in before else []
    return [*catalog.groups(), *overrides]


@command()
def list_choices(
    *families: Annotated[str, Value("FAMILY", values=_completed, everything="overrides")],
    compatible: Flag[bool] = False,
    config_dirs: ConfigDirs = (),
) -> None:
    """List the choices of every family, or of the named ones, with one line and the source of each.

    Beside choices of installed packages and of folders of your own, it also shows where each comes from.

    Options:
        families: with --compatible also overrides, key=value
        compatible: show only the choices that `blockyard check` accepts with the given overrides, each in place of the
            family's own choice

    Examples:
        blockyard list position
        blockyard list token_mixer --compatible experiment=gpt_code_small position=rope
    """
    folders, groups = check_config_dirs(config_dirs, families), catalog.groups()
    names = [text for text in families if "=" not in text]
    overrides = [text for text in families if "=" in text]
    for name in names:
        if name not in (*groups, *catalog.OF_SOURCE):
            raise UserError(f"{name}: unknown family{did_you_mean(name, groups)} (families: {', '.join(groups)})")
    if overrides and not compatible:
        raise UserError(f"{overrides[0]}: list takes overrides with --compatible only")
    if compatible:
        from blockyard.config.compose import compose

        # These overrides are wrong whatever else is chosen.
        if issues := compose(overrides, config_dirs).issues:
            raise UserError("; ".join(map(str, issues)))
    screen = console()
    for family in names or (catalog.families() if compatible else groups):
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


def _accepted(family: str, names: list[str], overrides: Sequence[str], config_dirs: Sequence[str]) -> list[str]:
    """Return the choices of a family that `check` accepts with the overrides, without those of the family itself."""
    from blockyard.config.check import check
    from blockyard.config.compose import compose

    if family in catalog.OUTSIDE_RUN:
        return names
    others = [text for text in overrides if not text.lstrip("+~").startswith((f"{family}=", f"{family}."))]
    return [name for name in names if not check(compose([*others, f"{family}={name}"], config_dirs))]
