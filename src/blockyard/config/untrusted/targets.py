"""Classes that a `_target_` may name: of trusted packages, of installed components, and of allowed packages."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from blockyard.config.untrusted import placeholders
from blockyard.config.untrusted.installed import installed_packages
from blockyard.config.untrusted.package_finder import is_not_allowed

TRUSTED_PACKAGES = ("blockyard", "torch", "pytorch_lightning", "torchmetrics", "timm", "transformers")


def allowed(target: str, allow: list[str]) -> bool:
    """Return whether `_target_` may name this: a dotted name inside a trusted, installed or allowed package."""
    package = _package(target)
    return package in TRUSTED_PACKAGES or (package != "" and package in own_packages(allow))


@lru_cache(maxsize=4096)
def _package(target: str) -> str:
    """Return the package of a dotted name; "" for a text that is none."""
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", target):
        return target.split(".")[0]
    return ""


def own_packages(allow: Iterable[str]) -> tuple[str, ...]:
    """Return the packages besides the trusted ones that a config may name: allowed and installed ones."""
    return (*allow, *installed_packages())


def allow_of(config: Mapping[str, Any]) -> list[str]:
    """Return the packages that a config allows; none where `allow` is not a list of names. `check` reports that."""
    names = config.get("allow")
    if not isinstance(names, list | tuple):
        return []
    return [name for name in names if isinstance(name, str)]


def find(target: str, packages: Collection[str]) -> type | None:
    """Return the class of a dotted name; None where it does not exist or is in none of the packages."""
    package = _package(target)
    if not package or package not in packages:
        return None
    try:
        return locate(target)
    except ValueError:
        return None


def locate(target: str) -> type:
    """Return the class of an allowed dotted name. Raises ValueError if it does not exist.

    Only classes pass: functions such as `torch.load` are not components, whatever their package.
    """
    module, _, name = target.rpartition(".")
    if not target.startswith("blockyard."):  # what another package makes of stand-ins says nothing
        placeholders.require_torch()
    try:
        # A module that is imported already is found faster; planning a large sweep asks a million times.
        located = getattr(sys.modules.get(module) or importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{target} cannot be imported ({error}){_way_out(error)}") from error
    except Exception as error:  # a user's module may fail in any way while it is imported
        raise ValueError(f"{module} cannot be imported ({type(error).__name__}: {error})") from error
    if not inspect.isclass(located):
        raise ValueError(f"{target} is a {type(located).__name__}, not a class")
    return located


def _way_out(error: Exception) -> str:
    """Return the way out where a package imports a module beside it that `allow` does not name; "" elsewhere."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if not name or not is_not_allowed(name):
        return ""
    return f"; it is beside your package: allow=[..., {name}] names it too"
