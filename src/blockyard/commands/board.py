"""blockyard board PATH ... [--port N] [--host ADDRESS] [--baseline ARM] [--metric M] [--by KEY] [outputs=FOLDER]

Serve the page of a sweep, or of any runs, and keep it up to date while they train. PATH is a sweep (its name, file
or folder), a folder of runs, or a run. The server listens on this machine only (127.0.0.1); Ctrl-C ends it.

  --port N        default: the first free port from 8321 on; 0 picks any free port
  --host ADDRESS  127.0.0.1, ::1 or localhost
  --baseline ARM  what the other arms are compared with
  --metric M      the metric that is compared
  --by KEY        one arm for each value of a config key
  --wandb         instead, make a W&B workspace with the same panels; needs a login

Example:
  blockyard board quickstart
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.commands._args import Args, Parser, flag_type
from blockyard.config.option_text import integer
from blockyard.errors import UserError

KEYS = ("outputs",)


@dataclass
class BoardArgs(Args):
    """The command line of `blockyard board`; its overrides are the paths."""

    port: int | None = None
    host: str = "127.0.0.1"
    baseline: str | None = None
    metric: str | None = None
    by: str | None = None
    service: str | None = None


def run(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C, the normal way to end: exit code 0."""
    args = parser().read(arguments, BoardArgs)
    outputs = args.pop("outputs", "outputs")
    paths = args.overrides
    if not paths:
        raise UserError(
            "board needs a sweep or runs, for example `blockyard board quickstart`; "
            "`blockyard runs --html` writes a page of all sweeps and runs"
        )
    comparison = {"baseline": args.baseline, "metric": args.metric, "by": args.by}
    options: dict[str, Any] = {"outputs": outputs} | {key: value for key, value in comparison.items() if value}
    if args.service:
        return _workspace(args.service, paths, options)
    from blockyard.report.page.server import loopback, start
    from blockyard.report.page.watch import WatchedComparison

    with start(WatchedComparison(paths, options=options), host=loopback(args.host), port=args.port) as board:
        sys.stdout.write(f"{board.url} shows {', '.join(paths)} and follows it; Ctrl-C ends\n")
        sys.stdout.flush()
        # A shell starts background jobs with SIGINT ignored; without this they could not be stopped.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            board.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            sys.stdout.write("\n")
    return 0


def parser() -> Parser:
    """The flags of the command."""
    from blockyard.report.services import SERVICES

    flags = Parser("board")
    flags.add_argument("--port", type=flag_type(integer(0, 65535)))
    flags.add_argument("--host", default="127.0.0.1")
    for flag in ("--baseline", "--metric", "--by"):
        flags.add_argument(flag)
    for service in SERVICES:
        flags.add_argument(f"--{service}", dest="service", action="store_const", const=service)
    return flags


def _workspace(service: str, paths: Sequence[str], options: dict[str, Any]) -> int:
    """Make a workspace of a service, such as W&B, with the same panels, and print its address."""
    from blockyard.report.comparison import compare
    from blockyard.report.services import workspace

    # A sweep's folder lies in its own outputs folder, whatever the command line says.
    folders = [Path(path).absolute() for path in paths if (Path(path) / "plan.json").is_file()]
    outputs = str(folders[0].parents[1]) if folders else options["outputs"]
    sys.stdout.write(f"{workspace(service, compare(list(paths), **options), outputs=outputs)}\n")
    return 0
