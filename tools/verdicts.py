"""Writes docs/verdicts.md, one row for each sweep that was run to its verdict, and README's question and answer.

    python tools/verdicts.py [outputs/sweeps/*]
    python tools/verdicts.py --confirmed FOLDER [FOLDER ...]
    python tools/verdicts.py --check

Reads comparison.json of each sweep's folder into docs/verdicts.json, which keeps the results, then writes the page and
README's question with its answer from it. docs/at_scale.yaml says what sources report of the arms of ladders. Without
folders only the page and README are written.

A result that replaces another one keeps it: `asked` lists the earlier answers with the keys of the question that were
changed after each. No answer is ever dropped. With --confirmed, the folders hold answers on fresh seeds to questions
that docs/confirmations.yaml registered before, or of `blockyard sweep NAME --confirm`; they stand beside the answers of
the questions. docs/asked_again.yaml registers questions that were changed after their answers, before their first run.

--check computes every verdict again from the values of its seeds, prints those that today's rule judges otherwise than
the rule that they were recorded under, and exits with 1 where an answer is not what its own rule says.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from blockyard.report.load.document import ArmRow, ComparisonDocument, read_document  # noqa: E402
from blockyard.report.render.columns import ladders  # noqa: E402
from blockyard.report.stats.decisions import (  # noqa: E402
    Decisions,
    Pair,
    decision_accuracy,
    mean_gaps,
    pair_gaps,
    told_apart,
)
from blockyard.sweep.plan.history import BEFORE_FIRST_RUN, key_list, registration_sentence  # noqa: E402
from blockyard.sweep.spec.question import CONFIRMATION  # noqa: E402
from tools import recomputed  # noqa: E402

DATA, PAGE, README = ROOT / "docs" / "verdicts.json", ROOT / "docs" / "verdicts.md", ROOT / "README.md"
REGISTERED = ROOT / "docs" / "confirmations.yaml"  # sweep: seeds from FRESH on
ASKED_AGAIN = ROOT / "docs" / "asked_again.yaml"  # sweep: its new question, registered before the first run
AT_SCALE = ROOT / "docs" / "at_scale.yaml"  # what sources report of larger models
QUOTED = "positions_text"  # in README
FEWEST = 5  # seeds of a result that is shown
FRESH = 1000  # the first seed of a confirmation; published seeds are below
WORDS = {"claim", "source"}  # keys of a question that change no run and no verdict
SHARED_BASELINES = 24  # questions whose baseline has the same runs as that of another question
FALSE_BY_LOOKS = 0.02  # of verdicts, measured by `python benchmarks/sequential.py errors`

HEAD = """# Verdicts

Each row is a sweep file in `sweeps/`, run to its end with `blockyard sweep NAME` on 2 CPU cores. The models are small
and the runs short: these are verdicts about the data that the files name (digits, 1.3 million characters of Python
code, generated sequences, tones, graphs and others), not about the papers.
Means and differences are over seeds, paired by seed; brackets hold 95 % intervals, and confidence sequences where a
sweep stopped when it was decided. There an arm may have fewer seeds (n) than the baseline: its mean is over its own,
its difference over those that both have. Every result is over {fewest} seeds or more.

Written by `python tools/verdicts.py`; the runs date from {dates}. How a verdict is reached:
[Statistics](statistics.md).

*Asked* counts the versions of a question that were answered, with the verdict of the first and the keys that were
changed since. A verdict of a question that was changed after an answer was known is worth less than its error rate
says: the 5 % of a test hold for one question, posed once, before its runs. The section of a sweep lists its earlier
answers.
*Confirmed* is the answer to that question on fresh seeds, with a number of them that was registered in
docs/confirmations.yaml before their first run; nothing was looked at in between. *Warnings* counts those of the answer,
which its section lists; answers from before 2026-11-28 did not keep theirs.

