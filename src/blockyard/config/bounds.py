"""Upper bounds of options: whether a value exceeds one, and why it is there."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from blockyard.config.machine import cpu_cores
from blockyard.contracts import Because
from blockyard.contracts.option_types import LARGEST_COUNT, LARGEST_FLOAT, LARGEST_SEED, PerCore

UNSAID = (LARGEST_COUNT, LARGEST_FLOAT, LARGEST_SEED)  # upper bounds that only say that a number is finite


def describe_bounds(metadata: tuple[Any, ...]) -> str:
    """The range of an annotated type: ">= 1 and <= 1,024"."""
    least: list[tuple[Any, str]] = [(each.ge, ">=") for each in metadata if type(each) is Ge]
    least += [(each.gt, ">") for each in metadata if type(each) is Gt]
    most: list[tuple[Any, str]] = [(each.le, "<=") for each in metadata if type(each) is Le and each.le not in UNSAID]
    most += [(each.lt, "<") for each in metadata if type(each) is Lt]
    ends = [*sorted(least, key=lambda end: end[0])[-1:], *sorted(most, key=lambda end: end[0])[:1]]
    return " and ".join(f"{sign} {end:,}" for end, sign in ends)


def exceeded(annotation: Any, value: Any) -> str | None:
    """The upper bound that a value exceeds, and the reason for it; None where it exceeds none."""
    for metadata, number in _numbers(annotation, value):
        for each in metadata:
            if type(each) is Le and number > each.le:
                return f"expected at most {each.le:,}{_reason(metadata)}"
    return None


def exceeded_here(annotation: Any, value: Any) -> str | None:
    """The same for bounds by the CPU cores of this machine."""
    for metadata, number in _numbers(annotation, value):
        for each in metadata:
            if isinstance(each, PerCore) and number > each.count * cpu_cores():
                most = f"{each.count * cpu_cores()} on this machine, {each.count} for each CPU core"
                return f"expected at most {most}{_reason(metadata)}"
    return None


def _reason(metadata: tuple[Any, ...]) -> str:
    return "".join(f"; {each.reason}" for each in metadata if isinstance(each, Because))


def _numbers(annotation: Any, value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every number in a value, with the metadata of its type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and isinstance(value, int | float) and not isinstance(value, bool):
        yield arguments[1:], value
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from _numbers(each, value)
    elif origin in (list, tuple) and isinstance(value, list):
        for each in value:
            yield from _numbers(arguments[0], each)
    elif hasattr(annotation, "__dataclass_fields__") and isinstance(value, dict):
        hints = get_type_hints(annotation, include_extras=True)
        for name, each in value.items():
            yield from _numbers(hints.get(name), each)
