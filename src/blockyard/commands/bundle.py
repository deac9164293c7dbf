"""blockyard bundle SWEEP|RUN out=FILE.zip [weights=true] [outputs=FOLDER]

Write a sweep, or one finished run, as one ZIP file for others: the plan, the config, metrics, predictions and versions
of every run, the comparison and its page. `blockyard verify-bundle FILE.zip` checks it anywhere.

SWEEP is a sweep's name, file or folder; RUN a run's folder, name or id, or last. The same sweep gives the same bytes.
Paths of this machine are written as <path>/NAME; its name, accounts, logs and the optimizer's state are left out, and
secrets are in no run folder. The page shows samples of the test data, with their pictures and texts.

  out=FILE.zip    the file to write, in place of an older one
  weights=true    also the best weights of every finished run, as safetensors, and what its tokenizer learned
  outputs=FOLDER  where names and ids are looked up

Examples:
  blockyard bundle quickstart out=quickstart.zip
  blockyard bundle last out=run.zip weights=true
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blockyard.commands._args import Parser, read
from blockyard.config.option_text import boolean, non_empty
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

KEYS = ("out", "weights", "outputs")


def run(arguments: Sequence[str]) -> int:
    """Write the file, and print what it holds."""
    args = read("bundle", arguments)
    out = args.pop("out", None, non_empty)
    weights = args.pop("weights", False, boolean)
    outputs = args.pop("outputs", "outputs") or "outputs"
    names = args.pop_names()
    args.check_empty("bundle", KEYS)
    if len(names) != 1:
        problem = f"not {len(names)} ({', '.join(names)})" if names else "and none is named"
        raise UserError(
            f"bundle takes one sweep or run, {problem}; for example `blockyard bundle quickstart out=q.zip`"
        )
    if out is None:
        raise UserError(f"bundle needs out=FILE.zip, such as out={names[0].strip('/').rpartition('/')[2] or 'x'}.zip")
    path = local_path(out, "out")
    if path.suffix != ".zip" or path.is_dir():
        raise UserError(f"out={out}: expected a file .zip")
    from blockyard.report.bundle.write import write_bundle

    written = write_bundle(names[0], path, outputs=outputs, weights=weights)
    size = path.stat().st_size
    what = f"{written.runs} of {written.cells} cells" if written.manifest.kind == "sweep" else "one run"
    sys.stdout.write(
        f"{path}: {written.manifest.name}, {what}, {len(written.manifest.members)} files, {size:,} bytes\n"
    )
    if written.shown:
        sys.stdout.write(f"its page shows {written.shown} samples of the test data\n")
    if written.moved:
        sys.stdout.write(f"paths that a reader has to name for --rerun: {', '.join(written.moved)}\n")
    return 0


def parser() -> Parser:
    """The command line, which has no flags of its own."""
    return Parser("bundle", KEYS)
