"""The sweep file of a question: every choice is an override, with its reason as a comment beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from blockyard.ask.subject import Setting

_PLAIN = re.compile(r"[A-Za-z_/~+][\w./=~+-]*")  # a scalar that YAML reads as text without quotes
_SENTENCE = re.compile(r"[A-Za-z][\w ,.?!()'/+-]*")  # the same, with spaces
_WIDTH = 44  # columns of an override, behind which its reason stands


@dataclass(frozen=True)
class Seeds:
    """The number of seeds, at most, and the reason."""

    most: int
    reason: str = ""


@dataclass(frozen=True)
class SweepDraft:
    """A sweep file before it is written.

    recipe: the name of the one that suits the data
    settings, typed: its base: overrides that were chosen, then those that the user typed
    arms: overrides of each arm by name; the first one is the baseline
    seeds: None asks a fixed number, two, as short runs do
    """

    claim: str
    settings: tuple[Setting, ...]
    arms: Mapping[str, Sequence[str]]
    recipe: str = ""
    seeds: Seeds | None = None
    margin: float | None = None
    margin_reason: str = ""
    header: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    @property
    def baseline(self) -> str:
        """The arm that the others are compared with."""
        return next(iter(self.arms))

    @property
    def varied(self) -> set[str]:
        """The families and keys of the config at the top that the arms set."""
        overrides = [override for arm in self.arms.values() for override in arm]
        return {override.lstrip("+~").partition("=")[0].partition(".")[0] for override in overrides}

    def with_settings(self, settings: Sequence[Setting]) -> SweepDraft:
        """Return the draft with more settings; one of a key that is there takes the place of it."""
        by_key = {setting.key: setting for setting in (*self.settings, *settings)}
        return replace(self, settings=tuple(by_key.values()))

    def text(self) -> str:
        """Return the content of the file."""
        lines = [f"# {line}".rstrip() for line in self.header]
        lines.append(f"claim: {_scalar(self.claim)}")
        lines.append("base:")
        overrides = [_scalar(setting.override) for setting in self.settings]
        width = min(_WIDTH, max(map(len, overrides), default=0))
        for override, setting in zip(overrides, self.settings, strict=True):
            comment = f"  # {setting.reason}" if setting.reason else ""
            lines.append(f"  - {override:<{width}}{comment}".rstrip())
        lines += [f"  - {_scalar(override)}  # as typed" for override in self.typed]
        lines.append(f"baseline: {_scalar(self.baseline)}")
        lines.append("arms:")
        for name, arm in self.arms.items():
            listed = ", ".join(map(_scalar, arm))
            lines.append(f"  {_scalar(name)}: [{listed}]")
        if self.seeds is None:
            lines.append("seeds: 2")
        else:
            first = min(3, self.seeds.most)
            until = f"{{first: {first}, most: {self.seeds.most}, until: decided}}"
            lines.append(f"seeds: {until}  # {self.seeds.reason}")
        if self.margin is not None:
            lines.append(f"margin: {self.margin:g}  # {self.margin_reason}")
        return "\n".join(lines) + "\n"


def _scalar(text: str) -> str:
    """Return a text as a YAML scalar: in quotes unless it is surely plain."""
    if (_PLAIN.fullmatch(text) or (" " in text and _SENTENCE.fullmatch(text))) and text.lower() not in (
        "null",
        "true",
        "false",
        "yes",
        "no",
        "on",
        "off",
        "~",
    ):
        return text
    return json.dumps(text, ensure_ascii=False)
