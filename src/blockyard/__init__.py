"""blockyard: compose, train and compare transformer blocks.

`train`, `check`, `sweep`, `runs`, `load`, `predict`, `embed` and `compare` are the commands as functions; `lightning`
gives a model and its data to a Trainer of Lightning, `hydra_groups` and `build` the config groups to a Hydra
application. Each imports what it needs when it is used, so that `blockyard --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
import logging
import os
import types
from typing import TYPE_CHECKING, Any

from blockyard import runs, sweep
from blockyard.errors import printable_record

logging.getLogger("blockyard").addFilter(printable_record)

if "BLOCKYARD_PACKAGES" in os.environ:  # of the process that started this one, before anything of theirs is unpickled
    from blockyard.config.untrusted import package_finder

    package_finder.install(os.environ["BLOCKYARD_PACKAGES"])

if TYPE_CHECKING:
    from blockyard.campaign.referee import Campaign
    from blockyard.commands._python import RunFailed, build, check, hydra_groups, lightning, train
    from blockyard.errors import UserError
    from blockyard.evaluate.embed import embed
    from blockyard.evaluate.predict import predict
    from blockyard.report.comparison import compare
    from blockyard.runs.load import load

__version__ = "0.2.0"
__all__ = [
    "Campaign",
    "RunFailed",
    "UserError",
    "__version__",
    "build",
    "check",
    "compare",
    "embed",
    "hydra_groups",
    "lightning",
    "load",
    "predict",
    "runs",
    "sweep",
    "train",
]


_MODULES = {
    "load": "blockyard.runs.load",
    "compare": "blockyard.report.comparison",
    "predict": "blockyard.evaluate.predict",
    "build": "blockyard.commands._python",
    "check": "blockyard.commands._python",
    "hydra_groups": "blockyard.commands._python",
    "lightning": "blockyard.commands._python",
    "embed": "blockyard.evaluate.embed",
    "train": "blockyard.commands._python",
    "RunFailed": "blockyard.commands._python",
    "Campaign": "blockyard.campaign.referee",
    "UserError": "blockyard.errors",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'blockyard' has no attribute {name!r}")
    from blockyard.config.untrusted.package_finder import importable, sealed

    with importable(()):
        attribute = getattr(importlib.import_module(_MODULES[name]), name)
    if name in ("load", "compare", "predict", "embed"):
        return sealed(attribute)
    return attribute


class _Callable(types.ModuleType):
    """A package that is also the function of its name: `blockyard.runs()` lists what `blockyard.runs.store` stores."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from blockyard.commands import _python

        return getattr(_python, self.__name__.rpartition(".")[2])(*arguments, **settings)


for _package in (runs, sweep):
    _package.__class__ = _Callable
