"""`blockyard board`: serve the page of a sweep or of runs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from blockyard.commands._signature import command
from blockyard.commands._types import OUTPUTS, Flag, Outputs, Value, planned_sweeps
from blockyard.errors import UserError


@command()
def board(
    *paths: Annotated[str, Value("PATH", values=planned_sweeps, everything="overrides")],
    port: Flag[Annotated[int, Ge(0), Le(65535)]] | None = None,
    host: Flag[Annotated[str, Value("ADDRESS")]] = "127.0.0.1",
    baseline: Flag[Annotated[str, Value("ARM")]] | None = None,
    metric: Flag[Annotated[str, Value("M")]] | None = None,
    by: Flag[Annotated[str, Value("KEY")]] | None = None,
    wandb: Flag[bool] = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Serve the page of a sweep, or of any runs, and keep it up to date while they train.

    The server listens on this machine only; Ctrl-C ends it.

    Options:
        paths: a sweep (its name, file or folder), a folder of runs, or a run
        port: by default the first free port from 8321 on; 0 picks any free port
        host: 127.0.0.1, ::1 or localhost
        baseline: the arm that the others are compared with
        metric: the metric that is compared
        by: one arm for each value of a config key
        wandb: instead, make a W&B workspace with the same panels; needs a login

    Examples:
        blockyard board quickstart
    """
    if not paths:
        raise UserError(
            "board needs a sweep or runs, for example `blockyard board quickstart`; "
            "`blockyard runs --html` writes a page of all sweeps and runs"
        )
    comparison = {"baseline": baseline, "metric": metric, "by": by}
    options: dict[str, Any] = {"outputs": outputs} | {key: value for key, value in comparison.items() if value}
    if wandb:
        _write_workspace("wandb", paths, options)
        return
    from blockyard.report.page.server import loopback, start
    from blockyard.report.page.watch import WatchedComparison

    with start(WatchedComparison(paths, options=options), host=loopback(host), port=port) as server:
        # A shell starts background jobs with SIGINT ignored; without this they could not be stopped.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:  # around the address too: whoever reads it may end the server at once
            sys.stdout.write(f"{server.url} shows {', '.join(paths)} and follows it; Ctrl-C ends\n")
            sys.stdout.flush()
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            sys.stdout.write("\n")


def _write_workspace(service: str, paths: Sequence[str], options: dict[str, Any]) -> None:
    """Make a workspace of a service, such as W&B, with the same panels, and print its address."""
    from blockyard.report.comparison import compare
    from blockyard.report.services import workspace

    # A sweep's folder lies in its own outputs folder, whatever the command line says.
    folders = [Path(path).absolute() for path in paths if (Path(path) / "plan.json").is_file()]
    outputs = str(folders[0].parents[1]) if folders else options["outputs"]
    sys.stdout.write(f"{workspace(service, compare(list(paths), **options), outputs=outputs)}\n")
