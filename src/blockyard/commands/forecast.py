"""`blockyard forecast`: forecast a time series with a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le

from blockyard.commands._figures import draw
from blockyard.commands._signature import command
from blockyard.commands._types import OUTPUTS, Allow, File, Folder, Outputs, Run, Which, find_run
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError


@command()
def forecast(
    *,
    run: Run,
    file: File | None = None,
    level: Annotated[float, Gt(0), Le(1)] = 0.9,
    out: Folder | None = None,
    which: Which = "best",
    outputs: Outputs = OUTPUTS,
    allow: Allow = (),
) -> None:
    """Forecast a time series with a run of objective=forecast or objective=next_patch, in the units of its data.

    Forecasts the last window of the test split, where the truth is known; or, with file, what follows the last rows of
    a table of your own, with the columns that the run was trained on. Writes a table (CSV: step, time, channel,
    forecast, low, high, true) and a picture with history, forecast and band.

    Options:
        file: CSV (also .gz, .bz2, .zip, .xz) or Parquet, a row per time step
        level: share of the errors on validation windows that the band holds at each step
        out: instead of the run's folder

    Examples:
        blockyard forecast run=last file=new.csv
    """
    run_folder = find_run(run, outputs)
    target = None if out is None else local_path(out, "out")
    if target is not None and target.exists() and not target.is_dir():
        raise UserError(f"out={out}: expected a folder")
    from blockyard.evaluate import forecast as evaluation
    from blockyard.runs.identity import slug

    forecasts, loaded = evaluation.forecast(run_folder, file, level=level, which=which, outputs=outputs, allow=allow)
    folder = target or loaded.folder.path
    stem = "forecast" if file is None else f"forecast-{slug(Path(file).stem)}"
    subject = "last window of the test split" if file is None else Path(file).name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        table = evaluation.write(forecasts, folder / f"{stem}.csv")
        paths = [table, *draw("forecast", loaded, forecasts, subject, table)]
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; out=FOLDER sets another folder") from error
    sys.stdout.write(f"{evaluation.summary(forecasts)}\n{' '.join(map(str, paths))}\n")
