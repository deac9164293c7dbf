"""blockyard verify FAMILY=CHOICE [key=value ...] [--config-dir DIR] [allow=[PACKAGE]]

Hold a component, yours or ours, to what it declares: build it into small models and check that no token reads a later
one (causality), that padding and packed documents change nothing, that decoding from a cache equals a full forward
pass, that permuted tokens give permuted outputs, that gradients reach every parameter, that evaluation is
deterministic, near in bf16, and compiles into one graph; of modules with a loss of their own, such as experts, that
padding does not change it. With a parametrization, such as parametrization=mup, they also check that after ten updates
sizes of activations do not depend on the width of the model. The checks are those of blockyard's own tests. They are
about token_mixer, channel_mixer, norm, block, residual, position, head, model and parametrization; choices of other
families are the context.

Prints a line for each property; one that is broken comes with the smallest counter-example.

exit codes: 0 every declared property holds, 1 one is broken, 2 invalid input

Examples:
  blockyard verify token_mixer=attention position=rope
  blockyard verify token_mixer=running_mean --config-dir myconf allow=[mypackage]
"""

from __future__ import annotations

from collections.abc import Sequence

from blockyard.commands._args import read
from blockyard.errors import UserError
from blockyard.terminal import console, table

KEYS = ("allow",)  # beside families and their options


def run(arguments: Sequence[str]) -> int:
    """Print the findings."""
    args = read("verify", arguments)
    if not args.overrides:
        raise UserError("verify needs a choice, such as token_mixer=attention; `blockyard list` shows them")
    from blockyard.verify.run import verify

    rows, broken = table(None, "property", "verdict", "detail"), 0
    for finding in verify(args.overrides, args.config_dirs):
        rows.add_row(finding.name, finding.verdict, finding.detail)
        broken += finding.verdict == "broken"
    console().print(rows)
    return 1 if broken else 0
