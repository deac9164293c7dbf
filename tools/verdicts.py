"""Writes docs/verdicts.md, one row for each sweep that was run to its verdict, and README's question and answer.

    python tools/verdicts.py [outputs/sweeps/*]

Reads comparison.json of each sweep's folder into docs/verdicts.json, which keeps the results, then writes the page and
README's question with its answer from it. docs/at_scale.yaml says what sources report of the arms of ladders. Without
folders only the page and README are written.
"""

from __future__ import annotations

import datetime
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from blockyard.report.load.document import ArmRow, read_document
from blockyard.report.render.columns import ladders

ROOT = Path(__file__).resolve().parents[1]
DATA, PAGE, README = ROOT / "docs" / "verdicts.json", ROOT / "docs" / "verdicts.md", ROOT / "README.md"
AT_SCALE = ROOT / "docs" / "at_scale.yaml"  # what sources report of larger models
QUOTED = "positions_text"  # in README
FEWEST = 5  # seeds of a result that is shown

HEAD = """# Verdicts

Each row is a sweep file in `sweeps/`, run to its end with `blockyard sweep NAME` on 2 CPU cores. The models are small
and the runs short: these are verdicts about the data that the files name (digits, 1.3 million characters of Python
code, generated sequences, tones, graphs and others), not about the papers.
Means and differences are over seeds, paired by seed; brackets hold 95 % intervals, and confidence sequences where a
sweep stopped when it was decided. There an arm may have fewer seeds (n) than the baseline: its mean is over its own,
its difference over those that both have. Every result is over {fewest} seeds or more.

Written by `python tools/verdicts.py`; the runs date from {dates}. How a verdict is reached:
[Sweeps and statistics](sweeps.md#statistics).

"""


def record(folder: Path) -> dict[str, Any]:
    """What the page needs of one finished sweep."""
    comparison = read_document(json.loads((folder / "comparison.json").read_text(encoding="utf-8")))
    header, rows = ladders(comparison)
    expect = comparison.expect
    done = sum(cell.state == "done" for cell in comparison.cells)
    return {
        "sweep": folder.name,
        "date": datetime.date.fromtimestamp((folder / "comparison.json").stat().st_mtime).isoformat(),
        "claim": comparison.claim,
        "metric": comparison.metric,
        "expected": expect and expect.text,
        "verdict": expect and expect.verdict,
        "seeds": len(comparison.seeds),
        "cells": [done, len(comparison.cells)],
        "arms": [_arm(arm) for arm in comparison.arms],
        "clauses": [[clause.text, clause.verdict, clause.reason] for clause in expect.clauses] if expect else [],
        "stopped": comparison.evidence and comparison.evidence.words,
        **({"ladder": [header, *rows]} if rows else {}),
    }


def _arm(arm: ArmRow) -> dict[str, Any]:
    return {
        "name": arm.name,
        "n": arm.n,
        "mean": arm.mean,
        "difference": arm.difference and arm.difference.mean,
        "interval": arm.difference and arm.difference.interval,
        "verdict": arm.verdict,
    }


def page(records: list[dict[str, Any]]) -> str:
    """The page: a table of the sweeps with enough seeds, then the arms of each, then the sweeps that are left."""
    shown = [one for one in records if one["seeds"] >= FEWEST]
    known = {one["sweep"] for one in shown}
    open_questions = sorted(path.stem for path in (ROOT / "sweeps").glob("*.yaml") if path.stem not in known)
    records = shown
    at_scale = yaml.safe_load(AT_SCALE.read_text(encoding="utf-8"))
    dates = sorted({one["date"] for one in records})
    lines = [
        _counts(records),
        "",
        *_spent(records),
        "| sweep | claim | verdict | seeds | cells |",
        "|---|---|---|---|---|",
    ]
    for one in records:
        verdict = one["verdict"] or "-"
        if "second_difference" in one:
            verdict += ", with a second difference"
        lines.append(
            f"| [`{one['sweep']}`](#{one['sweep']}) | {_claim(one)} | {verdict} | {one['seeds']} | {one['cells'][0]} |"
        )
    for one in records:
        done, cells = one["cells"]
        source = _key(one, "source") or "ours"
        lines += [
            "",
            f"## {one['sweep']}",
            "",
            f"`{one['metric']}`, {done} of {cells} cells, {one['seeds']} seeds. Source: {source}.",
            "",
        ]
        if one.get("stopped"):
            lines += [one["stopped"], ""]
        lines += _since(one)
        clauses = one.get("clauses") or []
        if len(clauses) > 1 or one.get("stopped"):  # the rows compare with the baseline, clauses with what they name
            lines += [*(f"- `{text}`: {verdict}. {reason}" for text, verdict, reason in clauses), ""]
        if ladder := one.get("ladder"):
            if reported := at_scale.get(one["sweep"]):
                columns = ["reported at scale", *(reported.get(cells[0], "") for cells in ladder[1:])]
                ladder = [[*cells, text] for cells, text in zip(ladder, columns, strict=True)]
            lines += [f"| {' | '.join(ladder[0])} |", "|---" * len(ladder[0]) + "|"]
            lines += [*(f"| {' | '.join(cells)} |" for cells in ladder[1:]), ""]
        seeds = any(arm.get("n") not in (None, one["seeds"]) for arm in one["arms"])
        lines.append(f"| arm |{' n |' * seeds} mean | difference to the baseline | verdict |")
        lines.append(f"|---{'|---' * seeds}|---|---|---|")
        lines += _rows(one, seeds=seeds)
        lines += [f"\n{note}" for note in one.get("notes", ())]
        if "second_difference" in one:
            lines.append(f"\nA second difference, until the sweep is run again: {one['second_difference']}")
    if open_questions:
        names = ", ".join(f"`{name}`" for name in open_questions)
        lines += ["", "## Open questions", "", f"Not run on {FEWEST} seeds yet, with `blockyard sweep NAME`: {names}."]
    span = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    return HEAD.format(fewest=FEWEST, dates=span) + "\n".join(lines) + "\n"


