"""`blockyard COMMAND ...`. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence

if sys.platform == "win32":  # before the imports below, which need modules that Windows does not have
    sys.stderr.write("blockyard: Windows is not supported; use WSL (Windows Subsystem for Linux)\n")
    sys.exit(2)

from blockyard import address_space
from blockyard.commands import COMMANDS, _reader, _without_torch
from blockyard.commands._help import help_text
from blockyard.config import habits
from blockyard.config.override_grammar import packages_typed
from blockyard.config.project_file import import_folders, with_project
from blockyard.config.untrusted.package_finder import importable
from blockyard.errors import UserError, did_you_mean, first_line, refuse, shortened

# Called by blockyard itself, without flags and help; the module of each.
HIDDEN = {"_cell": "blockyard.commands.cell", "_complete": "blockyard.commands.completion"}
READ_ONLY = ("list", "explain", "check", "compare", "completion", "_complete")
HELP = """blockyard composes, trains and compares transformer blocks.

usage: blockyard COMMAND [key=value ...]

commands:
{commands}

A config has a choice for each family and a value for each option; overrides change either:
  blockyard train position=rope model.dim=128 optimizer.lr=1e-3
`train` also takes Hydra's -m (several values per key), --cfg job and --config-dir DIR.
`blockyard COMMAND --help` shows the arguments of a command. A blockyard.yaml here or above names config folders,
allowed packages, outputs and logger for all of them.

exit codes: 0 success, 1 the run failed, 2 invalid input (nothing was started), 130 Ctrl-C, 143 SIGTERM,
128 + its number after another signal
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments else "--help"
    if command == "help" and arguments[:1] and arguments[0] in COMMANDS:
        command, arguments = arguments[0], ["--help"]
    if command in ("-h", "--help", "help"):
        sys.stdout.write(HELP.format(commands="\n".join(f"  {name:<15}{text}" for name, text in COMMANDS.items())))
        return 0
    if command == "--version":
        from blockyard import __version__

        sys.stdout.write(f"blockyard {__version__}\n")
        return 0
    if command not in COMMANDS and command not in HIDDEN:
        answer = habits.COMMANDS.get(command)
        hint = f"; {answer}" if answer else did_you_mean(command, COMMANDS)
        return refuse([f"unknown command {command!r}{hint} (commands: {', '.join(COMMANDS)})"])
    # OpenMP's threads spin while they wait for each other. Long spinning makes a step up to ten times as slow where
    # another process needs the cores; none at all costs a fifth where none does. torch reads this once, on import.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if {"-h", "--help"} & set(arguments) and command not in HIDDEN:
        try:
            sys.stdout.write(help_text(command))
            return 0
        except UserError as error:
            return refuse([str(error)])

    if problem := address_space.problem_of(command):
        return refuse([problem]) - 1

    try:
        code = None
        if command in _without_torch.COMMANDS:
            code = _without_torch.answer(command, lambda: _run(command, arguments))
        if code is None:
            code = _run(command, arguments)
        sys.stdout.flush()  # here, where an error still has a message and an exit code
        return code
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # of argparse; or of a component, whose exit code 0 would pass for success
        if end.code:
            raise
        return refuse(["a component called sys.exit() while it was built or used"]) - 1
    except GeneratorExit:
        return refuse(["a component raised GeneratorExit while it was built or used"]) - 1
    except (
        BrokenPipeError
    ):  # `blockyard list | head`: a listing ends quietly when its reader has closed the pipe; a run fails
        _discard_output()
        return 0 if command in READ_ONLY else 1
    except (ImportError, SystemError, RuntimeError) as error:
        if not address_space.is_used_up(error):
            raise
        return refuse([f"out of memory in `blockyard {command}` ({first_line(error)}){address_space.remedy()}"]) - 1
    except MemoryError:
        return refuse([f"out of memory in `blockyard {command}`{address_space.remedy()}"]) - 1
    except OSError as error:  # a full disk, a limit of the system: whatever no command could say better
        _discard_output()
        where = f": {error.filename}" if error.filename else ""
        if error.errno == errno.ENAMETOOLONG:  # a text of the command line or of a config, taken for a path
            return refuse([f"{shortened(str(error.filename))}: the name is too long for a file or folder"])
        bound = address_space.remedy() if address_space.is_used_up(error) else ""
        return refuse([f"{error.strerror or error}{where}{bound}"]) - 1


def _run(command: str, arguments: list[str]) -> int:
    """Run a command and return its exit code; print why it refuses its arguments."""
    try:
        arguments = with_project(command, arguments)
        with importable(packages_typed(arguments), import_folders(command)):
            if command in HIDDEN:
                return int(importlib.import_module(HIDDEN[command]).run(arguments))
            return _reader.run(command, arguments)
    except UserError as error:
        return refuse(getattr(error, "problems", [str(error)]))  # a sweep file may have several


def _discard_output() -> None:
    """Give up standard output if it takes no more, so that Python does not try again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_missing_streams() -> None:
    """Open the null device for each closed standard stream: the next file that is opened would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - open to the end


def entry() -> None:
    """The console script."""
    _open_missing_streams()
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.exit(refuse(["the working folder has been removed; change to one that exists"]))
    for stream in (sys.stdout, sys.stderr):  # a path may have any byte: it is shown as an escape
        with contextlib.suppress(AttributeError, OSError):  # no stream of Python's own, or one that cannot be flushed
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())


if __name__ == "__main__":
    entry()
