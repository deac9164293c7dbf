"""The model that is looked at, and the samples that it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Seq, TextTokenizer
from blockyard.data._order import take
from blockyard.errors import UserError
from blockyard.inspect.options import Options
from blockyard.ops.maps import block_number
from blockyard.runs.load import Loaded

VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}  # letters that would leave a label empty


@dataclass
class Sample:
    """One row, as the model is called with it.

    batch: one row; number: which of the validation part, None for a prompt
    text: what each token of the row reads as, empty for other inputs; source: the same of an encoder's row
    picture: (height, width) or (height, width, 3) from 0 to 1, None where the input is no picture
    """

    batch: Batch
    number: int | None
    text: list[str] = field(default_factory=list)
    source: list[str] = field(default_factory=list)
    picture: Tensor | None = None

    def own(self, path: str) -> list[str]:
        """The text of the row that the module at `path` runs over."""
        return self.source if "encoder" in path.split(".") else self.text

    @property
    def other(self) -> list[str]:
        """The text of the row that cross-attention reads: the source where there is one."""
        return self.source or self.text

    @property
    def name(self) -> str:
        """How it is called in titles."""
        return "the prompt" if self.number is None else f"validation sample {self.number}"


def samples(loaded: Loaded, options: Options) -> list[Sample]:
    """The rows that `options` ask for. Raises UserError where they are not there."""
    if options.prompt is not None:
        return [_prompt(loaded, options.prompt)]
    missing = loaded.data.missing()
    if missing:
        raise UserError(missing)
    loaded.data.prepare()
    split = loaded.data.load(loaded.tokenizer).validation
    if options.sample >= len(split):
        raise UserError(f"sample={options.sample}: the validation part has {len(split)} samples, from 0")
    numbers = range(options.sample, min(options.sample + options.samples, len(split)))
    return [_sample(loaded, take(split, torch.tensor([number]), None), number) for number in numbers]


def _sample(loaded: Loaded, batch: Batch, number: int) -> Sample:
    batch = loaded.objective.prepare(batch)
    made = Sample(batch, number)
    if batch.inputs.ndim == 2 and not batch.inputs.is_floating_point():
        made.text = _read(loaded, batch.inputs[0], batch.lengths)
    if batch.inputs.ndim == 4 and batch.inputs.shape[1] in (1, 3):
        made.picture = _picture(batch.inputs[0])
    if batch.source is not None:
        made.source = _read(loaded, batch.source[0], batch.source_lengths)
    return made


def _prompt(loaded: Loaded, prompt: str) -> Sample:
    name, ctx = loaded.folder.name, loaded.model.ctx
    if not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(f"prompt: {name} is a model of {loaded.data.spec.things}; use sample=NUMBER")
    if loaded.components.architecture.takes_source:
        raise UserError(f"prompt: {name} reads two rows, a source and a target; use sample=NUMBER")
    symbols = loaded.tokenizer.encode(prompt)
    if not 0 < len(symbols) <= ctx.tokens.max_len:
        raise UserError(f"prompt: it has {len(symbols)} tokens, {name} takes 1 to {ctx.tokens.max_len}")
    row = torch.tensor([symbols])  # (1, N)
    return Sample(Batch(row), None, text=_read(loaded, row[0], None))


def _read(loaded: Loaded, symbols: Tensor, lengths: Tensor | None) -> list[str]:
    """What each symbol reads as."""
    symbols = symbols if lengths is None else symbols[: int(lengths[0])]
    return [symbol_text(loaded, symbol) for symbol in symbols.tolist()]


def symbol_text(loaded: Loaded, symbol: int) -> str:
    """What one symbol is called, with blanks made visible; its number where nobody names it.

    Symbols beyond the tokenizer's own are those of the model's `TokenSpec`: START, END, MASK.
    """
    tokens = loaded.model.ctx.tokens
    for name in ("start", "end", "mask"):
        if symbol == getattr(tokens, name):
            return name.upper()
    text = loaded.data.token_name(symbol) or loaded.tokenizer.token_name(symbol) or f"#{symbol}"
    return "".join(VISIBLE.get(letter, letter if letter.isprintable() else ascii(letter)[1:-1]) for letter in text)


def _picture(image: Tensor) -> Tensor:
    """(C, height, width), normalised in whatever way -> (height, width) or (height, width, 3), 0 to 1."""
    image = image.float()
    low, high = image.min(), image.max()
    image = (image - low) / (high - low).clamp_min(1e-12)
    return image[0] if len(image) == 1 else image.permute(1, 2, 0)


def labels(text: list[str], model: nn.Module, seq: Seq) -> list[str]:
    """A name for each token of a row: its text, its place on the grid, or its number.

    text: what the row's tokens read as, without its padding; empty where they are no text. A row that lies on no
        line, such as a perceiver's latents, holds none of it, however long it is
    """
    prefix = _prefix(model, seq.num_prefix)
    count = len(seq) - len(prefix)
    if text and seq.grid is not None and len(seq.grid) == 1 and len(text) <= count:
        return [*prefix, *text, *["pad"] * (count - len(text))]
    if seq.grid is not None and len(seq.grid) == 2 and seq.grid[0] * seq.grid[1] == count:
        return [*prefix, *(f"{i // seq.grid[1]},{i % seq.grid[1]}" for i in range(count))]
    return [*prefix, *map(str, range(count))]


def _prefix(model: nn.Module, count: int) -> list[str]:
    options = getattr(model, "prefix_options", None)
    first = ["class"] if count and options is not None and options.class_token else []
    return [*first, *(f"reg {i}" for i in range(count - len(first)))]


def title(path: str) -> str:
    """A module's path in words: decoder.blocks.1.cross_mixer is decoder block 1 cross."""
    words = path.replace("blocks", "block").replace("token_mixer", "").replace("_mixer", "").replace(".", " ")
    return " ".join(words.split())


def chosen(paths: Iterable[str], layers: tuple[int, ...] | None) -> list[str]:
    """The paths in these layers. Raises UserError for a layer that is not there."""
    paths = list(paths)
    there = sorted({n for path in paths if (n := block_number(path)) is not None})
    wrong = [layer for layer in layers or () if layer not in there]
    if wrong:
        raise UserError(f"layers={','.join(map(str, wrong))}: there are {', '.join(map(str, there)) or 'none'}")
    return [path for path in paths if layers is None or block_number(path) in layers]


def chosen_heads(count: int, heads: tuple[int, ...] | None) -> list[int]:
    """The heads of a layer that has `count`. Raises UserError for one that is not there."""
    wrong = [head for head in heads or () if head >= count]
    if wrong:
        raise UserError(f"heads={','.join(map(str, wrong))}: a layer has {count}, from 0")
    return list(range(count)) if heads is None else list(heads)
