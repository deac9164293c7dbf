"""blockyard eval run=RUN [split=test|validation|train] [which=best|last|previous] [outputs=FOLDER]
       [allow=[PACKAGE]] [extrapolate=[2,4,8] [position.OPTION=VALUE ...]]

The figures of a run's model on one split, computed again from its checkpoint. With extrapolate, those
of a decoder in rows so many times longer than in training, the same text (or task) at every length: a table,
and extrapolation-SPLIT.json and .svg in the run's folder. Options of the position scheme may be
changed for it, where the weights stay the same; that curve gets a name of its own.

example: blockyard eval run=last split=validation
example: blockyard eval run=last extrapolate=[2,4] position.scaling=yarn
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from blockyard.commands._args import CHECKPOINTS, Args, only, packages, read
from blockyard.errors import UserError

KEYS = ("run", "split", "which", "outputs", "allow", "extrapolate")


def run(arguments: Sequence[str]) -> int:
    """Print each figure on a line of its own, or a line for each length of rows."""
    words = read(arguments, {})
    name, split, which = words.take("run"), words.take("split", "test"), words.take("which", "best")
    outputs, allow = words.take("outputs", "outputs"), packages(words)
    lengths = words.take("extrapolate")
    position = {} if lengths is None else _position(words)
    only(words, "eval", KEYS)
    if not name:
        raise UserError("eval takes run=RUN: a path, an id, part of a name, or last")
    for key, value, legal in (("split", split, ("test", "validation", "train")), ("which", which, CHECKPOINTS)):
        if value not in legal:
            raise UserError(f"{key}={value}: takes one of {', '.join(legal)}")
    asked = {"split": split, "which": which, "outputs": outputs, "allow": allow}
    if lengths is not None:
        return _longer(name, _factors(lengths), position, asked)
    from blockyard.evaluate.api import evaluate

    for metric, value in evaluate(name, **asked).items():
        sys.stdout.write(f"{metric:<24}{value:.6g}\n")
    return 0


def _longer(name: str, factors: list[int], position: dict[str, Any], asked: dict[str, Any]) -> int:
    from blockyard.evaluate.api import evaluate_longer
    from blockyard.evaluate.extrapolation_files import table, write

    curve, loaded = evaluate_longer(name, factors, position=position, **asked)
    sys.stdout.write(table(curve.plain()))
    try:
        paths = write(loaded.folder.path, curve.plain(), loaded.checkpoint.name, position)
    except OSError as error:
        raise UserError(f"the curve cannot be written into {loaded.folder.path}: {error}") from None
    sys.stderr.write(f"{' and '.join(str(path) for path in paths)}\n")
    if all(each.refused for each in curve.lengths[1:]):
        raise UserError(f"extrapolate={factors}: none of these lengths can be read, for the reasons in the table")
    return 0


def _factors(text: str) -> list[int]:
    try:
        return [int(part) for part in text.strip("[]() ").split(",")]
    except ValueError:
        raise UserError(f"extrapolate={text}: takes a list of whole numbers from 2, such as [2,4,8]") from None


def _position(words: Args) -> dict[str, Any]:
    """The values of `position.OPTION=VALUE`, taken out of the overrides."""
    import yaml

    found = {}
    for word in [word for word in words.overrides if word.startswith("position.")]:
        key = word.partition("=")[0]
        try:
            found[key.removeprefix("position.")] = yaml.safe_load(words.take(key, "") or "")
        except yaml.YAMLError:
            raise UserError(f"{word}: is no value") from None
    return found
