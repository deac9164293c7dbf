"""What verbs share in reading their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blockyard.config import user_folders
from blockyard.errors import UserError

CHECKPOINTS = ("best", "last", "previous")  # of a run, as `which=` names them; those of `runs.load.WHICH`


@dataclass
class Args:
    """A command line, sorted: `key=value` words, Hydra's flags, and the config folders named."""

    overrides: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    config_dirs: list[str] = field(default_factory=list)

    def take(self, key: str, default: str | None = None) -> str | None:
        """The value of `key=value`, taken out of the overrides; the last one counts."""
        found = [word for word in self.overrides if word.partition("=")[0] == key]
        self.overrides = [word for word in self.overrides if word not in found]
        return found[-1].partition("=")[2] if found else default

    def every(self, key: str) -> list[str]:
        """The values of all `key=value` in order, taken out of the overrides."""
        found = [word for word in self.overrides if word.partition("=")[0] == key]
        self.overrides = [word for word in self.overrides if word not in found]
        return [word.partition("=")[2] for word in found]

    def folders(self) -> tuple[Path, ...]:
        """The user's own config folders. Raises UserError on one that is not there or not to be trusted."""
        good, problems = user_folders.folders(self.config_dirs, self.overrides)
        if problems:
            raise UserError("\n  - ".join(f"{where}: {what}" for where, what in problems))
        return good


def read(arguments: Sequence[str], flags: dict[str, int]) -> Args:
    """Sort a command line. `flags` maps each flag that is taken to the number of words after it.

    Raises UserError on a flag that nobody reads or one without its word.
    """
    words, rest = Args(), list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            words.overrides.append(word)
            continue
        name, _, joined = word.partition("=")
        if name in ("--config-dir", "-cd"):
            if not joined and not rest:
                raise UserError("--config-dir: names no folder")
            words.config_dirs.append(joined or rest.pop(0))
        elif name in flags:
            words.flags.append(word)
            for _ in range(flags[name] if not joined else 0):
                if not rest:
                    raise UserError(f"{name}: the word after it is missing")
                words.flags.append(rest.pop(0))
        else:
            known = ", ".join([*flags, "--config-dir", "--help"])
            raise UserError(f"{name}: there is no such flag (flags: {known})")
    return words


def packages(words: Args) -> list[str]:
    """The packages of `allow=[...]`, taken out of the overrides."""
    given = words.take("allow", "") or ""
    return [name.strip(" '\"") for name in given.strip("[]").split(",") if name.strip(" '\"")]


def only(words: Args, verb: str, known: Sequence[str]) -> None:
    """Raise UserError on any override left over after a verb has taken its own."""
    if words.overrides:
        from blockyard.errors import near

        key = words.overrides[0].partition("=")[0]
        hint = "".join(f"; nearest: {word}" for word in near(key, known)[:1])
        raise UserError(f"{words.overrides[0]}: {verb} takes {', '.join(f'{word}=' for word in known)}{hint}")
