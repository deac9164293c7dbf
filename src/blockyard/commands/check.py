"""blockyard check [key=value ...] [--config-dir DIR]

Validate a config before anything is trained: unknown keys, wrong types, illegal combinations, shapes that do not fit,
missing data. Every problem is reported at once. Then the data is read as a run reads it, and what a run would refuse is
reported: missing columns, classes without rows, splits that are too small. Data that would have to be downloaded, or
whose files have more than 256 MiB, is left to the run. A valid config is printed as tables: component, choice,
parameters and forward FLOPs per sample; parameter groups with their learning rate and weight decay; tokens, and the
attention kernel to expect; then notes, such as that the classes have very different sizes, that texts are cut, or that
a warm-up outlasts the run.

  --config-dir DIR  a folder with choices of your own, in addition to the shipped ones

Example:
  blockyard check model.dim=100 model.heads=3 token_mixer=fourier position=rope
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockyard.commands._args import Args, read

if TYPE_CHECKING:
    from blockyard.config.compose import Composed


KEYS = ("seed", "name", "tags", "outputs", "allow", "force")  # beside families and their options


def run(arguments: Sequence[str]) -> int:
    """Print the problems (exit code 2), or the model (exit code 0)."""
    from blockyard.commands._model_card import print_card
    from blockyard.config.size_matching import describe_match
    from blockyard.errors import refuse
    from blockyard.runs.redact import redact_text

    composed, problems = compose_and_check(read("check", arguments))
    if problems:
        return refuse(problems)
    from blockyard.engine.data_reader import DataReader

    facts = DataReader().read(composed.config)
    if facts.problem:
        return refuse([redact_text(facts.problem)])
    print_card(composed.config, composed.choices)
    for note in facts.notes:
        sys.stdout.write(f"{'note':<12}{note}\n")
    if composed.matched:
        sys.stdout.write(f"{'matched':<12}{describe_match(composed.matched)}\n")
    return 0


def compose_and_check(args: Args) -> tuple[Composed, list[str]]:
    """The config of a command line, and every problem as text without secrets."""
    from blockyard.config.check import check
    from blockyard.config.compose import compose
    from blockyard.runs.redact import redact_text, remember

    composed = compose(args.overrides, args.config_dirs)
    remember(composed.config)  # a secret of the wrong type is not printed
    return composed, [redact_text(str(issue)) for issue in check(composed)]
