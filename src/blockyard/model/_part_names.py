"""Parts of a model by name, as in `init.freeze`, `init.parts` and the factors of an optimizer.

A name is the dotted path of a module or of a parameter: embedder, blocks, blocks.0, blocks.0.norm1.weight. In it, `*`
stands for any characters, dots among them: *.bias, blocks.*.token_mixer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from blockyard.errors import did_you_mean


def is_in(name: str, parts: Iterable[str]) -> bool:
    """Return whether a parameter belongs to one of the parts."""
    for part in parts:
        if "*" in part:
            if fnmatchcase(name, part) or fnmatchcase(name, f"{part}.*"):
                return True
        elif name == part or name.startswith(f"{part}."):
            return True
    return False


def unknown_part(model: nn.Module, parts: Sequence[str]) -> str | None:
    """Return a sentence with the first unknown part and the parts of the model; None if all have parameters."""
    names = [name for name, _ in model.named_parameters()]
    for part in parts:
        if not any(is_in(name, [part]) for name in names):
            tops = list(dict.fromkeys(name.partition(".")[0] for name in names))
            return f"this model has no part {part!r} with weights{did_you_mean(part, tops)}; it has {', '.join(tops)}"
    return None
