"""The options of classes as text, to compare two processes that read them."""

from __future__ import annotations

from blockyard.config.defaults import plain_default
from blockyard.config.schema import Option, options
from blockyard.config.untrusted.targets import locate


def described(names: list[str]) -> dict[str, dict[str, list[str | None]]]:
    """Type, default, help and nodes of the options of classes, by their dotted names."""
    return {name: {option.name: _texts(option) for option in options(locate(name)).values()} for name in names}


def _texts(option: Option) -> list[str | None]:
    nodes = None
    if option.slot is not None:
        nodes = option.slot.describe()
    return [option.describe(), str(plain_default(option.default)), option.help, nodes]
