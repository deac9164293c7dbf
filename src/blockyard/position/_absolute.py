"""Absolute position encodings: added to the tokens or concatenated once, before the first block.

combine=add       x (B, N, D) + encoding (B|1, N, D)
combine=concat    [x (B, N, D - C), encoding (B|1, N, C)], where tokens are embedded in D - C channels
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from blockyard.contracts import ChoiceOptions, Context, Position

Combine = Literal["add", "concat"]


def check_axes(position: type[Position], ctx: Context) -> None:
    """Raise ValueError if the scheme does not support the number of coordinate axes of the tokens."""
    if ctx.tokens.axes not in position.axes:
        allowed = ", ".join(map(str, sorted(position.axes)))
        raise ValueError(
            f"position {position.__name__} supports {allowed} coordinate axes, the tokens have {ctx.tokens.axes}; "
            "use position=none or another tokenizer"
        )


def check_split(
    name: str, width: int, what: str, axes: int, group: int = 2, change: str = "model.dim or model.heads"
) -> None:
    """Raise ValueError if `width` channels cannot be divided in groups (pairs) among `axes` axes."""
    if width % (group * axes) or not width:
        how = "in pairs among" if group == 2 else "among"
        raise ValueError(
            f"position {name} divides {what} {how} {axes} axes, so it must be a multiple of "
            f"{group * axes}, not {width}; change {change}"
        )


class Absolute(Position):
    """Base of absolute schemes. Subclasses implement `encoding`, `channels` wide.

    Options:
        combine: add the encoding to all channels, or concat it in channels of its own, which narrows the token
            embedding by as many
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"embed"})

    def __init__(self, ctx: Context, *, combine: Combine, channels: int) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.combine = combine
        self.channels = channels
        self.width = channels if combine == "concat" else 0  # the embedder leaves as many channels free

    @classmethod
    def concatenates(cls, options: ChoiceOptions) -> bool:
        """Return whether the encoding has channels of its own."""
        return options.get("combine") == "concat"

    def encoding(self, coords: Tensor, like: Tensor) -> Tensor:
        """Return the encoding of coords (B|1, N, A), in the dtype and on the device of `like`: (B|1, N, channels)."""
        raise AssertionError("abstract")

    def embed(self, x: Tensor, coords: Tensor) -> Tensor:
        """x (B, N, D - width), coords (B|1, N, A) -> (B, N, D)."""
        encoding = self.encoding(coords, x)  # (B|1, N, channels)
        if self.combine == "add":
            return x + encoding  # (B, N, D)
        return torch.cat([x, encoding.expand(x.shape[0], -1, -1)], dim=-1)  # (B, N, D)


def encoding_width(name: str, ctx: Context, combine: Combine, width: int | None, multiple: int = 1) -> int:
    """Return the number of channels of an encoding: of the stream if it is added, else `width`.

    width: None means a quarter of the stream
    multiple: divisor of the number of channels

    Raises ValueError if `width` would have no effect, or is not a multiple.
    """
    if combine == "add":
        if width is not None:
            raise ValueError(
                f"position.width={width} has no effect with position.combine=add: the encoding is as wide as the "
                "tokens; use position.width=null or position.combine=concat"
            )
        return ctx.dim
    channels = max(multiple, ctx.dim // 4 // multiple * multiple) if width is None else width
    if channels % multiple:
        raise ValueError(
            f"position.width={channels}: {name} divides its channels evenly among {ctx.tokens.axes} axes, so it must "
            f"be a multiple of {multiple}"
        )
    return channels


def token_norm(ctx: Context) -> float:
    """Return the expected norm of a token embedding of D channels at initialisation."""
    return ctx.token_std * ctx.dim**0.5
