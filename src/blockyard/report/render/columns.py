"""The tables that the terminal, Markdown and LaTeX share: a comparison as rows of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from blockyard.report.load.arms import format_value
from blockyard.report.load.document import ArmRow, BaselineRow, ComparisonDocument, GapRow
from blockyard.report.stats.verdict import FOR, NO_DIFFERENCE, format_p, p_equals
from blockyard.sweep.cells import ARM_LEVEL
from blockyard.sweep.spec.threshold import of_metric

_TINY = 1e-4  # means below which six decimals show nothing

UNCORRECTED = "*"  # behind an interval that the corrected verdict does not agree with
SHORT = {"no difference shown": "no difference"}
COSTS = (  # key, header, base of the prefix
    ("parameters", "parameters", 1000),
    ("active_parameters", "active", 1000),
    ("flops_per_sample", "training FLOPs/sample", 1000),
    ("step_seconds", "step", 1),
    ("samples_per_second", "samples/s", 1000),
    ("decode_tokens_per_second", "decoded/s", 1000),
    ("peak_memory", "memory", 1024),
    ("cache_bytes_per_token", "cache/token", 1024),
    ("seconds", "training", 1),
)
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def quality(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row an arm: metric, difference to the baseline, p values, effect, verdict."""
    arms = data["arms"]
    digits = decimals(arms)
    tests = ["p", "e"] if data.get("evidence") else ["p", "exact p"]
    header = ["arm", "n", data["metric"], "difference", *tests, "effect", "verdict"]
    return header, [[arm["name"], *_quality(arm, digits, by_looks=bool(data.get("evidence")))] for arm in arms]


def _quality(arm: ArmRow, digits: int, *, by_looks: bool) -> list[str]:
    n = str(arm["n"]) if arm["n"] == arm["planned"] else f"{arm['n']}/{arm['planned']}"
    gap: GapRow = arm["difference"] or {}
    mark = UNCORRECTED if uncorrected(arm) else ""
    return [
        n,
        mean_with_interval(arm["mean"], arm["interval"], digits),
        mean_with_interval(gap.get("mean"), gap.get("interval"), digits, sign=True) + mark,
        format_p(p) if (p := gap.get("holm_p")) is not None else "",
        _second_test(gap, by_looks),
        f"{effect:+.2f}" if (effect := gap.get("effect")) is not None else "",
        SHORT.get(arm["verdict"], arm["verdict"]),
    ]


def _second_test(gap: GapRow, by_looks: bool) -> str:
    """The e-value of a sweep that stops when it is decided, else the exact p."""
    value = gap.get("e") if by_looks else gap.get("permutation_p")
    return "" if value is None else f"{value:.3g}" if by_looks else format_p(value)


def uncorrected(arm: ArmRow) -> bool:
    """Return whether the interval of an arm's difference leaves 0 out while its corrected p shows no difference."""
    gap: GapRow = arm["difference"] or {}
    low, high = gap.get("interval") or (0, 0)
    return arm["verdict"] == NO_DIFFERENCE and (low > 0 or high < 0)


