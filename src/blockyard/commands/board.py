"""blockyard board PATH ... [--port N] [--host ADDRESS] [--baseline ARM] [--metric M] [--by KEY] [outputs=FOLDER]

The page of a sweep or of any runs, live: it follows the runs while they go on. PATH is a sweep (its name,
file or folder), a folder of runs, or runs. It listens on this machine only (127.0.0.1); Ctrl-C ends it.

  --port N       default the first free one from 8321 on; 0 for any free one
  --host ADDRESS 127.0.0.1, ::1 or localhost; nothing else
  --wandb        makes a workspace with the same panels at W&B instead, for who is logged in there

example: blockyard board quickstart
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockyard.commands._args import read
from blockyard.errors import UserError

FLAGS = {"--port": 1, "--host": 1, "--baseline": 1, "--metric": 1, "--by": 1, "--wandb": 0}


def run(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C, which is how it is meant to end: exit code 0."""
    words = read(arguments, FLAGS)
    flags = _values(words.flags)
    outputs = words.take("outputs", "outputs")
    if not words.overrides:
        raise UserError("board takes a sweep or runs: blockyard board quickstart")
    asked = {"baseline": flags.get("--baseline"), "metric": flags.get("--metric"), "by": flags.get("--by")}
    options: dict[str, Any] = {"outputs": outputs} | {key: value for key, value in asked.items() if value}
    port = _port(flags["--port"]) if "--port" in flags else None
    if "--wandb" in flags:
        return _workspace(words.overrides, options)
    from blockyard.report.page.server import loopback, start
    from blockyard.report.page.watch import WatchedComparison

    host = loopback(flags.get("--host", "127.0.0.1"))
    with start(WatchedComparison(words.overrides, options=options), host=host, port=port) as board:
        sys.stdout.write(f"{board.url} shows {', '.join(words.overrides)} and follows it; Ctrl-C ends\n")
        sys.stdout.flush()
        # A job started in the background has it ignored, and could not be told to end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            board.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            sys.stdout.write("\n")
    return 0


def _workspace(paths: Sequence[str], options: dict[str, Any]) -> int:
    """The same panels at W&B; says where they are."""
    from blockyard.report.comparison import compare
    from blockyard.report.wandb.workspace import workspace

    # A sweep's folder lies in its own outputs, whatever the command line says.
    folders = [Path(path).absolute() for path in paths if (Path(path) / "plan.json").is_file()]
    outputs = str(folders[0].parents[1]) if folders else options["outputs"]
    sys.stdout.write(f"{workspace(compare(list(paths), **options).as_dict(), outputs=outputs)}\n")
    return 0


def _port(text: str) -> int:
    if text.isdigit() and int(text) < 65536:
        return int(text)
    raise UserError(f"--port {text}: takes a whole number from 0 to 65535")


def _values(flags: Sequence[str]) -> dict[str, str]:
    """--port 80 and --port=80 alike."""
    rest, found = list(flags), {}
    while rest:
        name, sign, value = rest.pop(0).partition("=")
        found[name] = value if sign else rest.pop(0) if FLAGS[name] else ""
    return found
