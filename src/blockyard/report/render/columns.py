"""The columns that the terminal, Markdown and LaTeX share: a comparison as rows of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from blockyard.report.load.arm_names import show
from blockyard.report.stats.verdict import p_is, said_p

SHORT = {"no difference shown": "no difference", "too few seeds": "too few seeds"}
COSTS = (  # figure, head, unit of a thousand
    ("parameters", "parameters", 1000),
    ("flops_per_sample", "FLOPs/sample", 1000),
    ("step_seconds", "step", 1),
    ("samples_per_second", "samples/s", 1000),
    ("decode_tokens_per_second", "decoded/s", 1000),
    ("peak_memory", "memory", 1024),
    ("cache_bytes_per_token", "cache/token", 1024),
    ("seconds", "training", 1),
)
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def quality(data: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and one row an arm: figures on the metric, difference to the baseline, verdict."""
    arms = data["arms"]
    digits = decimals(arms)
    heads = ["arm", "n", data["metric"], "difference", "p", "exact p", "effect", "verdict"]
    return heads, [[arm["name"], *_quality(arm, digits)] for arm in arms]


def _quality(arm: dict[str, Any], digits: int) -> list[str]:
    n = str(arm["n"]) if arm["n"] == arm["planned"] else f"{arm['n']}/{arm['planned']}"
    gap = arm["difference"] or {}
    return [
        n,
        spread(arm["mean"], arm["interval"], digits),
        spread(gap.get("mean"), gap.get("interval"), digits, sign=True),
        said_p(gap["holm_p"]) if gap.get("holm_p") is not None else "",
        said_p(gap["permutation_p"]) if gap.get("permutation_p") is not None else "",
        f"{gap['effect']:+.2f}" if gap.get("effect") is not None else "",
        SHORT.get(arm["verdict"], arm["verdict"]),
    ]