About {false} % of the verdicts are expected to be false by the looks alone, {expected:.1f} of the {decided} that are
decided, and more of those whose question was changed. They are not independent of each other: almost all share the
seeds 0 to 4, questions about one data set share its test set, and {shared} questions have the same baseline runs as
another one.
*Withdrawn* is an answer whose question could not tell what its claim says; the reason stands in its section, and the
answer stays. `python tools/verdicts.py --check` computes again what kept the values of its seeds: {values}.

"""


def record(folder: Path) -> dict[str, Any]:
    """Return the facts of a finished sweep that the page shows, and the values of its seeds."""
    comparison = _read(folder)
    header, rows = ladders(comparison)
    expect = comparison.expect
    done = sum(cell.state == "done" for cell in comparison.cells)
    kept = recomputed.kept(comparison, _commit(folder))
    runs = kept.pop("runs")
    return {
        "sweep": folder.name,
        "date": datetime.date.fromtimestamp((folder / "comparison.json").stat().st_mtime).isoformat(),
        "claim": comparison.claim,
        "metric": comparison.metric,
        "expected": expect and expect.text,
        "verdict": expect and expect.verdict,
        "seeds": len(comparison.seeds),
        "cells": [done, len(comparison.cells)],
        "arms": [{**_arm(arm), **runs[arm.name]} for arm in comparison.arms],
        "clauses": [[clause.text, clause.verdict, clause.reason] for clause in expect.clauses] if expect else [],
        "stopped": comparison.evidence and comparison.evidence.words,
        "question": question(folder.name),
        **kept,
        "registered": _is_registered(folder, comparison),
        "warnings": comparison.warnings,
        "baselines": {baseline.name: baseline.value for baseline in comparison.baselines},
        **({"ladder": [header, *rows]} if rows else {}),
    }


def question(sweep: str, file: Path | None = None) -> dict[str, str]:
    """Return a digest of each key of a sweep's file that changes its runs or its verdict."""
    path = file or ROOT / "sweeps" / f"{sweep}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        key: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
        for key, value in content.items()
        if key not in WORDS
    }


def digest(sweep: str) -> str:
    """Return one digest of the question of a sweep's file, as docs/asked_again.yaml registers it."""
    return hashlib.sha256(json.dumps(question(sweep), sort_keys=True).encode()).hexdigest()[:8]


