"""`blockyard COMMAND ...`. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from blockyard.commands import COMMANDS, HIDDEN
from blockyard.errors import UserError, did_you_mean, refuse

READ_ONLY = ("list", "explain", "check", "compare", "completion", "_complete")

HELP = """blockyard composes, trains and compares transformer blocks.

usage: blockyard COMMAND [key=value ...]

commands:
{commands}

A config has a choice for each family and a value for each option; overrides change either:
  blockyard train position=rope model.dim=128 optimizer.lr=1e-3
`train` also takes Hydra's -m (several values per key), --cfg job and --config-dir DIR.
`blockyard COMMAND --help` shows the arguments of a command.

exit codes: 0 success, 1 the run failed, 2 invalid input (nothing was started), 130 Ctrl-C, 143 SIGTERM
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments else "--help"
    if command in ("-h", "--help", "help"):
        sys.stdout.write(HELP.format(commands="\n".join(f"  {name:<11}{text}" for name, text in COMMANDS.items())))
        return 0
    if command == "--version":
        from blockyard import __version__

        sys.stdout.write(f"blockyard {__version__}\n")
        return 0
    if command not in COMMANDS and command not in HIDDEN:
        hint = did_you_mean(command, COMMANDS)
        return refuse([f"unknown command {command!r}{hint} (commands: {', '.join(COMMANDS)})"])
    # OpenMP's threads spin while they wait for each other. Long spinning makes a step up to ten times as slow where
    # another process needs the cores; none at all costs a fifth where none does. torch reads this once, on import.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    module = importlib.import_module(f"blockyard.commands.{HIDDEN.get(command, command)}")
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write((module.__doc__ or "").strip() + "\n")
        return 0

    try:
        return int(module.run(arguments))
    except UserError as error:
        return refuse([str(error)])
    except KeyboardInterrupt:
        return 130
    except (
        BrokenPipeError
    ):  # `blockyard list | head`: a listing ends quietly when its reader has closed the pipe; a run fails
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if command in READ_ONLY else 1


def entry() -> None:
    """The console script."""
    # As with `python -m`, a package of the user's own in the working directory can be imported; last, so that
    # nothing there shadows an installed module.
    sys.path.append(os.getcwd())
    sys.exit(main())


if __name__ == "__main__":
    entry()
