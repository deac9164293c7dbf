"""`blockyard VERB ...`: one screen of verbs. Nothing heavy is imported until a verb needs it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from blockyard.commands import HIDDEN, VERBS
from blockyard.errors import UserError, near, refuse

READERS = ("list", "explain", "check", "compare", "completion", "_complete")

HELP = """blockyard composes, trains and compares transformer blocks.

usage: blockyard VERB [key=value ...]

verbs:
{verbs}

A config is a choice in each family and a value for each option:
  blockyard train position=rope model.dim=128 optimizer.lr=1e-3
Hydra's own words work with train: -m (a list of values per key), --cfg job, --config-dir DIR.
`blockyard VERB --help` says what a verb takes.

exit codes: 0 done, 1 the run failed, 2 bad input (nothing was started), 130 Ctrl-C, 143 SIGTERM
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = arguments.pop(0) if arguments else "--help"
    if verb in ("-h", "--help", "help"):
        sys.stdout.write(HELP.format(verbs="\n".join(f"  {name:<11}{text}" for name, text in VERBS.items())))
        return 0
    if verb == "--version":
        from blockyard import __version__

        sys.stdout.write(f"blockyard {__version__}\n")
        return 0
    if verb not in VERBS and verb not in HIDDEN:
        nearest = near(verb, VERBS)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        return refuse([f"there is no verb {verb!r}{hint} (verbs: {', '.join(VERBS)})"])
    # OpenMP's threads spin while they wait for each other. Spinning long costs a step up to ten times its
    # time where another process wants the cores too, not spinning at all a fifth where none does. Read
    # once, when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    module = importlib.import_module(f"blockyard.commands.{HIDDEN.get(verb, verb)}")
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write((module.__doc__ or "").strip() + "\n")
        return 0

    try:
        return int(module.run(arguments))
    except UserError as error:
        return refuse([str(error)])
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `blockyard list | head`; a reader gone is no reason for a run to end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if verb in READERS else 1


def entry() -> None:
    """The console script."""
    # As `python -m` does, so that a package of the user's own beside the work is found; last, so that
    # nothing there takes the place of an installed module.
    sys.path.append(os.getcwd())
    sys.exit(main())


if __name__ == "__main__":
    entry()