def baselines(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row a simple baseline: the metric, and what there is to say about it."""
    rows = data.get("baselines") or []
    digits = max(decimals(data["arms"]), 3)
    return ["simple baseline", data["metric"], "note"], [
        [_baseline_name(row), "" if row["value"] is None else f"{row['value']:.{digits}f}", _baseline_note(row)]
        for row in rows
    ]


def _baseline_name(row: BaselineRow) -> str:
    return f"{row['name']} ({', '.join(row['arms'])})" if row["arms"] else str(row["name"])


def _baseline_note(row: BaselineRow) -> str:
    if row["missing"]:
        return f"no value: {row['missing']}"
    others = [f"{name} {value:.4g}" for name, value in row["values"].items()] if row["value"] is None else []
    return "; ".join([*others, *filter(None, [row["note"]])])


def externals(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row a figure from elsewhere and arm: nothing is paired there."""
    digits = max(decimals(data["arms"]), 3)
    header = ["from elsewhere", data["metric"], "arm", "difference (not paired)", "p", "verdict", "note"]
    rows = []
    for row in data.get("external") or []:
        runs = f"{row['n']} runs" if row["n"] else "runs unknown"
        spread = f", sd {row['sd']:g}" if row["sd"] is not None else ", taken as exact" if row["n"] is None else ""
        for index, gap in enumerate(row["arms"]):
            first = [row["name"], f"{row['value']:.{digits}f}"] if not index else ["", ""]
            note = f"{row['source']} ({runs}{spread})" if not index else ""
            mean = mean_with_interval(gap["mean"], gap["interval"], digits, sign=True)
            rows.append(
                [*first, gap["arm"], mean, format_p(gap["holm_p"]), SHORT.get(gap["verdict"], gap["verdict"]), note]
            )
    return header, rows


def ladders(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row an arm of a ladder of sizes: what it is worth in compute."""
    ladder = data.get("ladder")
    if not ladder:
        return [], []
    header = [
        "ladder",
        "compute multiplier",
        "gap",
        f"at {ladder['farther']:g}x (extrapolated)",
        "power",
        "held-out rung",
    ]
    rows = []
    for arm in ladder["arms"]:
        is_base = arm["name"] == ladder["baseline"]
        near = "baseline" if is_base else _times(arm["multiplier"], arm["interval"])
        far = "" if is_base else _times(arm["farther"], arm["farther_interval"])
        rows.append(
            [arm["name"], near, arm["trend"] or "", far, f"{arm['power']:.3f}", f"{100 * arm['held_out']:+.1f} %"]
        )
    rows += [[one["name"], "no law fits", "", "", "", ""] for one in ladder.get("unfitted", [])]
    return header, rows


def _times(value: float | None, interval: Sequence[float | None] | None) -> str:
    """A multiplier; without a value the loss of the arm is below what the baseline's law can reach."""
    low, high = interval or (None, None)
    if value is None:
        return "beyond any compute"
    ends = f" ({low:.2f} to {'any' if high is None else f'{high:.2f}'})" if low is not None else ""
    return f"{value:.2f}x{ends}"


def costs(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row an arm: each cost, with its ratio to the baseline unless that is 1."""
    columns = [column for column in COSTS if any(arm["cost"].get(column[0]) is not None for arm in data["arms"])]
    header = ["arm", *(name for _, name, _ in columns), "Pareto"]
    rows = []
    for arm in data["arms"]:
        cells = [_cost(arm["cost"].get(key), arm["cost_ratio"].get(key), key, base) for key, _, base in columns]
        rows.append([arm["name"], *cells, "yes" if arm["pareto"] else ""])
    return header, rows


def _cost(value: float | None, ratio: float | None, key: str, base: int) -> str:
    if value is None:
        return ""
    text = duration(value) if key in ("step_seconds", "seconds") else with_prefix(value, base)
    return text if ratio is None or abs(ratio - 1) < 0.005 else f"{text} ({ratio:.2f}x)"


def mean_with_interval(mean: float | None, interval: Sequence[float] | None, digits: int, *, sign: bool = False) -> str:
    """Format a mean with its interval: "0.905 ± 0.012" where that is symmetric, else with its ends."""
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


def decimals(arms: Sequence[ArmRow]) -> int:
    """Return how many decimals show the narrowest interval with two digits; between 2 and 6, of tiny means up to 12."""
    gaps = [arm["difference"] for arm in arms if arm["difference"]]
    intervals = [arm["interval"] for arm in arms] + [gap.get("interval") for gap in gaps]
    widths = [high - low for low, high in filter(None, intervals)]
    sizes = [width / 2 for width in widths if width > 0] or [abs(arm["mean"]) / 100 for arm in arms if arm["mean"]]
    if not sizes:
        return 4
    tiny = all(abs(arm["mean"]) < _TINY for arm in arms if arm["mean"] is not None)
    return min(12 if tiny else 6, max(2, 1 - math.floor(math.log10(min(sizes)))))


def with_prefix(value: float, base: int = 1000) -> str:
    """Format a number with a prefix: 13.3k, 1.2G; with base 1024 in bytes: 1.2GiB."""
    if base == 1:
        return f"{value:.4g}"
    power = 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / base, power + 1
    return f"{value:.3g}{_PREFIXES[power]}{'i' if base == 1024 and power else ''}{'B' if base == 1024 else ''}"


def duration(value: float) -> str:
    """Format seconds: 21 ms, 3.2 s, 4 min."""
    if value < 0.001:
        return f"{value * 1e6:.3g} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


def reference(data: ComparisonDocument) -> str | None:
    """Return what arms are compared with: the baseline, or that of a ladder at the rung of each arm."""
    base = next((arm for arm in data["arms"] if arm["name"] == data["baseline"]), None)
    if base is None or "against" not in base:
        return data["baseline"]
    return f"{base['levels'][ARM_LEVEL]} at the same rung"


def notes(data: ComparisonDocument) -> list[str]:
    """Return what the columns of `quality` mean, and the smallest p that so many seeds allow."""
    lines = ["± and intervals: 95 %" + (", BCa bootstrap" if _has_interval(data, "bca") else ", Student's t")]
    limits = (data.get("ranges") or {}).get(data["metric"])
    if limits and any(end in limits for arm in data["arms"] for end in arm["interval"] or ()):
        lines[0] += f"; cut off at {limits[0]:g} and {limits[1]:g}, the range of {data['metric']}"
    compared = [arm for arm in data["arms"] if arm["difference"]]
    if compared and of_metric(data["metric"]):
        exact = any(arm["interval_kind"] == "exact" for arm in data["arms"])
        lines = ["interval of a rate: 95 %, Clopper and Pearson's"] if exact else []
        if not exact:
            lines.append("a run that never gets there counts one step more than it had")
        what = "e: of the signs; p: 1 / e" if data.get("evidence") else "p: exact test of the signs (McNemar)"
        over = f", corrected over {len(compared)} arms (Holm)" if len(compared) > 1 else ""
        lines.append(f"difference: to {reference(data)}, paired by seed; {what}{over}")
        return lines
    if compared and data.get("evidence"):
        lines[0] += "; of differences, a confidence sequence"
        over = f", corrected over {len(compared)} arms (Holm)" if len(compared) > 1 else ""
        lines.append(
            f"difference: to {reference(data)}, paired by seed; e: the largest e-value of the t statistic; p: 1 / e"
            f"{over}. They hold whenever the sweep stopped; effect: d_z with Hedges' correction"
        )
        return lines
    gaps = [gap for arm in compared if (gap := arm["difference"])]
    if held := next((gap["over"] for gap in gaps if gap.get("over")), None):
        more = f", corrected over {len(compared)} arms (Holm)" if len(compared) > 1 else ""
        if held == "splits":
            lines.append(
                f"difference: to {data['baseline']}, paired by seed; interval and p{more} hold {FOR[held]}: all "
                "variances are times 1 + seeds x test / training samples, as splits overlap (Nadeau and Bengio 2003)"
            )
            return lines
        lines.append(
            f"difference: to {reference(data)}, paired by seed and test sample; interval and p{more} hold {FOR[held]}"
        )
        return lines
    if compared:
        tested = sum(gap["holm_p"] is not None for gap in gaps)
        over = f", corrected over {tested} arms (Holm)" if tested > 1 else ""
        lines.append(
            f"difference: to {reference(data)}, paired by seed; p: paired t test{over}; "
            "effect: d_z with Hedges' correction"
        )
        if tested > 1:
            lines.append("intervals are those of one arm alone: they are not corrected, the verdict is")
        if any(map(uncorrected, compared)):
            lines.append(f"{UNCORRECTED}: the interval leaves 0 out, but the corrected p, which decides, is above 0.05")
        least = sorted({(gap["n"], gap["smallest_p"] or 0.0) for gap in gaps})
        sizes = ", ".join(f"{format_p(p)} with {n} seed{'s' * (n != 1)}" for n, p in least)
        sampled = ", sampled" if any(gap["sampled"] for gap in gaps) else ""
        lines.append(f"exact p: sign-flip test{sampled}, not corrected; it cannot be below {sizes}")
    return lines


def _has_interval(data: ComparisonDocument, kind: str) -> bool:
    return any(arm["interval_kind"] == kind and arm["interval"] for arm in data["arms"])


def cost_notes(data: ComparisonDocument) -> list[str]:
    """Return what the columns of `costs` mean."""
    lines = [f"(x): times the cost of {reference(data)}"] if data["baseline"] else []
    if data["provenance"].get("memory") == "process resident":
        lines.append("memory: peak of the whole process, libraries included")
    return [*lines, f"Pareto: no other arm is at least as good in {data['metric']} and {axis(data)}, and better in one"]


def axis(data: ComparisonDocument) -> str:
    """Return the name of the cost axis."""
    names = {"flops": "training FLOPs per sample", "step_seconds": "time per step", "seconds": "training time"}
    name = data["cost_axis"] or ""
    return names.get(name, name.replace("_", " "))


def tuning_lines(data: ComparisonDocument) -> list[str]:
    """Return a line for each tuned arm: the setting that validation chose, and how many were tried."""
    lines = []
    for arm in data["arms"]:
        if arm["budget"]:
            chosen = " ".join(f"{key}={format_value(value)}" for key, value in (arm["budget"]["chosen"] or {}).items())
            tried = arm["budget"]["settings"]
            lines.append(f"{arm['name']}: {chosen or 'none chosen yet'}, of {tried} setting{'s' * (tried != 1)} tried")
    return lines


def effect_lines(data: ComparisonDocument) -> list[str]:
    """Return main effects and interactions, a line each."""
    effects = data["effects"]
    if not effects:
        return []
    lines = []
    for test in effects["main"]:
        low, high = test["interval"] or (None, None)
        interval = f" (95 % interval {low:.3g} to {high:.3g})" if low is not None else ""
        p = f", corrected {p_equals(test['holm_p'])}" if test["holm_p"] is not None else ""
        lines.append(
            f"{test['factor']}: {test['level']} against {test['reference']}: {test['effect']:+.3g}{interval}{p}"
        )
    for pair in effects["interactions"]:
        p = f"F = {pair['F']:.3g}, corrected {p_equals(pair['holm_p'])}" if pair["F"] is not None else "not tested"
        lines.append(f"{' x '.join(pair['factors'])}: {p}")
    if "(" in effects["formula"]:  # terms that were left out, and why
        lines.append(effects["formula"])
    return lines


def clause_lines(data: ComparisonDocument) -> list[str]:
    """Return a line for each clause of an expectation that has more than one."""
    clauses = data["expect"]["clauses"] if data["expect"] else []
    return [f"{each['text']}: {each['verdict']}: {each['reason']}" for each in clauses] if len(clauses) > 1 else []


def head_lines(data: ComparisonDocument) -> list[str]:
    """Return the claim and the verdict on the expectation, a line each."""
    lines = []
    if data["claim"]:
        lines.append(f"claim: {data['claim']}")
    if data["expect"]:
        margin = f" (margin {data['margin']:.3g})" if data.get("margin") else ""
        lines.append(f"expected: {data['expect']['text']}: {data['expect']['verdict']}{margin}")
    return lines
