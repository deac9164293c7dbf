"""The command line of `blockyard sweep`, sorted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.commands._args import read
from blockyard.errors import UserError

if TYPE_CHECKING:
    from blockyard.sweep.executor.base import Executor

FLAGS = {"--dry-run": 0, "--retry": 0, "--executor": 1, "--workers": 1, "--one": 0, "--to-wandb": 0, "--no-compare": 0}


@dataclass
class SweepArgs:
    """The command line, sorted."""

    file: Path
    base: list[str]
    config_dirs: list[str]
    outputs: str
    executor: str
    executor_options: dict[str, Any]
    workers: int | None
    flags: set[str] = field(default_factory=set)

    @property
    def elsewhere(self) -> bool:
        """Whether cells may run on other machines than this one."""
        return self.executor != "local"

    def build(self) -> Executor:
        """The executor; each use wants a fresh one. Raises UserError."""
        from blockyard.sweep.executor import build

        return build(self.executor, self.executor_options, self.workers)


def parse(arguments: Sequence[str]) -> SweepArgs:
    """The words of a command line. Raises UserError."""
    from blockyard.sweep.spec.locate import find_sweep

    words = read(arguments, FLAGS)
    given = _flags(words.flags)
    names = [word for word in words.overrides if "=" not in word]
    words.overrides = [word for word in words.overrides if "=" in word]
    if len(names) != 1:
        what = f"{' and '.join(names)} are {len(names)}" if names else "none is named"
        raise UserError(f"sweep takes one sweep file, {what}; such as `blockyard sweep quickstart`")
    workers = given.get("--workers")
    if workers is not None and not (workers.isdecimal() and int(workers) >= 1):
        raise UserError(f"--workers: {workers!r} is no number of workers; 1 or more")
    outputs = words.take("outputs", "outputs") or "outputs"
    executor = given.get("--executor") or words.take("executor") or "local"
    options = {w.partition("=")[0].partition(".")[2]: w for w in words.overrides if w.startswith("executor.")}
    return SweepArgs(
        file=find_sweep(names[0]),
        base=[word for word in words.overrides if not word.startswith("executor.")],
        config_dirs=words.config_dirs,
        outputs=outputs,
        executor=executor,
        executor_options={key: _value(word) for key, word in options.items()},
        workers=int(workers) if workers is not None else None,
        flags={flag for flag in given if given[flag] is None},
    )


def _flags(words: list[str]) -> dict[str, str | None]:
    """Flags and their words, `--flag word` or `--flag=word`."""
    found: dict[str, str | None] = {}
    rest = list(words)
    while rest:
        name, sign, joined = rest.pop(0).partition("=")
        if FLAGS[name]:
            found[name] = joined if sign else rest.pop(0)
        elif sign:
            raise UserError(f"{name}: takes no value")
        else:
            found[name] = None
    return found


def _value(word: str) -> Any:
    """The value of `key=value`, read as everywhere on the command line."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(word).value()
    except HydraException as error:
        raise UserError(f"{word!r} cannot be read ({str(error).splitlines()[0]})") from error
