"""The kinds of `blockyard inspect`, and their options, read from text. Nothing heavy is imported here.

A kind is a file of `inspect/kinds/`, found on the disk. Its `OPTIONS` are read from the source: importing it would
import torch, and `--help` and completion do not wait for that.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.config.option_text import Reader, indices, integer, non_empty, one_of, read_option
from blockyard.errors import UserError

FOLDER = Path(__file__).parent / "kinds"
QUERIES = ("mean", "class", "last")
MAX_SAMPLES = 10_000


@dataclass(frozen=True)
class Options:
    """The options of all kinds of inspection.

    layers, heads: indices; None is all
    sample: the first sample of the validation split; samples: how many from there on are averaged, or drawn
    prompt: a text instead of the samples
    query: the query of the shown attention: "mean" over all, "class", "last", or a token's index;
        None is the class token if there is one, else "last" for a causal model and "mean" for others
    of: the token "mixer" alone, or the whole "block"
    probes: random directions a token for the Jacobian; 0 is exact; None is exact if that is cheap
    vocabulary: a text with the tokens of the shown circuits; None is the most frequent tokens
    keys: the shown keys of the memory; None is the few with the largest coefficients in each layer
    examples: tokens of the training split that are shown for a key
    train_samples: the number of training samples searched for them
    permute: "patches" in a random order, or a "shift" of all by one place
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    sample: int = 0
    samples: int = 4
    prompt: str | None = None
    query: str | int | None = None
    of: str = "mixer"
    probes: int | None = None
    vocabulary: str | None = None
    keys: tuple[int, ...] | None = None
    examples: int = 5
    train_samples: int = 256
    permute: str = "patches"


def _listed(kinds: Sequence[str]) -> str:
    """Kinds as text: a, b and c."""
    return " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))


def _query(text: str) -> str | int:
    if text in QUERIES:
        return text
    try:
        return integer()(text)
    except ValueError:
        raise ValueError(f"{', '.join(QUERIES)}, or the index of a token") from None


READERS: dict[str, Reader] = {
    "layers": indices,
    "heads": indices,
    "sample": integer(),
    "samples": integer(1, MAX_SAMPLES),
    "prompt": non_empty,
    "query": _query,
    "of": one_of("mixer", "block"),
    "probes": integer(note="; 0 is exact"),
    "vocabulary": non_empty,
    "keys": indices,
    "examples": integer(1, 50),
    "train_samples": integer(1, MAX_SAMPLES),
    "permute": one_of("patches", "shift"),
}


def declared(path: Path) -> tuple[str, ...]:
    """Return the options that a kind's file declares. Raises ValueError for one that declares none it can read."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OPTIONS":
            names: tuple[str, ...] = ast.literal_eval(node.value)
            unknown = [name for name in names if name not in READERS]
            if unknown:
                raise ValueError(
                    f"{path.name}: OPTIONS has {_listed(unknown)}; options.py reads {_listed(list(READERS))}"
                )
            return names
    raise ValueError(f"{path.name}: a kind of inspection declares its OPTIONS, a tuple of names")


# The options that each kind has, by its name.
KINDS = {path.stem: declared(path) for path in sorted(FOLDER.glob("[!_]*.py"))}

# key: the kinds that have the option, and how its text is read
KEYS: dict[str, tuple[tuple[str, ...], Reader]] = {
    key: (tuple(kind for kind, names in KINDS.items() if key in names), reader) for key, reader in READERS.items()
}


def options(kinds: tuple[str, ...], texts: Mapping[str, str]) -> Options:
    """The options of these kinds. Raises UserError for one that a kind does not have, and for an invalid value."""
    values: dict[str, Any] = {}
    for key, text in texts.items():
        of_kinds, reader = KEYS[key]
        others = [kind for kind in kinds if kind not in of_kinds]
        if others:
            hint = "; run them as separate commands" if len(others) < len(kinds) else ""
            raise UserError(f"{key}={text}: an option of {_listed(of_kinds)}, not of {_listed(others)}{hint}")
        values[key] = read_option(key, text, reader)
    for key in ("sample", "samples"):
        if "prompt" in values and key in values:
            raise UserError(f"{key}={values[key]}: has no effect together with prompt; leave out {key} or prompt")
    return Options(**values)
