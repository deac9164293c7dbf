"""blockyard check [key=value ...] [--config-dir DIR]

Validate a config before anything is built or read: unknown keys, wrong types, illegal combinations, shapes that do
not fit, missing data. Every problem is reported at once. A valid config is printed as a table: component, choice,
parameters, FLOPs per sample, tokens, and the attention kernel to expect.

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


def run(arguments: Sequence[str]) -> int:
    """Print the problems (exit code 2), or the model (exit code 0)."""
    from blockyard.commands._model_card import print_card
    from blockyard.config.size_matching import describe_match
    from blockyard.errors import refuse

    composed, problems = compose_and_check(read("check", arguments))
    if problems:
        return refuse(problems)
    print_card(composed.config, composed.choices)
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
