"""Render a comparison as one HTML file. Names and values from configs are text in it, never HTML, script or URLs.

The file loads nothing: style, script and data are inline, and its content security policy allows only that style
and that script, by their hashes. The data is a JSON block without any `<`; the script creates elements from it by
name and text content.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from blockyard.atomic_files import write_text
from blockyard.report.load.document import ComparisonDocument, read_document
from blockyard.report.page.thin import thin
from blockyard.report.render import columns
from blockyard.sweep.plan.sweep_plan import FOLDER as SWEEPS
from blockyard.sweep.spec.threshold import of_metric

_COMMENT_LINES = re.compile(r"^ *(?://[^\n]*|/\*\*.*?\*/)\n", re.M | re.S)
_STYLE_COMMENTS = re.compile(r"/\*.*?\*/\n?", re.S)
_STYLE_SPACES = re.compile(r"(?<!\s)\s*([{};])\s*|(?<=[,:])\s+")
_END_COMMENTS = re.compile(r"(?<=;) // [^\n\"'`]*$", re.M)
_INDENTS = re.compile(r"^ +", re.M)
_LINE_ENDS = re.compile(r"\n(?=\n)|;?\n(?=\})|(?<=[{,])\n")  # where JavaScript ends no statement
_TOKENS = re.compile(r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?:(?<! ) +)?([`=<>?:,;{}()\[\]&|!*%]) *""")
_TEMPLATE = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*(`|\$\{)")  # the text of a template, up to its end or an expression
STYLES = ("style", "tables", "samples", "charts")
SCRIPTS = (
    "dom", "format", "state", "address", "palette", "scale", "export", "chart", "legend", "baselines", "verdict",
    "table", "detail", "series", "curves", "scatter", "ladder", "pairs", "evidence", "effects", "parallel", "tuning",
    "cells", "attention", "layers", "predictions", "classes", "values", "samples", "written", "provenance", "live",
    "theme", "main",
)  # fmt: skip
_OF_LAYER = re.compile(r"train/.+\.\d+")  # the metric of a layer, as callbacks=layer_stats writes it


def write(comparison: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the page of a comparison (`Comparison.as_dict()`) to `path`, atomically. Raises OSError."""
    write_text(Path(path), render(comparison, folder=Path(path).parent))
    return Path(path)


def render(
    comparison: Mapping[str, Any], *, live: str | None = None, etag: str = "", folder: Path | None = None
) -> str:
    """Return the page of a comparison (`Comparison.as_dict()`), which may come from an earlier release.

    live: the path, relative to the page, that it polls for newer data; None for a file, which polls nothing
    etag: the ETag of the data, for a page that polls
    folder: of the page's file, from which it links to the folders of runs; None for a page without such links
    """
    document = read_document(comparison)
    scripts: Sequence[str] = SCRIPTS
    has_layers = any(_OF_LAYER.fullmatch(name) for curve in document.curves for name in curve.metrics)
    if live is None and not has_layers:
        scripts = tuple(name for name in SCRIPTS if name != "layers")
    style = _style()
    script = joined_script(scripts)
    title = str(document.title or document.claim or "comparison")
    return Template(read_part("page.html")).substitute(
        title=html.escape(title),
        policy=html.escape(content_policy(style, script, live=live is not None)),
        style=style,
        script=script,
        data=encode(thin({**linked(comparison, folder), "home": home_link(folder)})),
        live=html.escape(live or ""),
        etag=html.escape(etag),
        plain=_without_script(document),
    )


def linked(comparison: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the comparison with a relative link to the folder of each run instead of its path on this machine.

    `column_notes` says what the columns mean where another test than that of paired differences decides, else None;
    `warning_groups` are the warnings in groups of one kind.
    """
    cells = []
    for cell in comparison.get("cells") or []:
        with_link = {**cell, "link": link(cell.get("folder"), folder)}
        with_link.pop("folder", None)
        cells.append(with_link)
    document = read_document(comparison)
    over = any(arm.difference and arm.difference.over for arm in document.arms)
    special = over or of_metric(document.metric) is not None
    content = {**comparison}
    content.pop("warnings", None)  # the page shows them in their groups
    return {
        **content,
        "cells": cells,
        "column_notes": columns.notes(document) if special else None,
        "warning_groups": columns.warning_groups(document),
    }


def home_link(folder: Path | None) -> str | None:
    """Return the address of the home page with the runs of this sweep, for a page in outputs/sweeps/NAME."""
    if folder is None or folder.absolute().parent.name != SWEEPS:
        return None
    return f"../../index.html#q={quote(f'sweep={folder.absolute().name}', safe='')}"


def link(path: str | None, folder: Path | None) -> str | None:
    """Return the address of `path` relative to a page in `folder`: "../../vit-0a1b/s0"; None without one."""
    if path is None or folder is None:
        return None
    relative = quote(os.path.relpath(path, folder.absolute()).replace(os.sep, "/"))
    if relative.startswith("../"):
        return relative
    return f"./{relative}"


def live_policy() -> str:
    """Return the content security policy of a comparison's page that polls for newer data, which has every script."""
    return content_policy(_style(), joined_script(SCRIPTS), live=True)


def content_policy(style: str, script: str, *, live: bool = False) -> str:
    """Return a content security policy: this style and this script, inline images, nothing else."""
    # A kind of content without a rule falls back to default-src: kinds that browsers add later are refused too.
    rules = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data:",
        "media-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def encode(value: Any) -> str:
    """Return compact JSON for a script element: `<`, `>`, `&` and the two Unicode line separators are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A browser ends a script element at the first `</script`, also inside a JSON text; U+2028 ends a line of a script.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", errors="replace").decode()


def _without_script(comparison: ComparisonDocument) -> str:
    """Return the answer and the means as HTML, for browsers with scripts disabled."""
    lines = [comparison.claim, comparison.stale, comparison.answer, comparison.better_baseline]
    if comparison.expect:
        expect = comparison.expect
        lines.append(f"Expected {expect.text}: {expect.verdict}, {expect.reason}")
    paragraphs = "".join(f"<p>{html.escape(str(line))}</p>" for line in lines if line)
    rows = f"<tr><th>arm</th><th>n</th><th>{html.escape(str(comparison.metric))}</th><th>verdict</th></tr>"
    for arm in comparison.arms:
        cells = [f"<td>{html.escape(_text(value))}</td>" for value in (arm.name, arm.n, arm.mean, arm.verdict)]
        rows += f"<tr>{''.join(cells)}"  # HTML needs no end tag here
    return f"{paragraphs}<table>{rows}</table>"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return str(value)


def read_part(name: str) -> str:
    """Return the text of a part of a page, a file of this folder."""
    return files("blockyard.report.page").joinpath(name).read_text(encoding="utf-8")


def joined_style(names: Sequence[str]) -> str:
    """Return the style sheets `names`, one after the other, without comments, and without spaces that say nothing."""
    body = "\n".join(_STYLE_COMMENTS.sub("", read_part(f"{name}.css")) for name in names)
    return _STYLE_SPACES.sub(r"\1", body)


def joined_script(names: Sequence[str]) -> str:
    """Return the scripts `names` in one function, so that no name of theirs is global.

    Without comments, empty lines and spaces that say nothing; no text of the scripts goes over several lines.
    """
    body = "\n".join(read_part(f"{name}.js") for name in names)
    for left_out in (_COMMENT_LINES, _END_COMMENTS, _INDENTS):
        body = left_out.sub("", body)
    return f'(() => {{\n"use strict";\n{_LINE_ENDS.sub("", _squeezed(body))}\n}})();\n'


def _squeezed(script: str) -> str:
    """Return a script without the spaces around signs, except within its texts.

    A regular expression of a script has neither a space beside a sign nor a quotation mark.
    """
    parts: list[str] = []
    braces: list[int] = []  # open ones in the expression of each template that goes on behind it
    position = 0
    while token := _TOKENS.search(script, position):
        parts.append(script[position : token.start()])
        text, sign = token.groups()
        position = token.end()
        if sign == "`" or (sign == "}" and braces and not braces[-1]):
            if sign == "}":
                braces.pop()
            template = _TEMPLATE.match(script, token.end(2))
            assert template, "a template without an end"
            parts += [sign, template[0]]
            position = template.end()
            if template[1] == "${":
                braces.append(0)
            continue
        if braces and sign in ("{", "}"):
            braces[-1] += 1 if sign == "{" else -1
        parts.append(text or sign)
    return "".join([*parts, script[position:]])


def _style() -> str:
    return joined_style(STYLES)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
