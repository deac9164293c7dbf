"""blockyard: compose, train and compare transformer blocks.

`train`, `sweep`, `runs`, `load`, `predict` and `compare` are the commands as functions. Each imports what it needs when
it is used, so that `blockyard --help` does not wait for torch.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from blockyard import runs, sweep

if TYPE_CHECKING:
    from blockyard.commands._python import RunFailed, train
    from blockyard.evaluate.predict import predict
    from blockyard.report.comparison import compare
    from blockyard.runs.load import load

__version__ = "0.1.0"
__all__ = ["RunFailed", "__version__", "compare", "load", "predict", "runs", "sweep", "train"]


def __getattr__(name: str) -> object:
    if name == "load":
        from blockyard.runs.load import load

        return load
    if name == "compare":
        from blockyard.report.comparison import compare

        return compare
    if name == "predict":
        from blockyard.evaluate.predict import predict

        return predict
    if name in ("train", "RunFailed"):
        from blockyard.commands import _python

        return getattr(_python, name)
    raise AttributeError(f"module 'blockyard' has no attribute {name!r}")


class _Callable(types.ModuleType):
    """A package that is also the function of its name: `blockyard.runs()` lists what `blockyard.runs.store` stores."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from blockyard.commands import _python

        return getattr(_python, self.__name__.rpartition(".")[2])(*arguments, **settings)


for _package in (runs, sweep):
    _package.__class__ = _Callable
