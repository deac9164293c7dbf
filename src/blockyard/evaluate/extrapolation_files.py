"""The curve of an evaluation on longer sequences: as a table, as JSON and as a picture, in the run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from blockyard.atomic_files import write_json, write_text
from blockyard.runs.identity import slug

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 560, 340, 64, 48, 44, 24
TEST = "extrapolation-test.json"
SAME = "means over the same tokens at every length, in sequences that do not overlap"
REDRAWN = "means over equally many sequences at every length, drawn anew by the same rule"
PLACES = "places: the first, second, ... part of a sequence as long as one of training"


def write(
    folder: Path, curve: Mapping[str, Any], weights: str, position: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write extrapolation-PART.json and .svg into `folder`; return the paths of both.

    curve: `Curve.plain()`; weights: the checkpoint that was evaluated
    position: options that were changed for this evaluation, whose files then are beside the run's own
    """
    changed = "".join(f"-{slug(key)}-{slug(str(value))}" for key, value in sorted((position or {}).items()))
    paths = [folder / f"extrapolation-{curve['part']}{changed}.{kind}" for kind in ("json", "svg")]
    averaged = f"{REDRAWN if curve['redrawn'] else SAME}; {PLACES}"
    write_json(paths[0], {**curve, "weights": weights, "position": dict(position or {}), "averaged": averaged})
    write_text(paths[1], picture(curve))
    return paths


def table(curve: Mapping[str, Any]) -> str:
    """The curve as text: a line for each length with the metrics, and those of the first and last part."""
    metric, names = curve["metric"], list(curve["lengths"][0]["metrics"])
    by_position = any(each["places"] for each in curve["lengths"])
    ends = [f"{metric}, first {curve['context']}", f"{metric}, last {curve['context']}"] if by_position else []
    heads = ["length", "tokens", *names, *ends]
    lines = [heads]
    for each in curve["lengths"]:
        start = [f"{each['factor']}x", str(each["tokens"])]
        if each["refused"]:
            lines.append([*start, f"refused: {each['refused']}"])
            continue
        values = [*(each["metrics"][name] for name in names), *(each["places"][end] for end in (0, -1) if by_position)]
        how = [] if each["how"] == "as in training" else [each["how"]]
        lines.append([*start, *("-" if value is None else f"{value:.5g}" for value in values), *how])
    widths = [max(len(row[i]) for row in lines if len(row) > 3) for i in range(len(heads))]
    text = "\n".join(
        "  ".join(cell.ljust(widths[i] if i < len(widths) else 0) for i, cell in enumerate(row)).rstrip()
        for row in lines
    )
    same = f"the same {curve['asked']:,} tokens of the {curve['part']} split at every length"
    return f"{text}\n{_redrawn(curve) if curve['redrawn'] else same}\n"


def _redrawn(curve: Mapping[str, Any]) -> str:
    return f"{curve['rows']:,} sequences of the {curve['part']} split at every length, drawn anew"


def picture(curve: Mapping[str, Any]) -> str:
    """The metric over the length of the sequence, for whole sequences and for their last part, as SVG."""
    metric, shown = curve["metric"], [each for each in curve["lengths"] if not each["refused"]]
    series = {
        "all tokens": [(each["factor"], each["metrics"][metric]) for each in shown],
        "last part of the sequence": [
            (each["factor"], each["places"][-1]) for each in shown if each["places"] and each["places"][-1] is not None
        ],
    }
    series = {name: points for name, points in series.items() if points}
    finite = [value for points in series.values() for _, value in points if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    pad = (high - low) * 0.1 or abs(high) * 0.05 or 1.0
    low, high = low - pad, high + pad
    far = max(math.log2(each["factor"]) for each in curve["lengths"]) or 1.0

    def x(factor: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(factor) / far

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low)

    marks = [_text(LEFT, 20, f"{curve['part']}/{metric} over the length of the sequence", "start")]
    for number in range(5):
        value = low + (high - low) * number / 4
        marks.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        marks.append(_text(LEFT - 8, y(value) + 4, f"{value:.3g}", "end"))
    for each in curve["lengths"]:
        marks.append(_text(x(each["factor"]), HEIGHT - BOTTOM + 18, f"{each['tokens']}", "middle"))
        if each["refused"]:
            marks.append(_text(x(each["factor"]), HEIGHT - BOTTOM - 6, "refused", "middle"))
    marks.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "tokens in a sequence", "middle"))
    for number, (name, points) in enumerate(series.items()):
        color, dash = (("#1b6ca8", ""), ("#c25b12", ' stroke-dasharray="5 4"'))[number]
        drawn = [(x(factor), y(value)) for factor, value in points if math.isfinite(value)]
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in drawn)
        marks.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>' if path else "")
        marks += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in drawn]
        marks.append(_text(WIDTH - RIGHT - 170 * (1 - number), 38, name, "end", color))
    body = "\n".join(filter(None, marks))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, anchor: str, color: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'