def confirmation(folder: Path, answered: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a finished sweep on fresh seeds. Exits for seeds that were not registered.

    answered: the record that it confirms, or does not
    """
    comparison = _read(folder)
    facts = _facts(folder)
    count = yaml.safe_load(REGISTERED.read_text(encoding="utf-8")).get(answered["sweep"])
    by_command = "confirms" in facts
    if not by_command and (count is None or comparison.seeds != list(range(FRESH, FRESH + count))):
        sys.exit(f"{folder}: {REGISTERED.name} does not name it with these seeds: {comparison.seeds}")
    asked = question(answered["sweep"], Path(facts["file"])) | {"seeds": answered["question"].get("seeds", "")}
    if asked != {"seeds": ""} | answered["question"]:
        sys.exit(f"{folder}: its file asks another question than the one that {DATA.name} has an answer to")
    expect = comparison.expect
    assert expect is not None
    return {
        "date": datetime.date.fromtimestamp((folder / "comparison.json").stat().st_mtime).isoformat(),
        "metric": comparison.metric,
        "seeds": len(comparison.seeds),
        "verdict": expect.verdict,
        "clauses": [[clause.text, clause.verdict, clause.reason] for clause in expect.clauses],
        "registered": _is_registered(folder, comparison),
        "warnings": comparison.warnings,
        **recomputed.kept(comparison, _commit(folder)),
    }


def checks(records: list[dict[str, Any]]) -> list[recomputed.Check]:
    """Return the check of every answer: of the records, and of their confirmations."""
    today = recomputed.rule()
    results = []
    for one in records:
        results.append(recomputed.check(one["sweep"], one, today))
        if "confirmed" in one:
            results.append(recomputed.check(f"{one['sweep']} on fresh seeds", one["confirmed"], today))
    return results


def check_lines(results: list[recomputed.Check]) -> list[str]:
    """Return the results of `checks` as lines: what differs, then how many answers could be computed again."""
    lines = []
    for result in results:
        lines += [f"{result.name}: {text}, by the rule that judged it ({result.rule})" for text in result.wrong]
        lines += [f"{result.name}: {text}; recorded by rule {result.rule}" for text in result.changed]
    computed = [result for result in results if result.missing is None]
    alike = sum(not result.wrong and not result.changed for result in computed)
    lines.append(f"{len(computed)} of {len(results)} answers computed again from their values: {alike} as recorded")
    for reason, count in Counter(result.missing for result in results if result.missing).items():
        lines.append(f"{count} cannot be computed again: {reason}")
    return lines


def with_history(new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    """Return a new result with the earlier answers of its sweep, of which `old` is the last one."""
    if old is None:
        return new
    asked = list(old.get("asked", ()))
    facts = ("verdict", "seeds", "cells", "question")
    kept_in_history = ("confirmed", "withdrawn", "withdrawn_ladder", "second_difference", "rule")
    if any(old.get(fact) != new.get(fact) for fact in facts):
        before, now = old.get("question", {}), new["question"]
        changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        answer = {"date": old["date"], "verdict": old["verdict"], "seeds": old["seeds"], "cells": old["cells"][0]}
        answer |= {key: old[key] for key in kept_in_history if key in old}
        asked.append({**answer, "changed": changed})
    kept = {"asked": asked} if asked else {}
    if "confirmed" in old and old["question"] == new["question"]:
        kept["confirmed"] = old["confirmed"]
    return {**new, **kept}


def _read(folder: Path) -> ComparisonDocument:
    return read_document(json.loads((folder / "comparison.json").read_text(encoding="utf-8")))


def _facts(folder: Path) -> Any:
    """Return the facts of a sweep's plan."""
    return json.loads((folder / "plan.json").read_text(encoding="utf-8"))["facts"]


def _commit(folder: Path) -> str:
    """Return the commit of the code that answered a sweep."""
    git = _facts(folder).get("git") or {}
    return git.get("commit") or "HEAD"


def _is_registered(folder: Path, comparison: ComparisonDocument) -> bool:
    """Return whether the question in a sweep's folder stood before the first of its runs was started."""
    starts = [cell.started for cell in comparison.cells if cell.state not in ("missing", "refused")]
    return registration_sentence(_facts(folder), starts) == BEFORE_FIRST_RUN


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
        *_reasked(records),
        *_confirmed(records),
        "| sweep | claim | verdict | asked | confirmed | warnings | seeds | cells |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in records:
        name = one["sweep"]
        columns = [f"[`{name}`](#{name})", _claim(one), _verdict(one), _asked(one), _again(one), _num_warnings(one)]
        lines.append(f"| {' | '.join(columns)} | {one['seeds']} | {one['cells'][0]} |")
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
        lines += _earlier(one)
        if "withdrawn" in one:
            lines += [f"Withdrawn: {one['withdrawn']}", ""]
        if one.get("registered"):
            lines += [BEFORE_FIRST_RUN, ""]
        if one.get("stopped"):
            lines += [one["stopped"], ""]
        if fresh := one.get("confirmed"):
            lines += [_outcome(one), ""]
            lines += [*(f"- `{text}`: {verdict}. {reason}" for text, verdict, reason in fresh["clauses"]), ""]
        lines += _since(one)
        clauses = one.get("clauses") or []
        if len(clauses) > 1 or one.get("stopped"):  # the rows compare with the baseline, clauses with what they name
            lines += [*(f"- `{text}`: {verdict}. {reason}" for text, verdict, reason in clauses), ""]
        if "withdrawn_ladder" in one:
            lines += [f"The compute multipliers are withdrawn: {one['withdrawn_ladder']}", ""]
        elif ladder := one.get("ladder"):
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
        if one.get("baselines"):
            simple = ", ".join(f"{name} {_short(value)}" for name, value in one["baselines"].items())
            lines.append(f"\nSimple baselines: {simple}.")
        if one.get("warnings"):
            lines += ["", "Warnings:", "", *(f"- {warning}" for warning in one["warnings"])]
        if "second_difference" in one:
            lines.append(f"\nA second difference, until the sweep is run again: {one['second_difference']}")
    lines += _decisions(records)
    lines += _asked_again(records)
    if open_questions:
        names = ", ".join(f"`{name}`" for name in open_questions)
        lines += ["", "## Open questions", "", f"Not run on {FEWEST} seeds yet, with `blockyard sweep NAME`: {names}."]
    span = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    decided = sum(one["verdict"] in ("supported", "contradicted") for one in records)
    answers = [*records, *(one["confirmed"] for one in records if "confirmed" in one)]
    head = HEAD.format(
        fewest=FEWEST,
        dates=span,
        false=f"{100 * FALSE_BY_LOOKS:g}",
        expected=FALSE_BY_LOOKS * decided,
        decided=decided,
        shared=SHARED_BASELINES,
        values=f"{sum(recomputed.has_values(answer) for answer in answers)} of {len(answers)} answers",
    )
    return head + "\n".join(lines) + "\n"


def _verdict(record: dict[str, Any]) -> str:
    verdict = record["verdict"] or "-"
    if "second_difference" in record:
        verdict += ", with a second difference"
    if "withdrawn" in record:
        return f"withdrawn (was {verdict})"
    return verdict


def _asked(record: dict[str, Any]) -> str:
    """Return how many versions of a question were answered, the first verdict and the keys that were changed since."""
    answers = record.get("asked", ())
    if not answers:
        return "1"
    keys = dict.fromkeys(key for answer in answers for key in answer["changed"])
    changed = ", ".join(f"`{key}`" for key in sorted(keys)) or "the rule or the limit of seeds"
    return f"{1 + len(answers)}: first {answers[0]['verdict'] or 'not recorded'}; {changed} changed"


def _again(record: dict[str, Any]) -> str:
    """Return whether fresh seeds confirmed the answer; empty where they were not tried."""
    fresh = record.get("confirmed")
    if fresh is None:
        return ""
    if fresh["verdict"] == record["verdict"]:
        return f"yes, {fresh['seeds']} seeds"
    return f"**no**: {fresh['verdict']}, {fresh['seeds']} seeds"


def _outcome(record: dict[str, Any]) -> str:
    """Return whether the answer on fresh seeds confirms the first, as a sentence."""
    fresh = record["confirmed"]
    outcome = "Confirms" if fresh["verdict"] == record["verdict"] else "Does not confirm"
    sentence = f"{outcome}: {fresh['verdict']} on {fresh['seeds']} fresh seeds for every arm ({fresh['date']})."
    return f"{sentence} {BEFORE_FIRST_RUN}" if fresh.get("registered") else sentence


def _num_warnings(record: dict[str, Any]) -> str:
    return str(len(record["warnings"])) if "warnings" in record else "not kept"


def _short(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3g}"


def registered() -> dict[str, dict[str, Any]]:
    """Return the questions that were changed after an answer and registered before a new one, by their sweep."""
    return yaml.safe_load(ASKED_AGAIN.read_text(encoding="utf-8")) or {}


def _asked_again(records: list[dict[str, Any]]) -> list[str]:
    """Return the table of the questions that were registered anew and have no answer yet."""
    answered = {one["sweep"]: one["question"] for one in records}
    waiting = {name: facts for name, facts in registered().items() if answered.get(name) != question(name)}
    if not waiting:
        return []
    text = "Registered in docs/asked_again.yaml before their first run, on seeds that no run here has had:"
    lines = ["", "## Asked again", "", text, ""]
    lines += ["| sweep | claim | seeds | minutes on 2 cores | why |", "|---|---|---|---|---|"]
    for name, facts in waiting.items():
        claim = _key({"sweep": name}, "claim")
        lines.append(f"| `{name}` | {claim} | {facts['seeds']} | {facts['minutes']} | {facts['why']} |")
    return lines


def _decisions(records: list[dict[str, Any]]) -> list[str]:
    """Return a section on how often the rungs of ladders order two arms as the largest rung does."""
    rows = []
    for one in records:
        if "ladder" not in one["question"]:
            continue
        largest, counts = _rungs(one)
        for rung, count in counts.items():
            decided_share = _share(count.decided_kept, count.decided)
            rows.append(
                f"| [`{one['sweep']}`](#{one['sweep']}) | `{one['metric']}` | {rung} | {largest} "
                f"| {_share(count.kept, count.pairs)} | {decided_share} |"
            )
    if not rows:
        return []
    return [
        "",
        "## Decision accuracy",
        "",
        "Of the pairs of arms of a ladder, the share whose difference has at a rung the sign that it has at the",
        "largest rung, by the means. The last column counts pairs that the seeds tell apart at the largest rung",
        "(95 %, not corrected): the sign of the others there is that of noise. Where a record holds no values of",
        "seeds, these are pairs with the baseline.",
        "",
        "| ladder | metric | rung | largest | pairs with the same sign | of those told apart |",
        "|---|---|---|---|---|---|",
        *rows,
    ]


def _rungs(record: dict[str, Any]) -> tuple[str, dict[str, Decisions]]:
    """Return the largest rung of a ladder, and the decisions of each smaller one. An arm's name ends in its rung."""
    rungs: dict[str, dict[str, dict[str, Any]]] = {}
    for arm in record["arms"]:
        if arm["mean"] is not None:
            name, _, rung = arm["name"].rpartition("-")
            rungs.setdefault(rung, {})[name] = arm
    *smaller, largest = sorted(rungs, key=float)
    has_values = all("values" in arm for arm in record["arms"])
    gaps = {}
    for rung in (*smaller, largest):
        values = {}
        for name, arm in rungs[rung].items():
            values[name] = arm["values"] if has_values else {"": arm["mean"]}
        gaps[rung] = pair_gaps(values)
    decided = _apart_from_baseline(rungs[largest])
    if has_values:
        decided = told_apart(gaps[largest])
    counts = decision_accuracy([mean_gaps(pairs) for pairs in gaps.values()], decided)
    return largest, dict(zip(smaller, counts, strict=True))


def _apart_from_baseline(arms: dict[str, dict[str, Any]]) -> set[Pair]:
    """Return the pairs of an arm and the baseline whose interval leaves 0 out."""
    decided = set()
    for pair in itertools.combinations(arms, 2):
        verdicts = [arms[name]["verdict"] for name in pair]
        intervals = [arms[name]["interval"] for name in pair if arms[name]["interval"]]
        if "baseline" in verdicts and any(low > 0 or high < 0 for low, high in intervals):
            decided.add(pair)
    return decided


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.0f} %)" if of else ""


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
    counts = Counter("withdrawn" if "withdrawn" in one else one["verdict"] or "not judged" for one in records)
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


