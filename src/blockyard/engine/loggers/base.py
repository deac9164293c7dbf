"""The interface of a logger."""

from __future__ import annotations

import importlib.util
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from blockyard.config.tree import Node
from blockyard.errors import UserError
from blockyard.runs.folder import METRICS, RunFolder
from blockyard.runs.metrics import read_metrics

if TYPE_CHECKING:
    import numpy as np

    from blockyard.engine.loggers.shown_samples import ShownSample

log = logging.getLogger("blockyard")

# Of gradients: parameter -> counts (bins,), edges (bins + 1,).
Histograms: TypeAlias = "dict[str, tuple[np.ndarray, np.ndarray]]"

CHOICES = "choices"
# Keys of the config that are equal for every run, say where it lies, or are elsewhere in the record.
_LEFT_OUT = ("outputs", "force", "allow", "logger", "executor", "hydra", "name", "tags")
_WIRING = ("_partial_", "_recursive_", "_convert_")
_OWN = "blockyard."
# Keys of the summary that the metrics or the curves hold, or that say how these are read.
_NOISE = ("metrics", "directions", "monitor", "kernels", "final", "refused", "classes")


class RunLogger(ABC):
    """Mirrors a run's metrics. Its options are not part of a run's identity.

    `ready` and `prepare` run in the run's own thread before the first step; `start`, `log` and `finish` in a thread
    of the logger's own, where they may raise or hang. Seeds that they set stay theirs, see `own_generators`; they draw
    no random tensors from torch's global generators: they belong to the run.
    """

    package: ClassVar[str | None] = None  # that must be installed
    extra: ClassVar[str | None] = None  # of blockyard, that installs it
    finish_seconds: float = 0.0  # that the end of a run waits for it, where that is more than for any logger
    test_samples: int = 0  # how many `samples` shows
    watches_gradients: bool = False  # whether it takes `gradients`

    @property
    def label(self) -> str:
        """Return the name of this logger in messages."""
        return type(self).__name__

    def ready(self) -> None:
        """Raise UserError if something is missing that a user must provide before the run: a package, a login."""
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            source = f"blockyard[{self.extra}]" if self.extra else self.package
            name = type(self).__module__.rpartition(".")[2]
            raise UserError(f"logger={name} needs the package {self.package}: pip install '{source}', or logger=none")

    def prepare(self, folder: RunFolder) -> None:  # noqa: B027 - most have nothing to save
        """Save facts that must be known before the first step, such as ids. Quick, no network."""

    @abstractmethod
    def start(self, folder: RunFolder, config: Node) -> None:
        """Open the record of this run, or continue it; `config` is nested and holds no secret."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step."""

    @abstractmethod
    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Close the record. state: as in status.json."""

    def gradients(self, step: int, histograms: Histograms) -> None:
        """Record the gradients of a step after its metrics were logged; called if `watches_gradients`."""
        raise NotImplementedError

    def samples(self, shown: Sequence[ShownSample]) -> None:
        """Record the predictions of a finished run for `test_samples` samples; called before `finish`."""
        raise NotImplementedError

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Add PNG files to the record of an earlier run; return where they went, or None.

        kind: their subject, such as attention; pictures: name to file. May raise or hang. Loggers without pictures
        warn.
        """
        log.warning("logger %s does not take pictures; they are in the folder", self.label)
        return None

    def abandon(self) -> None:  # noqa: B027 - most hold nothing that outlives them
        """Called if `finish` did not return: release everything that would keep the process from ending."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config as one level of dotted keys, for loggers that show no nesting."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def shown_name(folder: RunFolder) -> str:
    """Return the name of a run where a logger has none of its own: the config's, or the arm's, and the seed."""
    return f"{folder.shown.get('name') or folder.path.parent.name}/{folder.path.name}"


def shown_tags(folder: RunFolder, more: Sequence[str]) -> list[str]:
    """Return the tags of the config and `more`, each once."""
    return list(dict.fromkeys(map(str, [*(folder.shown.get("tags") or ()), *more])))


def recorded_metrics(folder: RunFolder) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the steps of metrics.csv with their metrics."""
    for row in read_metrics(folder.path / METRICS):
        yield int(row["step"]), {name: value for name, value in row.items() if name != "step"}


def summarized(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a run's summary that a logger writes besides its metrics: cost, sizes, baselines."""
    return {key: value for key, value in summary.items() if key not in _NOISE and value is not None}


def presented(folder: RunFolder) -> Node:
    """Return the config of a run as plain nested data without secrets and wiring.

        choices: {position: rope, block: pre_norm, ...}    to group and filter runs by
        position: {theta: 10000.0, ...}, optimizer: ...    options, under the keys of overrides

    Classes of others keep their `_target_`.
    """
    chosen = folder.facts().get(CHOICES, {})
    content: Node = {CHOICES: {}}
    for family, name in chosen.items():
        if name is not None and family not in _LEFT_OUT:
            content[CHOICES][family] = name
    for key, value in folder.shown.items():
        if key not in _LEFT_OUT and value not in (None, {}, []):
            content[key] = _plain(value)
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    plain = {}
    for key, item in value.items():
        ours = key == "_target_" and str(item).startswith(_OWN)  # the choice's name tells the same
        if key not in _WIRING and not ours:
            plain[str(key)] = _plain(item)
    return plain
