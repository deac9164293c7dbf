"""Checks that position schemes share."""

from __future__ import annotations

from blockyard.contracts import Context, Position


def check_axes(position: type[Position], ctx: Context) -> None:
    """Raises ValueError where the tokens have a number of coordinate axes the scheme does not know."""
    if ctx.tokens.axes not in position.axes:
        legal = ", ".join(map(str, sorted(position.axes)))
        raise ValueError(
            f"position {position.__name__} works on {legal} coordinate axes, the tokens have {ctx.tokens.axes}; "
            "use position=none or another tokenizer"
        )


def check_split(
    name: str, width: int, what: str, axes: int, group: int = 2, change: str = "model.dim or model.heads"
) -> None:
    """Raises ValueError where `width` channels cannot be shared out in groups (pairs) over `axes` axes."""
    if width % (group * axes) or not width:
        how = "in pairs over" if group == 2 else "over"
        raise ValueError(
            f"position {name} shares {what} out {how} {axes} axes, so it must be a multiple of "
            f"{group * axes}, not {width}; change {change}"
        )
