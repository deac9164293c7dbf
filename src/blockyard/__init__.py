"""blockyard: compose, train and compare transformer blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockyard.report.comparison import compare
    from blockyard.runs.load import load

__version__ = "0.1.0"
__all__ = ["__version__", "compare", "load"]


def __getattr__(name: str) -> object:
    # `load` needs torch, which takes seconds to import; `blockyard --help` must not wait for it.
    if name == "load":
        from blockyard.runs.load import load

        return load
    if name == "compare":
        from blockyard.report.comparison import compare

        return compare
    raise AttributeError(f"module 'blockyard' has no attribute {name!r}")
