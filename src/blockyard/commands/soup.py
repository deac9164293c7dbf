"""blockyard soup RUN... out=FOLDER [weights=uniform|greedy] [which=best|last|previous|[best,last]] [test=true]
       [outputs=FOLDER] [allow=[PACKAGE]]

Average the weights of several runs, or of several checkpoints of one, and write the average as a run.

  uniform  the mean of all of them
  greedy   go from the best validation metric to the worst, and keep each one with which the average is not worse

The runs have to be of one architecture, tokenizer and data; rates, schedules and losses may differ. Averages are of use
where the runs started from the same weights (init.from): those of other seeds predict next to nothing. What LoRA added
is put into the weights first. The validation metric that selects checkpoints is printed of each of them and of the
average; the test split is evaluated with test=true only.

The folder is a run for `eval`, `predict`, `export` and init.from. The runs stay as they are.

Examples:
  blockyard soup tuned_a tuned_b tuned_c out=soups/tuned weights=greedy
  blockyard soup last out=soups/last which=[best,last]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blockyard.commands._args import CHECKPOINTS, read
from blockyard.config.option_text import boolean, non_empty, one_of
from blockyard.errors import UserError

RECIPES = ("uniform", "greedy")
KEYS = ("out", "weights", "which", "test", "outputs", "allow")


def run(arguments: Sequence[str]) -> int:
    """Write the folder, and print a table of what is in it."""
    args = read("soup", arguments)
    out, recipe = args.pop("out", None, non_empty), args.pop("weights", "uniform", one_of(*RECIPES))
    which, test = args.pop("which", ["best"], _checkpoints), args.pop("test", False, boolean)
    outputs, allow = args.pop("outputs", "outputs"), args.pop_allow()
    runs = args.pop_names()
    args.check_empty("soup", KEYS)
    if not runs:
        raise UserError("soup needs runs (paths, ids, parts of names, or last), separated by spaces")
    if out is None:
        raise UserError("soup needs out=FOLDER, a new folder")
    from blockyard.evaluate.soup import cook
    from blockyard.terminal import console, table

    soup = cook(runs, out, recipe=recipe, which=which, outputs=outputs, allow=allow, test=test)
    name = soup.metric[0]
    rows = table(None, "ingredient", "in the soup", f"val/{name}", *([f"test/{name}"] if test else []))
    for row in (*soup.ingredients, soup.result):
        values = [row.value] if row.test is None else [row.value, row.test]
        used = "" if row is soup.result else "yes" if row.used else "no"
        rows.add_row(row.name, used, *(f"{value:.6g}" for value in values))
    console().print(rows)
    sys.stdout.write(f"{soup.folder}\n")
    return 0


def _checkpoints(text: str) -> list[str]:
    names = [part.strip() for part in text.strip("[]() ").split(",")]
    if not set(names) <= {*CHECKPOINTS} or len(set(names)) < len(names):
        raise ValueError(f"one of {', '.join(CHECKPOINTS)}, or a list of them such as [best,last]")
    return names
