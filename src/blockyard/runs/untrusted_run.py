"""The files of a run of a stranger that could do harm where they are read, found before anything uses them.

A config may name classes of trusted libraries and of the packages that the user allows; predictions hold no pickle.
Names, links and sizes come before: see `members`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_yaml
from blockyard.config.untrusted.targets import allow_of, allowed
from blockyard.errors import first_line, quoted
from blockyard.runs.folder import CONFIG
from blockyard.runs.predictions_file import TEST, read_predictions


def harm_in(run: Path, allow: Sequence[str]) -> str | None:
    """Return the reason why a run's folder is not read; None for a run that may be. Nothing of it is imported.

    run: `NAME-HASH/sSEED`; allow: packages besides the trusted ones whose classes its config may name
    """
    name = f"{run.parent.name}/{run.name}"
    try:
        config = read_yaml(run / CONFIG)
        if (run / TEST).exists():
            read_predictions(run / TEST)
    except (ValueError, OSError) as error:
        return first_line(error)
    if config.get("allow") is not None and config["allow"] != allow_of(config):
        return f"{name} has allow: {quoted(config['allow'])}, which is not a list of package names"
    packages = [package for package in allow_of(config) if package not in allow]
    if packages:
        return f"{name} uses components of {', '.join(packages)}; if you trust it, add allow=[{','.join(packages)}]"
    for target in _targets(config):
        if not isinstance(target, str) or not allowed(target, list(allow)):
            return f"{name} names _target_: {quoted(target)}, of no trusted library"
    return None


def _targets(value: Any) -> Iterator[Any]:
    """Yield every `_target_` of a config."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            if "_target_" in item:
                yield item["_target_"]
            stack += item.values()
        elif isinstance(item, list):
            stack += item
