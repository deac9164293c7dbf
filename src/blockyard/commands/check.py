"""`blockyard check`: validate a config before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockyard.commands._signature import command
from blockyard.commands._types import ConfigDirs, Override
from blockyard.commands._without_torch import once

if TYPE_CHECKING:
    from blockyard.config.compose import Composed


@command()
def check(*overrides: Override, config_dirs: ConfigDirs = ()) -> int:
    """Validate a config before anything is trained, and print the model.

    Finds unknown keys, wrong types, illegal combinations, shapes that do not fit and missing data, and reports every
    problem at once. Then the data is read as a run reads it, and reported for what a run would refuse: missing columns,
    classes without rows, splits that are too small. Data that would have to be downloaded, or whose files have more
    than 256 MiB, is left to the run.

    The recipe that was chosen for the data and the values that model.size has set come first, with the reasons.

    A valid config is printed as tables: component, choice, parameters and forward FLOPs per sample; parameter groups
    with their learning rate and weight decay; tokens, and the attention kernel to expect; then notes, such as that the
    classes have very different sizes, that texts are cut, or that a warm-up outlasts the run.

    Examples:
        blockyard check model.dim=100 model.heads=3 token_mixer=fourier position=rope
    """
    from blockyard.commands._model_card import print_card
    from blockyard.config.size_matching import describe_match
    from blockyard.errors import refuse
    from blockyard.runs.redact import redact_text

    composed, problems = compose_and_check(overrides, config_dirs)
    if problems:
        return refuse(problems)
    from blockyard.engine.data_reader import DataReader

    facts = DataReader().read(composed.config)
    if facts.problem:
        return refuse([redact_text(facts.problem)])
    if composed.recipe:
        for line in composed.recipe.described():
            sys.stdout.write(f"{'recipe':<12}{line}\n")
    if composed.sized:
        for line in composed.sized.described():
            sys.stdout.write(f"{'size':<12}{line}\n")
    if composed.recipe or composed.sized:
        sys.stdout.write("\n")
    print_card(composed.config, composed.choices)
    for note in facts.notes:
        sys.stdout.write(f"{'note':<12}{note}\n")
    if composed.matched:
        sys.stdout.write(f"{'matched':<12}{describe_match(composed.matched)}\n")
    return 0


def compose_and_check(overrides: Sequence[str], config_dirs: Sequence[str]) -> tuple[Composed, list[str]]:
    """Return the config of overrides, and every problem as text without secrets."""
    from blockyard.config.check import check as check_config
    from blockyard.config.compose import compose
    from blockyard.runs.redact import redact_text, remember

    line = (tuple(overrides), tuple(config_dirs))
    composed = once(line, lambda: compose(overrides, config_dirs))
    remember(composed.config)  # a secret of the wrong type is not printed
    return composed, [redact_text(str(issue)) for issue in check_config(composed)]