def _reasked(records: list[dict[str, Any]]) -> list[str]:
    """Return how many questions were asked more than once, and what their first answers were."""
    again = [one for one in records if one.get("asked")]
    if not again:
        return []
    firsts = [one["asked"][0]["verdict"] or "not recorded" for one in again]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(firsts).most_common())
    differ = sum(one["asked"][0]["verdict"] != one["verdict"] for one in again)
    not_seeds_alone = sum(any(set(answer["changed"]) - {"seeds"} for answer in one["asked"]) for one in again)
    cells = sum(answer["cells"] or 0 for one in again for answer in one["asked"])
    return [
        f"{len(records) - len(again)} questions were asked once. {len(again)} were asked again after an answer was",
        f"known, {not_seeds_alone} of them with more than the seeds changed. Their first answers: {counts};",
        f"{differ} verdicts differ from the first. The earlier answers took {cells:,} cells beside those of the table.",
        "",
    ]


def _confirmed(records: list[dict[str, Any]]) -> list[str]:
    """Return how many answers hold on fresh seeds, in a sentence."""
    again = [one for one in records if "confirmed" in one]
    if not again:
        return []
    outcomes = Counter((one["verdict"], one["confirmed"]["verdict"]) for one in again)
    held = sum(count for (first, fresh), count in outcomes.items() if first == fresh)
    others = [f"{count} {first}, then {fresh}" for (first, fresh), count in outcomes.items() if first != fresh]
    lines = [f"{len(again)} were asked again on fresh seeds: {'; '.join([f'{held} have the same verdict', *others])}."]
    failed = [one["sweep"] for one in again if one["confirmed"]["verdict"] != one["verdict"]]
    if failed:
        lines.append(f"Not confirmed: {', '.join(f'[`{name}`](#{name})' for name in failed)}.")
    return [*lines, ""]


