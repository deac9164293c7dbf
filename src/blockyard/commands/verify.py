"""`blockyard verify`: hold a component to what it declares."""

from __future__ import annotations

from blockyard.commands._signature import command
from blockyard.commands._types import ConfigDirs, Override
from blockyard.errors import UserError
from blockyard.terminal import console, table


@command()
def verify(*overrides: Override, config_dirs: ConfigDirs = ()) -> int:
    """Hold a component, yours or ours, to what it declares.

    Builds it into small models and checks that no token reads a later one (causality), that padding and packed
    documents change nothing, that decoding from a cache equals a full forward pass, that permuted tokens give permuted
    outputs, that gradients reach every parameter, that evaluation is deterministic, near in bf16, and compiles into one
    graph; for modules with a loss of their own, such as experts, that padding does not change it. With a
    parametrization, such as parametrization=mup, also that after ten updates the sizes of activations do not depend on
    the width of the model. The checks are those of blockyard's own tests, for token_mixer, channel_mixer, norm, block,
    residual, position, head, model and parametrization; choices of other families are the context.

    Prints a line for each property; a broken one comes with the smallest counter-example.

    exit codes: 0 every declared property holds, 1 one is broken, 2 invalid input

    Examples:
        blockyard verify token_mixer=attention position=rope
        blockyard verify token_mixer=running_mean --config-dir myconf allow=[mypackage]
    """
    if not overrides:
        raise UserError("verify needs a choice, such as token_mixer=attention; `blockyard list` shows them")
    from blockyard.verify import run

    rows = table(None, "property", "verdict", "detail")
    broken = 0
    for finding in run.verify(overrides, config_dirs):
        rows.add_row(finding.name, finding.verdict, finding.detail)
        broken += finding.verdict == "broken"
    console().print(rows)
    return 1 if broken else 0
