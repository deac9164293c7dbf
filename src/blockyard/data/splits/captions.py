"""Splits of images with a caption each, encoded once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.contracts import DataSpec, Splits, TextTokenizer, Tokenizer
from blockyard.data.files.pairs import Pair
from blockyard.data.splits.columns import ColumnSplit, Pictures, Ragged
from blockyard.data.splits.text_tokenizer import ends_of, text_tokenizer
from blockyard.errors import UserError

log = logging.getLogger("blockyard")


class CaptionedSplit(ColumnSplit):
    """Images in memory with a caption each: start token, caption, end token. pairs: (name, caption) of each."""

    def __init__(self, images: Pictures, captions: Ragged, pairs: Sequence[Pair]) -> None:
        super().__init__(captions, source=images)
        self.pairs = pairs


def caption_parts(
    parts: Sequence[Tensor],
    images: Tensor,
    names: Sequence[str],
    captions: Sequence[str],
    spec: DataSpec,
    tokenizer: Tokenizer,
    *,
    blank: bool,
) -> Splits:
    """Return the splits; fit the tokenizer on the captions of training if it has no state. Long ones are left out.

    parts: the images of each split; images: uint8 (n, C, size, size) of all; names, captions: n, of each
    """
    tokenizer = text_tokenizer(tokenizer)
    texts = [[captions[i] for i in part.tolist()] for part in parts]
    if not tokenizer.state():
        tokenizer.fit(texts[0])
    ends = ends_of(tokenizer, spec)
    splits: list[CaptionedSplit] = []
    for name, part, own in zip(Splits._fields, parts, texts, strict=True):
        pairs = [(names[i], text) for i, text in zip(part.tolist(), own, strict=True)]
        kept, targets = _encode(name, own, tokenizer, ends, spec.shape[0])
        chosen = [pairs[i] for i in kept]
        source = Pictures(images[part[torch.tensor(kept)]], blank)
        splits.append(CaptionedSplit(source, targets, chosen))
    return Splits(*splits)


def _encode(
    name: str, texts: list[str], tokenizer: TextTokenizer, ends: tuple[int, int], context: int
) -> tuple[list[int], Ragged]:
    """Return the captions that are short enough, by index, and their token ids with start and end token."""
    encoded = [[ends[0], *tokenizer.encode(text), ends[1]] for text in texts]
    kept = [number for number, ids in enumerate(encoded) if len(ids) <= context + 1]
    unknown = sum(tokenizer.decode(encoded[i][1:-1]) != texts[i] for i in kept)
    if not kept:
        raise UserError(f"data.context={context}: no {name} caption has so few tokens; raise it")
    if len(kept) < len(texts):
        dropped = len(texts) - len(kept)
        log.warning("%d of %d %s captions are left out: longer than data.context", dropped, len(texts), name)
    if unknown:
        log.warning(
            "%d of %d %s captions have words that training lacks, which cannot be written", unknown, len(kept), name
        )
    return kept, Ragged.of([encoded[i] for i in kept])
