"""blockyard eval run=RUN [split=test|validation|train] [which=best|last] [outputs=FOLDER] [allow=[PACKAGE]]

The figures of a run's model on one split, computed again from its checkpoint.

example: blockyard eval run=last split=validation
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blockyard.errors import UserError
from blockyard.verbs._words import only, packages, read

KEYS = ("run", "split", "which", "outputs", "allow")


def run(arguments: Sequence[str]) -> int:
    """Print each figure on a line of its own."""
    words = read(arguments, {})
    name, split, which = words.take("run"), words.take("split", "test"), words.take("which", "best")
    outputs, allow = words.take("outputs", "outputs"), packages(words)
    only(words, "eval", KEYS)
    if not name:
        raise UserError("eval takes run=RUN: a path, an id, part of a name, or last")
    for key, value, legal in (("split", split, ("test", "validation", "train")), ("which", which, ("best", "last"))):
        if value not in legal:
            raise UserError(f"{key}={value}: takes one of {', '.join(legal)}")
    from blockyard.evaluate import evaluate

    for metric, value in evaluate(name, split=split, which=which, outputs=outputs, allow=allow).items():
        sys.stdout.write(f"{metric:<24}{value:.6g}\n")
    return 0
