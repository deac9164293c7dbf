"""A comparison as a LaTeX table, with the rules of the booktabs package."""

from __future__ import annotations

from collections.abc import Sequence

from blockyard.report.load.document import ComparisonDocument
from blockyard.report.render import columns

_LEFT = ("arm", "verdict", "Pareto", "simple baseline", "note")
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def latex(data: ComparisonDocument) -> str:
    """Return tables of quality, of simple baselines if any, and of cost in one float, with notes; needs `booktabs`."""
    better = "more" if data.direction == "max" else "less"
    claim = _line(data.claim or data.title)
    if claim[-1:] not in ".!?":
        claim += "."
    caption = f"{escape(claim)} {escape(data.metric)}: {better} is better."
    lines = [f"% {_line(note)}" for note in data.warnings]
    lines += [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}"]
    lines += _tabular(*columns.quality(data))
    header, rows = columns.baselines(data)
    if rows:
        lines += ["", r"\medskip", "", *_tabular(header, rows)]
    lines += ["", r"\medskip", "", *_tabular(*columns.costs(data))]
    notes = " ".join(f"{escape(note)}." for note in columns.notes(data))
    lines += ["", r"\medskip", "", rf"\begin{{minipage}}{{\linewidth}}\footnotesize {notes}\end{{minipage}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def escape(text: str) -> str:
    """Return text in which TeX reads no character as a command."""
    return "".join(_SPECIAL.get(character, character) for character in _line(text))


def _line(text: str) -> str:
    return " ".join(str(text).split())


def _tabular(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    alignment = "".join("l" if name in _LEFT else "r" for name in header)
    body = [" & ".join(map(escape, row)) + r" \\" for row in (header, *rows)]
    return [
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        body[0],
        r"\midrule",
        *body[1:],
        r"\bottomrule",
        r"\end{tabular}",
    ]