def _earlier(record: dict[str, Any]) -> list[str]:
    """Return the earlier answers of a sweep in a sentence, each with the keys that were changed after it."""
    answers = record.get("asked", ())
    if not answers:
        return []
    parts = []
    for answer in answers:
        changed = ", ".join(f"`{key}`" for key in answer["changed"]) or "the rule or the limit of seeds"
        if answer["verdict"] is None:
            parts.append(f"an answer that was not recorded, before a change of {changed}")
        else:
            seeds, cells = answer["seeds"], answer["cells"]
            verdict = answer["verdict"]
            if "confirmed" in answer:
                verdict += f" ({answer['confirmed']['verdict']} on fresh seeds)"
            if "withdrawn" in answer:
                verdict += ", withdrawn,"
            parts.append(f"{verdict} on {answer['date']} ({seeds} seeds, {cells} cells), then {changed} changed")
    return [f"Asked {len(answers) + 1} times. Earlier: {'; '.join(parts)}.", ""]


def _since(record: dict[str, Any]) -> list[str]:
    """Return which keys of the sweep's file were changed after these runs, in a sentence."""
    before, now = record["question"], question(record["sweep"])
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if not changed:
        return []
    return [f"In the file {key_list(changed)} changed since; this answer is not of it.", ""]


def _claim(record: dict[str, Any]) -> str:
    """Return the claim as the sweep's file words it now, unless the file asks something else by now."""
    claim: str = record["claim"]
    if record["question"] != question(record["sweep"]):
        return claim
    return _key(record, "claim") or claim


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
    if sys.argv[1:] == ["--check"]:
        results = checks(json.loads(DATA.read_text(encoding="utf-8")))
        sys.stdout.write("\n".join(check_lines(results)) + "\n")
        sys.exit(any(result.wrong for result in results))
    confirms = sys.argv[1:2] == ["--confirmed"]
    arguments = sys.argv[2:] if confirms else sys.argv[1:]
    if any(argument.startswith("-") for argument in arguments):
        sys.exit(__doc__)
    folders = [Path(argument) for argument in arguments]
    records = {one["sweep"]: one for one in json.loads(DATA.read_text(encoding="utf-8"))}
    for folder in folders:
        if not (folder / "comparison.json").is_file():
            sys.exit(f"{folder} has no comparison.json: `blockyard sweep` writes it at its end")
        # `notes` and `second_difference`, what else differed between arms, are written by hand into the JSON and belong
        # to results: new results drop them.
        if confirms:
            answered = records[folder.name.removesuffix(CONFIRMATION)]
            answered["confirmed"] = confirmation(folder, answered)
            sys.stdout.write(f"{answered['sweep']}, {answered['verdict']}: {_outcome(answered)}\n")
        else:
            records[folder.name] = with_history(record(folder), records.get(folder.name))
    DATA.write_text(json.dumps(list(records.values()), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(list(records.values())), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8"), list(records.values())), encoding="utf-8")


if __name__ == "__main__":
    main()
