"""What absolute schemes share: a code for each place meets the tokens once, before the first block.

combine=add       x (B, N, D) + code (B|1, N, D)
combine=concat    [x (B, N, D - C), code (B|1, N, C)], the tokens having left C channels free
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from blockyard.contracts import Context, Position
from blockyard.position._axes import check_axes

Combine = Literal["add", "concat"]


class Absolute(Position):
    """Subclasses give `code`; `channels` is how wide it is.

    Options:
        combine: add the code to all channels of a token, or give it channels of its own; a token's vector is
            then narrower by as many
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"embed"})

    def __init__(self, ctx: Context, *, combine: Combine, channels: int) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.combine, self.channels = combine, channels
        self.width = channels if combine == "concat" else 0

    @classmethod
    def concatenates(cls, options: dict[str, Any]) -> bool:
        """Where the code has channels of its own."""
        return options.get("combine") == "concat"

    def code(self, coords: Tensor, like: Tensor) -> Tensor:
        """The code of coords (B|1, N, A), to join vectors of the type of `like`: (B|1, N, channels)."""
        raise AssertionError("abstract")

    def embed(self, x: Tensor, coords: Tensor) -> Tensor:
        """x (B, N, D - width), coords (B|1, N, A) -> (B, N, D)."""
        code = self.code(coords, x)
        if self.combine == "add":
            return x + code  # (B, N, D)
        return torch.cat([x, code.expand(x.shape[0], -1, -1)], dim=-1)  # (B, N, D)


def code_width(name: str, ctx: Context, combine: Combine, width: int | None, multiple: int = 1) -> int:
    """How many channels a code of any width has: those of the stream, or where concatenated `width`.

    multiple: what it is to be a multiple of; width None takes a quarter of the stream
    Raises ValueError where `width` would not be read, or does not divide.
    """
    if combine == "add":
        if width is not None:
            raise ValueError(
                f"position.width={width} with position.combine=add: a code that is added to tokens is as wide as they "
                "are; use position.width=null or position.combine=concat"
            )
        return ctx.dim
    found = max(multiple, ctx.dim // 4 // multiple * multiple) if width is None else width
    if found % multiple:
        raise ValueError(
            f"position.width={found}: {name} shares its channels out evenly over {ctx.tokens.axes} axes, so it must be "
            f"a multiple of {multiple}"
        )
    return found


def token_size(ctx: Context) -> float:
    """The length of a fresh token's vector of D channels."""
    return ctx.token_std * ctx.dim**0.5
