"""blockyard list [FAMILY ...] [--compatible [key=value ...]] [--config-dir DIR]

List the choices of every family, or of the named ones, with one line and the source of each; beside choices of
installed packages and of folders of your own, also where each comes from.

  --compatible      only the choices that `blockyard check` accepts with the given overrides, each in place of
                    the family's own choice
  --config-dir DIR  a folder with choices of your own, in addition to the shipped ones

Examples:
  blockyard list position
  blockyard list token_mixer --compatible experiment=gpt_code_small position=rope
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.commands._args import Args, Parser
from blockyard.config.choices import catalog
from blockyard.errors import UserError, did_you_mean
from blockyard.terminal import console, table


@dataclass
class ListArgs(Args):
    """The command line of `blockyard list`."""

    compatible: bool = False


def run(arguments: Sequence[str]) -> int:
    """Print the choices."""
    args = parser().read(arguments, ListArgs)
    folders, groups = args.folders(), catalog.groups()
    names = args.pop_names()
    for name in names:
        if name not in (*groups, *catalog.OF_SOURCE):
            raise UserError(f"{name}: unknown family{did_you_mean(name, groups)} (families: {', '.join(groups)})")
    if args.overrides and not args.compatible:
        raise UserError(f"{args.overrides[0]}: list takes overrides with --compatible only")
    if args.compatible:
        _refuse_unknown(args)
    screen = console()
    for family in names or (catalog.families() if args.compatible else groups):
        choices = catalog.choices(family, folders)
        if args.compatible:
            accepted = compatible(family, list(choices), args)
            choices = {name: choices[name] for name in accepted}
        origins = [catalog.origin(choice) for choice in choices.values()]
        own = len({*origins}) > 1  # with choices of other packages or folders
        rows = table(family, "choice", "what it is", *(["from"] if own else []), "source")
        for choice, origin in zip(choices.values(), origins, strict=True):
            rows.add_row(choice.name, choice.summary, *([origin] if own else []), choice.source)
        screen.print(rows)
        screen.print()
    return 0


def _refuse_unknown(args: ListArgs) -> None:
    """Raise UserError for overrides that are wrong whatever else is chosen."""
    from blockyard.config.compose import compose

    if issues := compose(args.overrides, args.config_dirs).issues:
        raise UserError("; ".join(map(str, issues)))


def parser() -> Parser:
    """The flags of the command."""
    flags = Parser("list")
    flags.add_argument("--compatible", action="store_true")
    return flags


def compatible(family: str, names: Sequence[str], args: Args) -> list[str]:
    """The choices of a family that `check` accepts with the overrides, without those of the family itself."""
    from blockyard.config.check import check
    from blockyard.config.compose import compose

    if family in catalog.OUTSIDE_RUN:
        return list(names)
    others = [text for text in args.overrides if not text.lstrip("+~").startswith((f"{family}=", f"{family}."))]
    return [name for name in names if not check(compose([*others, f"{family}={name}"], args.config_dirs))]
