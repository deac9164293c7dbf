"""blockyard check [key=value ...] [--config-dir DIR]

Every problem of a config at once, before anything is built or read: unknown keys, wrong types,
illegal combinations, shapes that do not fit, missing data. A good config is printed as a table:
component, choice, parameters, FLOPs per sample, tokens, and the attention kernel to expect.

example: blockyard check model.dim=100 model.heads=3 token_mixer=fourier position=rope
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockyard.commands._args import Args, read

if TYPE_CHECKING:
    from blockyard.config.compose import Composed


def run(arguments: Sequence[str]) -> int:
    """Print the problems (exit code 2), or the model (0)."""
    from blockyard.commands._model_card import print_card
    from blockyard.config.size_matching import told
    from blockyard.errors import refuse

    composed, problems = judged(read(arguments, {}))
    if problems:
        return refuse(problems)
    print_card(composed.config, composed.choices)
    if composed.matched:
        sys.stdout.write(f"{'matched':<12}{told(composed.matched)}\n")
    return 0


def judged(words: Args) -> tuple[Composed, list[str]]:
    """A command line composed and checked: the config and every problem as text."""
    from blockyard.config.check import check
    from blockyard.config.compose import compose
    from blockyard.runs.redact import redact_text, remember

    composed = compose(words.overrides, words.config_dirs)
    remember(composed.config)  # a secret of the wrong type is not told back
    return composed, [redact_text(str(issue)) for issue in check(composed)]
