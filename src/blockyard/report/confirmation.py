"""A confirmation: the question of a sweep asked again on fresh seeds, whose answer says whether it confirms the first.

Its plan has a folder of its own, NAME-confirm, and its seeds begin at the next thousand after those of the first
answer, so that no run counts in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blockyard.atomic_files import read_json
from blockyard.errors import UserError
from blockyard.report.load.document import ComparisonDocument, ExpectRow, read_document
from blockyard.sweep.plan.history import changed_keys, key_list
from blockyard.sweep.plan.sweep_plan import ConfirmsFacts, SweepPlan

STEP = 1000  # fresh seeds begin at a multiple of it
_OWN_KEYS = ("name", "seeds", "until")  # of a question, which differ in its confirmation


def first_answer(path: Path, name: str) -> ComparisonDocument:
    """Return the decided answer of a sweep, which a confirmation asks for again. Raises UserError without one.

    path: of its comparison.json
    """
    again = f"run `blockyard sweep {name}` first"
    try:
        answer = read_document(read_json(path))
    except FileNotFoundError as error:
        raise UserError(f"--confirm: {path.parent} has no answer that could be confirmed; {again}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"--confirm: {path} is damaged ({error}); {again}") from error
    if answer.stale:
        raise UserError(f"--confirm: the answer in {path.parent} is out of date; {again}")
    if answer.expect is None:
        raise UserError(f"--confirm: {name} has no `expect:`, so there is no verdict that could be confirmed")
    if answer.expect.verdict == "undecided":
        raise UserError(f"--confirm: the answer in {path.parent} is undecided; more seeds can decide it: --seeds N")
    return answer


def fresh_seed(answer: ComparisonDocument) -> int:
    """Return the first seed of a confirmation: the next multiple of 1,000 after every seed of the answer."""
    return STEP * (max(answer.seeds, default=0) // STEP + 1)


def confirmed_facts(plan: SweepPlan, answer: ComparisonDocument) -> ConfirmsFacts:
    """Return what a plan confirms. Raises UserError where its question is not the one that was answered."""
    changed = [key for key in changed_keys(answer.question or {}, plan.question) if key not in _OWN_KEYS]
    if changed:
        raise UserError(
            f"--confirm: {key_list(changed)} changed since {answer.title} was answered, so this is another question; "
            "answer it first, by the same command without --confirm"
        )
    assert answer.expect is not None
    return {"sweep": answer.title, "verdict": answer.expect.verdict, "seeds": list(answer.seeds)}


def confirmation_sentence(
    facts: ConfirmsFacts | None, expect: ExpectRow | None, seeds: Sequence[int], *, unfinished: bool
) -> str:
    """Return a sentence on whether an answer confirms the first one; empty for a sweep that is no confirmation.

    unfinished: whether runs of the confirmation have not ended
    """
    if facts is None or expect is None:
        return ""
    first = f"{facts['sweep']} is {facts['verdict']} on {seed_list(facts['seeds'])}"
    fresh = f"fresh {seed_list(seeds)}"
    if unfinished:
        return f"To be confirmed: {first}; on {fresh} not all runs have ended."
    if expect.verdict == facts["verdict"]:
        return f"Confirms: {first}, and again on {fresh}."
    return f"Does not confirm: {first}, and {expect.verdict} on {fresh}."


def seed_list(seeds: Sequence[int]) -> str:
    """Return seeds as text: "seeds 0 to 4" for a range, "seeds 1, 5, 7" for others."""
    ordered = sorted(seeds)
    if len(ordered) == 1:
        return f"seed {ordered[0]}"
    if ordered and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"seeds {ordered[0]} to {ordered[-1]}"
    return f"seeds {', '.join(map(str, ordered))}"
