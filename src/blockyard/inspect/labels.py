"""Names of tokens and layers, as tables and figures show them."""

from __future__ import annotations

from torch import nn

from blockyard.contracts import Seq
from blockyard.runs.load import Loaded

WHITESPACE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}  # visible, so that no label is blank


def token_text(loaded: Loaded, token_id: int) -> str:
    """Return the text of one token with visible whitespace; `#` and its id if it has no text.

    Ids beyond the tokenizer's vocabulary are the model's special tokens in `TokenSpec`: START, END, MASK.
    """
    tokens = loaded.model.ctx.tokens
    for name in ("start", "end", "mask"):
        if token_id == getattr(tokens, name):
            return name.upper()
    text = loaded.data.token_name(token_id) or loaded.tokenizer.token_name(token_id) or f"#{token_id}"
    return "".join(WHITESPACE.get(letter, letter if letter.isprintable() else ascii(letter)[1:-1]) for letter in text)


def real_tokens(seq: Seq) -> int:
    """Return the number of tokens of the first sequence, with its prefix and without padding."""
    if seq.valid is None:
        return len(seq)
    return int(seq.valid[0].sum())


def token_labels(text: list[str], model: nn.Module, seq: Seq) -> list[str]:
    """Return a label for each token of a sequence: its text, its cell on the grid, or its index.

    text: the text of the tokens without padding; empty for tokens that are not text. A sequence without a 1D grid,
        such as a perceiver's latents, takes none of it, even if the lengths agree
    """
    prefix = _prefix_labels(model, seq.num_prefix)
    count = len(seq) - len(prefix)
    if text and seq.grid is not None and len(seq.grid) == 1 and len(text) <= count:
        return [*prefix, *text, *["pad"] * (count - len(text))]
    if seq.grid is not None and len(seq.grid) == 2 and seq.grid[0] * seq.grid[1] == count:
        return [*prefix, *(f"{i // seq.grid[1]},{i % seq.grid[1]}" for i in range(count))]
    return [*prefix, *map(str, range(count))]


def _prefix_labels(model: nn.Module, count: int) -> list[str]:
    """Return labels of class, register and source tokens, in the order of a prefix."""
    options = getattr(model, "prefix_options", None)
    class_label = ["class"] if count and options is not None and options.class_token else []
    learned = min(count, len(options)) if options is not None else count
    registers = [f"reg {i}" for i in range(learned - len(class_label))]
    return [*class_label, *registers, *(f"source {i}" for i in range(count - learned))]


class InLayer:
    """A result of the module at `path`."""

    path: str

    @property
    def name(self) -> str:
        """The readable name of the layer."""
        return layer_name(self.path).removesuffix(" channel")


def layer_name(path: str) -> str:
    """Return a module's path as a readable name: decoder.blocks.1.cross_mixer is decoder block 1 cross."""
    name = path.replace("blocks", "block").replace("token_mixer", "").replace("_mixer", "").replace(".", " ")
    return " ".join(name.split())
