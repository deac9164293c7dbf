"""A comparison as one HTML file. What comes from configs is text here, never HTML, script or an address.

Nothing is loaded: style, script and data are in the file, and its content security policy lets only that
style and that script run, by their hashes. The data lies in a JSON block in which no `<` occurs; the
script makes elements from it by name and text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from blockyard.atomic_files import write_text
from blockyard.report.page.thin import thin

STYLES = ("style", "tables", "charts")
SCRIPTS = (
    "dom", "format", "state", "palette", "scale", "chart", "legend", "verdict", "table", "detail", "series", "curves",
    "scatter", "pairs", "effects", "tuning", "cells", "attention", "provenance", "live", "main",
)  # fmt: skip


def write(comparison: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the page of a comparison to `path`, whole or not at all. Raises OSError."""
    write_text(Path(path), render(comparison))
    return Path(path)


def render(comparison: dict[str, Any], *, live: str | None = None, etag: str = "") -> str:
    """The page of what `Comparison.as_dict()` gives.

    live: where the page asks for newer data, below its own address; None for a file, which asks for nothing
    etag: the mark of the data, for a page that asks
    """
    style, script = _style(), _script()
    title = str(comparison.get("title") or comparison.get("claim") or "comparison")
    return Template(_read("page.html")).substitute(
        title=html.escape(title),
        policy=html.escape(policy(live=live is not None)),
        style=style,
        script=script,
        data=encode(thin(comparison)),
        live=html.escape(live or ""),
        etag=html.escape(etag),
        plain=_plain(comparison),
    )


def policy(*, live: bool = False) -> str:
    """The page's content security policy: its own style and script, pictures inside it, nothing else."""
    rules = {
        "default-src": "'none'",
        "script-src": _hash(_script()),
        "style-src": _hash(_style()),
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def encode(value: Any) -> str:
    """Compact JSON that may stand in a script element: `<`, `>`, `&` and two line ends as escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", errors="replace").decode()


def _plain(comparison: dict[str, Any]) -> str:
    """The answer and the means without a script, for a reader who has switched scripts off."""
    lines = [str(comparison.get(key) or "") for key in ("claim", "stale", "answer")]
    expect = comparison.get("expect")
    if expect:
        lines.append(f"Expected {expect['text']}: {expect['verdict']}, {expect['reason']}")
    rows = [
        "<tr>" + "".join(f"<td>{html.escape(_word(arm.get(key)))}</td>" for key in ("name", "n", "mean", "verdict"))
        for arm in comparison.get("arms") or []
    ]
    head = f"<tr><th>arm</th><th>n</th><th>{html.escape(str(comparison.get('metric')))}</th><th>verdict</th></tr>"
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines if line)
    return f"{text}<table>{head}{''.join(rows)}</table>"


def _word(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _read(name: str) -> str:
    return files("blockyard.report.page").joinpath(name).read_text(encoding="utf-8")


def _style() -> str:
    return "\n".join(_read(f"{name}.css") for name in STYLES)


def _script() -> str:
    body = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