def readme(text: str, records: list[dict[str, Any]]) -> str:
    """README with the question and the answer that it quotes, between its markers."""
    record = next(one for one in records if one["sweep"] == QUOTED)
    file = (ROOT / "sweeps" / f"{QUOTED}.yaml").read_text(encoding="utf-8")
    question = "".join(line for line in file.splitlines(True) if not line.startswith(("#", "source")))
    table = "\n".join(["| arm | mean | difference to the baseline | verdict |", "|---|---|---|---|", *_rows(record)])
    for name, body in (("question", f"```yaml\n{question}```"), ("answer", table)):
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{body}\n{end}{rest.partition(end)[2]}"
    return text


def _rows(record: dict[str, Any], *, seeds: bool = False) -> list[str]:
    digits = _decimals(record["arms"])
    return [_row(arm, digits, seeds=seeds) for arm in record["arms"]]


def _decimals(arms: list[dict[str, Any]]) -> int:
    """Three, or as many as show half of a narrow interval with two digits."""
    widths = [(high - low) / 2 for arm in arms if arm["interval"] for low, high in [arm["interval"]] if high > low]
    return max([3, *(1 - math.floor(math.log10(width)) for width in widths if width < 0.002)])


def _counts(records: list[dict[str, Any]]) -> str:
    """How many claims ended how, in a sentence."""
    counts = Counter(one["verdict"] or "not judged" for one in records)
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return f"{len(records)} claims: {parts}."


def _spent(records: list[dict[str, Any]]) -> list[str]:
    """The cells of sweeps that stopped because they were decided, and those of as many seeds for every arm."""
    files = {one["sweep"] for one in records if one.get("stopped")}
    decided = [one for one in records if "is decided" in (one.get("stopped") or "")]
    if not decided:
        return []
    done = sum(one["cells"][0] for one in decided)
    even = sum(len(one["arms"]) * max(arm.get("n", one["seeds"]) or 0 for arm in one["arms"]) for one in decided)
    return [
        f"{len(decided)} of {len(files)} that ran until they were decided ended with a verdict, after {done:,} cells;",
        f"as many seeds for every arm would have taken {even:,}.",
        "",
    ]


def _since(record: dict[str, Any]) -> list[str]:
    """What the sweep's file asks for by now, where these runs were made with fewer seeds."""
    seeds = yaml.safe_load(_key(record, "seeds") or "null")
    if not isinstance(seeds, dict):
        return []
    if not record.get("stopped"):
        return [f"Run with {record['seeds']} fixed seeds; the file now goes on until it is decided.", ""]
    if "most that the question allows" in record["stopped"] and seeds["most"] > record["seeds"]:
        return [f"The file allows {seeds['most']} seeds by now.", ""]
    return []


def _claim(record: dict[str, Any]) -> str:
    """The claim as the sweep's file words it now."""
    return _key(record, "claim") or record["claim"]


def _key(record: dict[str, Any], key: str) -> str | None:
    """A text of the sweep's file as it is now."""
    file = ROOT / "sweeps" / f"{record['sweep']}.yaml"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    start = f"{key}: "
    return next((line[len(start) :].strip() for line in text.splitlines() if line.startswith(start)), None)


def _row(arm: dict[str, Any], digits: int, *, seeds: bool) -> str:
    mean = "no result" if arm["mean"] is None else f"{arm['mean']:.{digits}f}"
    difference = ""
    if arm["interval"] is not None:
        low, high = arm["interval"]
        difference = f"{arm['difference']:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    own = f" {arm['n']} |" if seeds else ""
    return f"| {arm['name']} |{own} {mean} | {difference} | {arm['verdict']} |"


def main() -> None:
    """Take in the folders named, then write the page."""
    folders = [Path(argument) for argument in sys.argv[1:]]
    if any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(__doc__)
    records = {one["sweep"]: one for one in json.loads(DATA.read_text(encoding="utf-8"))}
    for folder in folders:
        if not (folder / "comparison.json").is_file():
            sys.exit(f"{folder} has no comparison.json: `blockyard sweep` writes it at its end")
        # `notes` and `second_difference`, what else differed between arms, are written by hand into the JSON and belong
        # to results: new results drop them.
        records[folder.name] = record(folder)
    DATA.write_text(json.dumps(list(records.values()), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(list(records.values())), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8"), list(records.values())), encoding="utf-8")


if __name__ == "__main__":
    main()
