"""The tables that the terminal, Markdown and LaTeX share: a comparison as rows of text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from blockyard.report.load.arms import format_value
from blockyard.report.load.document import ArmRow, BaselineRow, ComparisonDocument, Difference, ExternalRow
from blockyard.report.stats.verdict import FOR, NO_DIFFERENCE, format_p, p_equals
from blockyard.sweep.cells import ARM_LEVEL
from blockyard.sweep.spec.threshold import UNITS, of_metric

_TINY = 1e-4  # six decimals show nothing of smaller means
UNCORRECTED = "*"  # behind an interval that the corrected verdict does not agree with
SHORT = {"no difference shown": "no difference"}
COSTS = (  # key, header, base of the prefix
    ("parameters", "parameters", 1000),
    ("active_parameters", "active", 1000),
    ("flops_per_sample", "training FLOPs/sample", 1000),
    ("step_seconds", "step", 1),
    ("samples_per_second", "samples/s", 1000),
    ("mfu", "of peak", 1),
    ("decode_tokens_per_second", "decoded/s", 1000),
    ("peak_memory", "memory", 1024),
    ("cache_bytes_per_token", "cache/token", 1024),
    ("seconds", "training", 1),
)
_LARGE = 1e6
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def quality(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row an arm: metric, difference to the baseline, p values, effect, verdict."""
    digits = decimals(data.arms)
    second = "exact p"
    if data.evidence:
        second = "p alone" if data.evidence.by == "boundary" else "e"
    header = ["arm", "n", data.metric, "difference", "p", second, "effect", "verdict"]
    return header, [_quality_row(arm, digits, second) for arm in data.arms]


def _quality_row(arm: ArmRow, digits: int, second: str) -> list[str]:
    """Return the row of an arm. second: the name of its second test"""
    n = str(arm.n) if arm.n == arm.planned else f"{arm.n}/{arm.planned}"
    mean = mean_with_interval(arm.mean, arm.interval, digits)
    verdict = SHORT.get(arm.verdict, arm.verdict)
    gap = arm.difference
    if gap is None:
        return [arm.name, n, mean, "", "", "", "", verdict]
    difference = mean_with_interval(gap.mean, gap.interval, digits, sign=True)
    if uncorrected(arm):
        difference += UNCORRECTED
    p = "" if gap.holm_p is None else format_p(gap.holm_p)
    if second == "e":
        evidence = "" if gap.e is None else f"{gap.e:.3g}"
    else:
        alone = gap.t_p if second == "p alone" else gap.permutation_p
        evidence = "" if alone is None else format_p(alone)
    effect = "" if gap.effect is None else f"{gap.effect:+.2f}"
    return [arm.name, n, mean, difference, p, evidence, effect, verdict]


def uncorrected(arm: ArmRow) -> bool:
    """Return whether the interval of an arm's difference leaves 0 out while its corrected p shows no difference."""
    if arm.difference is None or arm.difference.interval is None:
        return False
    low, high = arm.difference.interval
    return arm.verdict == NO_DIFFERENCE and (low > 0 or high < 0)


