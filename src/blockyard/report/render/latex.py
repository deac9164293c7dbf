"""A comparison as a LaTeX table, with the rules of the booktabs package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockyard.report.render import columns

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def latex(data: dict[str, Any]) -> str:
    """What `Comparison.as_dict()` gives: two tables, quality and cost, in one float; needs `booktabs`."""
    way = "more" if data["direction"] == "max" else "less"
    said = " ".join([data["claim"] or data["title"], *(f"{note}." for note in columns.notes(data))])
    caption = f"{escape(said)} {escape(data['metric'])}: {way} is better."
    lines = [f"% {_line(note)}" for note in data["warnings"]]
    lines += [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}"]
    lines += [*_tabular(*columns.quality(data)), "", r"\medskip", "", *_tabular(*columns.costs(data))]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def escape(text: str) -> str:
    """Text without any character that TeX reads as a command."""
    return "".join(_SPECIAL.get(character, character) for character in _line(text))


def _line(text: str) -> str:
    return " ".join(str(text).split())


def _tabular(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    shape = "".join("l" if head in ("arm", "verdict", "Pareto") else "r" for head in heads)
    body = [" & ".join(map(escape, row)) + r" \\" for row in (heads, *rows)]
    return [
        rf"\begin{{tabular}}{{{shape}}}",
        r"\toprule",
        body[0],
        r"\midrule",
        *body[1:],
        r"\bottomrule",
        r"\end{tabular}",
    ]
