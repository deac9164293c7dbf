"""Teaches the API pages the docstrings' own headings: mkdocs.yml names this file as an extension of griffe.

`Options:` of a component lists keywords of its constructor, as `Args:` does elsewhere. `Source:`, `Reference:`,
`Equation:` and `Cost:` are one line each, and indented drawings keep their columns.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

HEADINGS = ("Source", "Reference", "Equation", "Cost")


class ProjectDocstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """One docstring."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """A docstring in Google's style, its prose in Markdown."""
    text = re.sub(r"^Options:$", "Args:", text, flags=re.M)
    sections = re.search(r"^(?:Args|Raises|Returns|Yields|Attributes):$|\Z", text, re.M).start()
    prose, rest = text[:sections], text[sections:]
    # Indented lines are a drawing after a blank line or a colon, else they go on with the line before.
    prose = re.sub(r"(?m)(?<=[\n:]\n)(?:^ {4,}\S.*\n?(?:^\s*\n(?= {4,}\S))?)+", _fenced, prose)
    heading = "|".join(HEADINGS)
    # A blank line before the first makes them a list.
    prose = re.sub(rf"(?m)^(?!(?:{heading}):)(.*)\n(?=(?:{heading}): )", r"\1\n\n", prose)
    prose = re.sub(r"(?m)^(Equation): (.*)$", r"- *\1* `\2`", prose)
    return re.sub(rf"(?m)^({heading}): ", r"- *\1* ", prose) + rest


def _fenced(match: re.Match[str]) -> str:
    """An indented drawing as a block of code, also where it follows a list."""
    lines = match[0].rstrip("\n").splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n```text\n" + "\n".join(line[indent:] for line in lines) + "\n```\n"