def baselines(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row a simple baseline: its name, its value of the metric, and a note."""
    digits = max(decimals(data.arms), 3)
    rows = []
    for row in data.baselines:
        name = row.name
        if row.arms:
            name += f" ({', '.join(row.arms)})"
        value = "" if row.value is None else f"{row.value:.{digits}f}"
        rows.append([name, value, _baseline_note(row)])
    return ["simple baseline", data.metric, "note"], rows


def _baseline_note(row: BaselineRow) -> str:
    if row.missing:
        return f"no value: {row.missing}"
    notes = []
    if row.value is None:
        notes = [f"{name} {value:.4g}" for name, value in row.values.items()]
    if row.note:
        notes.append(row.note)
    return "; ".join(notes)


def externals(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row a figure from elsewhere and arm: nothing is paired there."""
    digits = max(decimals(data.arms), 3)
    header = ["from elsewhere", data.metric, "arm", "difference (not paired)", "p", "verdict", "note"]
    rows = []
    for figure in data.external:
        name = figure.name
        value = f"{figure.value:.{digits}f}"
        note = _external_note(figure)
        for gap in figure.arms:
            difference = mean_with_interval(gap.mean, gap.interval, digits, sign=True)
            verdict = SHORT.get(gap.verdict, gap.verdict)
            rows.append([name, value, gap.arm, difference, format_p(gap.holm_p), verdict, note])
            name = value = note = ""  # stated once, in the row of the first arm
    return header, rows


def _external_note(figure: ExternalRow) -> str:
    """Return the source of a figure, and the number of runs in its mean."""
    runs = f"{figure.n} runs" if figure.n else "runs unknown"
    if figure.sd is not None:
        runs += f", sd {figure.sd:g}"
    elif figure.n is None:
        runs += ", taken as exact"
    return f"{figure.source} ({runs})"


def ladders(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row an arm of a ladder of sizes: its worth in compute."""
    ladder = data.ladder
    if ladder is None:
        return [], []
    extrapolated = f"at {ladder.farther:g}x (extrapolated)"
    header = ["ladder", "compute multiplier", "gap", extrapolated, "power", "held-out rung"]
    rows = []
    for arm in ladder.arms:
        near = far = "withheld"
        if arm.withheld is None:
            near = _times(arm.multiplier, arm.interval)
        if arm.farther_withheld is None:
            far = _times(arm.farther, arm.farther_interval)
        if arm.name == ladder.baseline:
            near, far = "baseline", ""
        held_out = f"{100 * arm.held_out:+.1f} %"
        if arm.held_out_interval is not None:
            low, high = arm.held_out_interval
            held_out += f" ({100 * low:+.1f} to {100 * high:+.1f})"
        rows.append([arm.name, near, arm.trend or "", far, f"{arm.power:.3f}", held_out])
    rows += [[misfit.name, "no law fits", "", "", "", ""] for misfit in ladder.unfitted]
    return header, rows


def decisions(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row a metric and a rung: how many pairs of arms keep their order at the largest."""
    rows = []
    for row in data.decisions or ():
        decided = f"{row.decided_kept} of {row.decided}" if row.decided else ""
        rows.append([row.metric, row.rung, row.largest, f"{row.kept} of {row.pairs}", decided])
    return ["pairs of arms", "rung", "largest", "same sign", "of those told apart"], rows


def _times(value: float | None, interval: Sequence[float | None] | None) -> str:
    """Format a multiplier. Infinity, which JSON holds as None: no compute gives the baseline the loss of the arm."""
    if value is None or math.isinf(value):
        return "beyond any compute"
    low, high = interval or (None, None)
    if low is None or math.isinf(low):
        return f"{value:.2f}x"
    end = "any" if high is None or math.isinf(high) else f"{high:.2f}"
    return f"{value:.2f}x ({low:.2f} to {end})"


def costs(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row an arm: each cost, with its ratio to the baseline unless the ratio is 1."""
    columns = [column for column in COSTS if any(arm.cost.get(column[0]) is not None for arm in data.arms)]
    header = ["arm", *(name for _, name, _ in columns), "Pareto"]
    rows = []
    for arm in data.arms:
        row = [arm.name]
        for key, _, base in columns:
            row.append(_cost(arm.cost.get(key), arm.cost_ratio.get(key), key, base))
        row.append("yes" if arm.pareto else "")
        rows.append(row)
    return header, rows


def _cost(value: float | None, ratio: float | None, key: str, base: int) -> str:
    if value is None:
        return ""
    if key == "mfu":
        text = f"{value:.1%}"
    elif key in ("step_seconds", "seconds"):
        text = duration(value)
    else:
        text = with_prefix(value, base)
    if ratio is None or abs(ratio - 1) < 0.005:
        return text
    return f"{text} ({ratio:.2f}x)"


def mean_with_interval(mean: float | None, interval: Sequence[float] | None, digits: int, *, sign: bool = False) -> str:
    """Format a mean with its interval: "0.905 ± 0.012" where the interval is symmetric, else with its ends."""
    if mean is None:
        return ""
    # Millions, such as FLOPs to a target, have no decimals to show.
    form = ".4g" if abs(mean) >= _LARGE else f".{digits}f"
    text = f"{mean:+{form}}" if sign else f"{mean:{form}}"
    if interval is None:
        return text
    low, high = interval
    half = (high - low) / 2
    if abs((low + high) / 2 - mean) <= 0.02 * half:
        return f"{text} ± {half:{form}}"
    return f"{text} ({low:{form}} to {high:{form}})"


def decimals(arms: Sequence[ArmRow]) -> int:
    """Return the number of decimals that show the narrowest interval with two digits.

    It is between 2 and 6, for tiny means up to 12.
    """
    intervals = [arm.interval for arm in arms]
    intervals += [arm.difference.interval for arm in arms if arm.difference]
    sizes = [(high - low) / 2 for low, high in filter(None, intervals) if high > low]
    if not sizes:
        sizes = [abs(arm.mean) / 100 for arm in arms if arm.mean]
    if not sizes:
        return 4
    tiny = all(abs(arm.mean) < _TINY for arm in arms if arm.mean is not None)
    return min(12 if tiny else 6, max(2, 1 - math.floor(math.log10(min(sizes)))))


def with_prefix(value: float, base: int = 1000) -> str:
    """Format a number with a prefix: 13.3k, 1.2G; with base 1024 in bytes: 1.2GiB."""
    if base == 1:
        return f"{value:.4g}"
    power = 0
    # From 999.5 on, three digits would be written as 1e+03.
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value /= base
        power += 1
    if base != 1024:
        return f"{value:.3g}{_PREFIXES[power]}"
    if power:
        return f"{value:.3g}{_PREFIXES[power]}iB"
    return f"{value:.3g}B"


def duration(value: float) -> str:
    """Format seconds: 21 ms, 3.2 s, 4 min."""
    if value < 0.001:
        return f"{value * 1e6:.3g} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min"


def reference(data: ComparisonDocument) -> str | None:
    """Return the name of the baseline. For a ladder it is the baseline at the rung of each arm."""
    for arm in data.arms:
        if arm.name == data.baseline and arm.against is not None:
            return f"{arm.levels[ARM_LEVEL]} at the same rung"
    return data.baseline


def notes(data: ComparisonDocument) -> list[str]:
    """Return the meaning of the columns of `quality`, and the smallest p that so many seeds allow."""
    gaps = [arm.difference for arm in data.arms if arm.difference]
    if gaps and of_metric(data.metric):
        return _outcome_notes(data, _corrected_over(data, len(gaps)))
    intervals = _interval_note(data)
    if not gaps:
        return [intervals]
    if data.evidence and data.evidence.by == "boundary":
        corrected = _corrected_over(data, len(gaps))
        ps = "p: of the t test over all looks"
        if corrected:
            ps = f"p alone: of the t test over all looks; p{corrected}"
        return [
            f"{intervals}; of differences, one that holds at all looks at once",
            f"difference: to {reference(data)}, paired by seed; {ps}; effect: d_z with Hedges' correction",
        ]
    if data.evidence:
        return [
            f"{intervals}; of differences, a confidence sequence",
            f"difference: to {reference(data)}, paired by seed; e: the largest e-value of the t statistic; "
            f"p: 1 / e{_corrected_over(data, len(gaps))}. They hold whenever the sweep stopped; "
            "effect: d_z with Hedges' correction",
        ]
    over = next((gap.over for gap in gaps if gap.over), None)
    if over == "splits":
        return [
            intervals,
            f"difference: to {data.baseline}, paired by seed; interval and p{_corrected_over(data, len(gaps))} hold "
            f"{FOR[over]}: all variances are times 1 + seeds x test / training samples, as splits overlap "
            "(Nadeau and Bengio 2003)",
        ]
    if over is not None:
        return [
            intervals,
            f"difference: to {reference(data)}, paired by seed and test sample; interval and "
            f"p{_corrected_over(data, len(gaps))} hold {FOR[over]}",
        ]
    return [intervals, *_paired_notes(data, gaps)]


def _interval_note(data: ComparisonDocument) -> str:
    ends: set[float] = set()
    note = "± and intervals: 95 %, Student's t"
    for arm in data.arms:
        if arm.interval:
            ends.update(arm.interval)
            if arm.interval_kind == "bca":
                note = "± and intervals: 95 %, BCa bootstrap"
    limits = data.ranges.get(data.metric)
    if limits and not ends.isdisjoint(limits):
        note += f"; cut off at {limits[0]:g} and {limits[1]:g}, the range of {data.metric}"
    return note


def _corrected_over(data: ComparisonDocument, count: int) -> str:
    """Return over what the p values are corrected. count: the arms that are compared, where no clause is"""
    if data.expect is not None:
        return ", corrected over the clauses with > (Holm)" if len(data.expect.clauses or ()) > 1 else ""
    if count > 1:
        return f", corrected over {count} arms (Holm)"
    return ""


def _outcome_notes(data: ComparisonDocument, corrected: str) -> list[str]:
    """Return the notes on outcomes of whole runs, which are rates or lengths and are compared by signs."""
    reached = of_metric(data.metric)
    if reached and reached.kind in UNITS:
        first = f"a run that never gets there counts one {UNITS[reached.kind].one} more than the longest one"
    else:
        first = "interval of a rate: 95 %, Clopper and Pearson's"
    test = "e: of the signs; p: 1 / e" if data.evidence else "p: exact test of the signs (McNemar)"
    return [first, f"difference: to {reference(data)}, paired by seed; {test}{corrected}"]


def _paired_notes(data: ComparisonDocument, gaps: Sequence[Difference]) -> list[str]:
    tested = sum(gap.holm_p is not None for gap in gaps)
    lines = [
        f"difference: to {reference(data)}, paired by seed; p: paired t test{_corrected_over(data, tested)}; "
        "effect: d_z with Hedges' correction"
    ]
    if tested > 1:
        lines.append("intervals are those of one arm alone: they are not corrected, the verdict is")
    if any(map(uncorrected, data.arms)):
        lines.append(f"{UNCORRECTED}: the interval leaves 0 out, but the corrected p, which decides, is above 0.05")
    limits = []
    for n, p in sorted({(gap.n, gap.smallest_p or 0.0) for gap in gaps}):
        seeds = "seed" if n == 1 else "seeds"
        limits.append(f"{format_p(p)} with {n} {seeds}")
    sampled = ", sampled" if any(gap.sampled for gap in gaps) else ""
    lines.append(f"exact p: sign-flip test{sampled}, not corrected; it cannot be below {', '.join(limits)}")
    return lines


def cost_notes(data: ComparisonDocument) -> list[str]:
    """Return the meaning of the columns of `costs`."""
    lines = []
    if data.baseline:
        lines.append(f"(x): times the cost of {reference(data)}")
    if any(arm.cost.get("mfu") is not None for arm in data.arms):
        lines.append("of peak: training FLOPs a second as a share of the device's peak (MFU)")
    if data.provenance.memory == "process resident":
        lines.append("memory: peak of the whole process, libraries included")
    lines.append(f"Pareto: no other arm is at least as good in {data.metric} and {axis(data)}, and better in one")
    return lines


def axis(data: ComparisonDocument) -> str:
    """Return the name of the cost axis."""
    names = {"flops": "training FLOPs per sample", "step_seconds": "time per step", "seconds": "training time"}
    name = data.cost_axis or ""
    return names.get(name, name.replace("_", " "))


def tuning_lines(data: ComparisonDocument) -> list[str]:
    """Return a line for each tuned arm: the setting that validation chose, and the number of settings tried."""
    lines = []
    for arm in data.arms:
        if arm.budget:
            options = [f"{key}={format_value(value)}" for key, value in (arm.budget.chosen or {}).items()]
            chosen = " ".join(options) or "none chosen yet"
            settings = "setting" if arm.budget.settings == 1 else "settings"
            lines.append(f"{arm.name}: {chosen}, of {arm.budget.settings} {settings} tried")
    return lines


def importance_lines(data: ComparisonDocument) -> list[str]:
    """Return a line for each search or grid: the share of the differences that each option explains alone."""
    lines = []
    for row in data.importance:
        counted = f"{row.count} trials" if row.fit is not None else f"{row.count} settings"
        if row.arm is None:
            counted = f"{row.count} arms"
        parts = [f"{key} {100 * share:.0f} %" for key, share in row.shares.items()]
        text = ", ".join(parts) or "none, as the settings do not predict trials that were left out"
        if row.fit is not None:
            counted = f"{counted}, R² {row.fit:.2f} on trials left out"
        name = "" if row.arm is None else f"{row.arm}: "
        lines.append(f"{name}{text} (of {counted})")
    return lines


def effect_lines(data: ComparisonDocument) -> list[str]:
    """Return main effects and interactions, a line each."""
    effects = data.effects
    if effects is None:
        return []
    lines = []
    for test in effects.main:
        text = f"{test.factor}: {test.level} against {test.reference}: {test.effect:+.3g}"
        if test.interval is not None:
            low, high = test.interval
            text += f" (95 % interval {low:.3g} to {high:.3g})"
        if test.holm_p is not None:
            text += f", corrected {p_equals(test.holm_p)}"
        lines.append(text)
    for pair in effects.interactions:
        tested = "not tested" if pair.F is None else f"F = {pair.F:.3g}, corrected {p_equals(pair.holm_p)}"
        lines.append(f"{' x '.join(pair.factors)}: {tested}")
    if "(" in effects.formula:  # terms that were left out, and why
        lines.append(effects.formula)
    return lines


def clause_lines(data: ComparisonDocument) -> list[str]:
    """Return a line for each clause of an expectation that has more than one."""
    if data.expect is None or len(data.expect.clauses) < 2:
        return []
    return [f"{clause.text}: {clause.verdict}: {clause.reason}" for clause in data.expect.clauses]


def warning_groups(data: ComparisonDocument) -> list[list[str]]:
    """Return the warnings in groups of one kind: those of a group differ in names of arms and in numbers alone."""
    names = sorted((re.escape(arm.name) for arm in data.arms if arm.name), key=len, reverse=True)
    either = "|".join([*names, r"[\d.,]+"])  # the longest name that fits is meant
    differing = re.compile(rf"(?<!\w)(?:{either})(?!\w)")
    groups: dict[str, list[str]] = {}
    for line in data.warnings:
        groups.setdefault(differing.sub("", line), []).append(line)
    return list(groups.values())


def head_lines(data: ComparisonDocument) -> list[str]:
    """Return the claim and the verdict on the expectation, a line each."""
    lines = []
    if data.claim:
        lines.append(f"claim: {data.claim}")
    if data.expect:
        margin = f" (margin {data.margin:.3g})" if data.margin else ""
        lines.append(f"expected: {data.expect.text}{margin}: {data.expect.judged}")
    return lines
