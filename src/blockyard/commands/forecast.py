"""blockyard forecast run=RUN [file=TABLE] [level=0.9] [out=FOLDER] [key=value ...]

Forecast a time series with a run of objective=forecast or objective=next_patch, in the units of its data: the last
window of the test split, where the truth is known; or, with file, what follows the last rows of a table of your own,
with the columns that the run was trained on. Writes a table (CSV: step, time, channel, forecast, low, high, true) and a
picture with history, forecast and band.

  file=TABLE          CSV (also .gz, .bz2, .zip, .xz) or Parquet, a row per time step
  level=0.9           share of the errors on validation windows that the band holds at each step
  out=FOLDER          instead of the run's folder
  which=last          the checkpoint: best, last or previous; best@ema for an average
  outputs=FOLDER      where runs lie
  allow=[PACKAGE]     trust a package of your own that the run uses

Example:
  blockyard forecast run=last file=new.csv
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from blockyard.commands._args import checkpoint, read, run_of
from blockyard.commands._figures import draw
from blockyard.config.option_text import non_empty, number
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

KEYS = ("run", "file", "level", "out", "which", "outputs", "allow")


def run(arguments: Sequence[str]) -> int:
    """Write the table and the picture, and print where they are and how wide the band is."""
    args = read("forecast", arguments)
    name, file, out = args.pop("run"), args.pop("file", None, non_empty), args.pop("out", None, non_empty)
    level = args.pop("level", 0.9, number(0, 1, exclusive=True))
    which = args.pop("which", "best", checkpoint)
    outputs, allow = args.pop("outputs", "outputs"), args.pop_allow()
    args.check_empty("forecast", KEYS)
    name = run_of(name, "forecast", outputs)
    target = None if out is None else local_path(out, "out")
    if target is not None and target.exists() and not target.is_dir():
        raise UserError(f"out={out}: expected a folder")
    from blockyard.evaluate.forecast import forecast, summary, write
    from blockyard.runs.identity import slug

    forecasts, loaded = forecast(name, file, level=level, which=which, outputs=outputs, allow=allow)
    folder = target or loaded.folder.path
    stem = "forecast" if file is None else f"forecast-{slug(Path(file).stem)}"
    subject = "last window of the test split" if file is None else Path(file).name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        table = write(forecasts, folder / f"{stem}.csv")
        paths = [table, *draw("forecast", loaded, forecasts, subject, table)]
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; out=FOLDER sets another folder") from error
    sys.stdout.write(f"{summary(forecasts)}\n{' '.join(map(str, paths))}\n")
    return 0
