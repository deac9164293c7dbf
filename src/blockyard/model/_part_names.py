"""Parts of a model by name, as `init.freeze`, `init.parts` and the factors of an optimizer name them.

A name is the dotted path of a module or of a parameter: embedder, blocks, blocks.0, blocks.0.norm1.weight. In it, `*`
stands for any characters, dots among them: *.bias, blocks.*.token_mixer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from blockyard.errors import did_you_mean


def is_in(name: str, parts: Iterable[str]) -> bool:
    """Whether a parameter belongs to one of the parts."""
    return any(
        fnmatchcase(name, part) or fnmatchcase(name, f"{part}.*")
        if "*" in part
        else name == part or name.startswith(f"{part}.")
        for part in parts
    )


def unknown_part(model: nn.Module, parts: Sequence[str]) -> str | None:
    """Why a part is unknown: its name and those that the model has; None where all have parameters."""
    names = [name for name, _ in model.named_parameters()]
    for part in parts:
        if not any(is_in(name, [part]) for name in names):
            tops = list(dict.fromkeys(name.partition(".")[0] for name in names))
            return f"this model has no part {part!r} with weights{did_you_mean(part, tops)}; it has {', '.join(tops)}"
    return None
