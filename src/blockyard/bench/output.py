"""Tables, a CSV file and a figure of measured costs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.atomic_files import write_text
from blockyard.inspect.figures._canvas import canvas, plain_ticks, save
from blockyard.terminal import table

if TYPE_CHECKING:
    from rich.table import Table

    from blockyard.bench.cost import Cost

QUANTITIES = {"flops": "FLOPs", "milliseconds": "ms", "bytes": "peak memory, MiB"}
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def series(costs: Sequence[Cost], quantity: str) -> dict[str, dict[int, float]]:
    """Returns a quantity by name of the choice and number of tokens."""
    result: dict[str, dict[int, float]] = {}
    for cost in costs:
        result.setdefault(cost.name, {})[cost.tokens] = float(getattr(cost, quantity))
    return result


def tables(costs: Sequence[Cost]) -> list[Table]:
    """Returns a table of each quantity, with the exponent of the number of tokens in the last column."""
    lengths = sorted({cost.tokens for cost in costs})
    result = []
    for quantity, title in QUANTITIES.items():
        rows = table(title, "tokens", *map(str, lengths), "exponent")
        for name, values in series(costs, quantity).items():
            power = exponent(values)
            cells = [_format(quantity, values[n]) if n in values else "-" for n in lengths]
            rows.add_row(name, *cells, "-" if power is None else f"{power:.2f}")
        result.append(rows)
    return result


def crossings(costs: Sequence[Cost]) -> list[str]:
    """Returns a sentence for each choice that becomes cheaper than the first one, in time and in memory."""
    sentences = []
    for quantity, comparative in (("milliseconds", "faster"), ("bytes", "smaller")):
        (first, values), *others = series(costs, quantity).items()
        for name, other in others:
            start = crossing(values, other)
            if start is None:
                sentences.append(f"{name} is not {comparative} than {first} at {max(values):,} tokens")
            elif start == 0:
                sentences.append(f"{name} is {comparative} than {first} at all of these lengths")
            else:
                sentences.append(f"{name} is {comparative} than {first} from about {start:,.0f} tokens on")
    return sentences


def write_csv(costs: Sequence[Cost], folder: Path) -> Path:
    """Write cost.csv: a line for each measurement."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(asdict(costs[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(cost) for cost in costs)
    write_text(folder / "cost.csv", text.getvalue())
    return folder / "cost.csv"


def draw(costs: Sequence[Cost], title: str, folder: Path) -> Path:
    """Draw cost.png: each quantity over the number of tokens, both on logarithmic axes."""
    with canvas(1, len(QUANTITIES), (3.6, 3.0), title) as (figure, axes):
        for panel, (quantity, label) in zip(axes[0], QUANTITIES.items(), strict=True):
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            plain_ticks(panel.xaxis)
            plain_ticks(panel.yaxis)
            for number, (name, values) in enumerate(series(costs, quantity).items()):
                points = sorted((n, value) for n, value in values.items() if value > 0)
                if quantity == "bytes":
                    points = [(n, value / 2**20) for n, value in points]
                colour = COLOURS[number % len(COLOURS)]
                panel.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3, linewidth=1, label=name)
            panel.set_xlabel("tokens")
            panel.set_title(label)
        axes[0][0].legend(fontsize=7, frameon=False)
        return save(figure, folder, "cost")


def _format(quantity: str, value: float) -> str:
    if quantity == "flops":
        return f"{value:.2e}"
    return f"{value:.2f}" if quantity == "milliseconds" else f"{value / 2**20:.2f}"


# How a cost grows with the number of tokens: its exponent, and where one choice becomes cheaper than another.


def exponent(costs: Mapping[int, float]) -> float | None:
    """The exponent p of cost = a n^p, by least squares on the logarithms over the longer half of the lengths.

    At least three lengths count, because short sequences pay for what does not grow; None where there are fewer, or a
    cost is zero.
    """
    lengths = sorted(costs)[-max(3, (len(costs) + 1) // 2) :]
    if len(lengths) < 3 or any(costs[n] <= 0 for n in lengths):
        return None
    x, y = [math.log(n) for n in lengths], [math.log(costs[n]) for n in lengths]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)


def crossing(first: Mapping[int, float], second: Mapping[int, float]) -> float | None:
    """The number of tokens from which `second` costs less than `first`, up to the longest; None where it does not.

    Between two lengths the costs are taken as straight lines in logarithms. 0 where it costs less at all lengths.
    """
    lengths = sorted(set(first) & set(second))
    gaps = [math.log(second[n]) - math.log(first[n]) for n in lengths]
    if not gaps or gaps[-1] >= 0:
        return None
    above = max((number for number, gap in enumerate(gaps) if gap >= 0), default=None)
    if above is None:
        return 0.0
    return _zero(lengths[above : above + 2], gaps[above : above + 2])


def _zero(lengths: Sequence[int], gaps: Sequence[float]) -> float:
    share = gaps[0] / (gaps[0] - gaps[1])
    return math.exp(math.log(lengths[0]) + share * (math.log(lengths[1]) - math.log(lengths[0])))