def costs(data: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and one row an arm: what it costs, and its ratio to the baseline where that is not 1."""
    known = [entry for entry in COSTS if any(arm["cost"].get(entry[0]) is not None for arm in data["arms"])]
    heads = ["arm", *(head for _, head, _ in known), "Pareto"]
    rows = []
    for arm in data["arms"]:
        cells = [_cost(arm["cost"].get(key), arm["cost_ratio"].get(key), key, step) for key, _, step in known]
        rows.append([arm["name"], *cells, "yes" if arm["pareto"] else ""])
    return heads, rows


def _cost(value: float | None, ratio: float | None, key: str, step: int) -> str:
    if value is None:
        return ""
    text = seconds(value) if key in ("step_seconds", "seconds") else amount(value, step)
    return text if ratio is None or abs(ratio - 1) < 0.005 else f"{text} ({ratio:.2f}x)"


def spread(mean: float | None, interval: Sequence[float] | None, digits: int, *, sign: bool = False) -> str:
    """A mean with its interval: "0.905 ± 0.012" where it lies in the middle, else its ends."""
    if mean is None:
        return ""
    text = f"{mean:{'+' if sign else ''}.{digits}f}"
    if interval is None:
        return text
    low, high = interval
    half = (high - low) / 2
    if abs((low + high) / 2 - mean) <= 0.02 * half:
        return f"{text} ± {half:.{digits}f}"
    return f"{text} ({low:.{digits}f} to {high:.{digits}f})"


def decimals(arms: Sequence[dict[str, Any]]) -> int:
    """Digits after the point that show the narrowest interval with two figures; between 2 and 6."""
    widths = [
        high - low
        for arm in arms
        for low, high in filter(None, (arm["interval"], (arm["difference"] or {}).get("interval")))
    ]
    sizes = [width / 2 for width in widths if width > 0] or [abs(arm["mean"]) / 100 for arm in arms if arm["mean"]]
    if not sizes:
        return 4
    return min(6, max(2, 1 - math.floor(math.log10(min(sizes)))))


def amount(value: float, step: int = 1000) -> str:
    """A number with a prefix: 13.3k, 1.2G."""
    if step == 1:
        return f"{value:.4g}"
    place = 0
    while abs(value) >= 999.5 and place < len(_PREFIXES) - 1:
        value, place = value / step, place + 1
    return f"{value:.3g}{_PREFIXES[place]}{'i' if step == 1024 and place else ''}{'B' if step == 1024 else ''}"


def seconds(value: float) -> str:
    """A time for people: 21 ms, 3.2 s, 4 min."""
    if value < 0.001:
        return f"{value * 1e6:.3g} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


def notes(data: dict[str, Any]) -> list[str]:
    """What the columns mean, and what so few seeds can show at all."""
    said = ["± and intervals: 95 %" + (", BCa bootstrap" if _kind(data, "bca") else ", Student's t")]
    compared = [arm for arm in data["arms"] if arm["difference"]]
    if compared:
        judged = sum(arm["difference"]["holm_p"] is not None for arm in compared)
        over = f", corrected over {judged} arms (Holm)" if judged > 1 else ""
        said.append(
            f"difference: to {data['baseline']}, paired by seed; p: paired t test{over}; "
            "effect: d_z with Hedges' correction"
        )
        least = sorted({(arm["difference"]["n"], arm["difference"]["smallest_p"]) for arm in compared})
        sizes = ", ".join(f"{said_p(p)} with {n} seed{'s' * (n != 1)}" for n, p in least)
        drawn = ", sampled" if any(arm["difference"]["sampled"] for arm in compared) else ""
        said.append(f"exact p: flipping signs{drawn}, not corrected; it cannot be under {sizes}")
    return said


def _kind(data: dict[str, Any], kind: str) -> bool:
    return any(arm["interval_kind"] == kind and arm["interval"] for arm in data["arms"])


def cost_notes(data: dict[str, Any]) -> list[str]:
    """What the columns of the costs mean."""
    said = [f"(x): times the cost of {data['baseline']}"] if data["baseline"] else []
    if data["provenance"].get("memory") == "process resident":
        said.append("memory: the most that the whole process held, libraries included")
    return [*said, f"Pareto: no arm is better for the same or less {axis(data)}"]


def axis(data: dict[str, Any]) -> str:
    """The cost that quality is weighed against, in words."""
    words = {"flops": "FLOPs per sample", "step_seconds": "time per step", "seconds": "training time"}
    return words.get(data["cost_axis"], data["cost_axis"].replace("_", " "))


def tuning_lines(data: dict[str, Any]) -> list[str]:
    """How many settings each tuned arm tried, and the one that validation chose."""
    lines = []
    for arm in data["arms"]:
        if arm["budget"]:
            chosen = " ".join(f"{key}={show(value)}" for key, value in (arm["budget"]["chosen"] or {}).items())
            tried = arm["budget"]["settings"]
            lines.append(f"{arm['name']}: {chosen or 'none chosen yet'}, of {tried} setting{'s' * (tried != 1)} tried")
    return lines


def effect_lines(data: dict[str, Any]) -> list[str]:
    """Main effects and interactions, a line each."""
    found = data["effects"]
    if not found:
        return []
    lines = []
    for one in found["main"]:
        low, high = one["interval"] or (None, None)
        between = f" (95 % interval {low:.3g} to {high:.3g})" if low is not None else ""
        p = f", corrected {p_is(one['holm_p'])}" if one["holm_p"] is not None else ""
        lines.append(f"{one['factor']}: {one['level']} against {one['reference']}: {one['effect']:+.3g}{between}{p}")
    for one in found["interactions"]:
        p = f"F = {one['F']:.3g}, corrected {p_is(one['holm_p'])}" if one["F"] is not None else "not judged"
        lines.append(f"{' x '.join(one['factors'])}: {p}")
    if "(" in found["formula"]:  # what was left out, and why
        lines.append(found["formula"])
    return lines


def head_lines(data: dict[str, Any]) -> list[str]:
    """The claim, the answer and the expectation's verdict."""
    lines = []
    if data["claim"]:
        lines.append(f"claim: {data['claim']}")
    if data["expect"]:
        margin = f" (margin {data['margin']:.3g})" if data.get("margin") else ""
        lines.append(f"expected: {data['expect']['text']}: {data['expect']['verdict']}{margin}")
    return [*lines, f"answer: {data['answer']}"]
