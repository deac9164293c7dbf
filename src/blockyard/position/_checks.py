"""Checks that position schemes share."""

from __future__ import annotations

from blockyard.contracts import Context, Position


def check_axes(position: type[Position], ctx: Context) -> None:
    """Raises ValueError where the scheme does not support the number of coordinate axes of the tokens."""
    if ctx.tokens.axes not in position.axes:
        allowed = ", ".join(map(str, sorted(position.axes)))
        raise ValueError(
            f"position {position.__name__} supports {allowed} coordinate axes, the tokens have {ctx.tokens.axes}; "
            "use position=none or another tokenizer"
        )


def check_split(
    name: str, width: int, what: str, axes: int, group: int = 2, change: str = "model.dim or model.heads"
) -> None:
    """Raises ValueError where `width` channels cannot be divided in groups (pairs) among `axes` axes."""
    if width % (group * axes) or not width:
        how = "in pairs among" if group == 2 else "among"
        raise ValueError(
            f"position {name} divides {what} {how} {axes} axes, so it must be a multiple of "
            f"{group * axes}, not {width}; change {change}"
        )
