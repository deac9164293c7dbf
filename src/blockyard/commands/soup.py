"""`blockyard soup`: average the weights of runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from blockyard.commands._signature import command
from blockyard.commands._types import CHECKPOINTS, OUTPUTS, Allow, Folder, Outputs, Switch, Value, run_names
from blockyard.errors import UserError


def _checkpoints(text: str) -> list[str]:
    names = [part.strip() for part in text.strip("[]() ").split(",")]
    if not set(names) <= {*CHECKPOINTS} or len(set(names)) < len(names):
        raise ValueError(f"one of {', '.join(CHECKPOINTS)}, or a list of them such as [best,last]")
    return names


Checkpoints = Annotated[Sequence[str], Value("best|last|previous|[best,last]", _checkpoints, CHECKPOINTS)]


@command()
def soup(
    *runs: Annotated[str, Value("RUN", values=run_names)],
    out: Folder,
    weights: Literal["uniform", "greedy"] = "uniform",
    which: Checkpoints = ("best",),
    test: Switch = False,
    outputs: Outputs = OUTPUTS,
    allow: Allow = (),
) -> None:
    """Average the weights of several runs, or of several checkpoints of one, and write the average as a run.

    The runs have to be of one architecture, tokenizer and data; rates, schedules and losses may differ. Averages are of
    use where the runs started from the same weights (init.from): runs of other seeds average to a model that predicts
    next to nothing. LoRA's additions are merged into the weights first. The validation metric that selects checkpoints
    is printed for each of them and for the average.

    The folder is a run for `eval`, `predict`, `export` and init.from. The runs stay as they are.

    Options:
        runs: paths, ids, parts of names, or last
        out: a new folder
        weights: uniform is the mean of all of them; greedy goes from the best validation metric to the worst, and keeps
            each one with which the average is not worse
        which: the checkpoint of each run, or several
        test: also evaluate the test split

    Examples:
        blockyard soup tuned_a tuned_b tuned_c out=soups/tuned weights=greedy
        blockyard soup last out=soups/last which=[best,last]
    """
    if not runs:
        raise UserError("soup needs runs (paths, ids, parts of names, or last), separated by spaces")
    from blockyard.evaluate.soup import cook
    from blockyard.terminal import console, table

    result = cook(runs, out, recipe=weights, which=which, outputs=outputs, allow=allow, test=test)
    name = result.metric[0]
    rows = table(None, "ingredient", "in the soup", f"val/{name}", *([f"test/{name}"] if test else []))
    for row in (*result.ingredients, result.result):
        values = [row.value] if row.test is None else [row.value, row.test]
        if row is result.result:
            used = ""
        elif row.used:
            used = "yes"
        else:
            used = "no"
        rows.add_row(row.name, used, *(f"{value:.6g}" for value in values))
    console().print(rows)
    sys.stdout.write(f"{result.folder}\n")
