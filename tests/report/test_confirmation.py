"""`blockyard sweep NAME --confirm`: the same question on fresh seeds, and an answer that says whether it confirms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blockyard.atomic_files import read_json, write_json
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.report.comparison import Comparison, compare
from blockyard.report.confirmation import confirmed_facts, first_answer, fresh_seed
from blockyard.report.render.markdown import markdown
from blockyard.sweep.plan.history import store_plan
from blockyard.sweep.plan.planner import make_plan
from tests.report.report_runs import NORMS, TIME, sweep
from tests.support.tiny import UNTRAINED

VALUES: dict[str, dict[int, float | str]] = {
    "post": {0: 0.90, 1: 0.91, 2: 0.905},
    "pre": {0: 0.93, 1: 0.95, 2: 0.94},
}
FILE = f"""
claim: Pre-norm is better
base: [{", ".join(UNTRAINED)}]
baseline: post
arms: {{post: [block=post_norm], pre: [block=pre_norm]}}
seeds: 3
metric: test/accuracy
expect: pre > post
"""
BEFORE = "2026-01-01T00:00:00.000Z"  # the runs of a sweep here are of TIME


def answered(outputs: Path, **question: object) -> Path:
    """A sweep that was answered; return the path of its comparison."""
    plan = sweep(outputs, NORMS, VALUES, question={"expect": "pre > post", **question})
    write_json(plan.folder / "comparison.json", compare(plan, changes=False).as_dict())
    return plan.folder / "comparison.json"


def confirmation(tmp_path: Path, values: dict[str, dict[int, float | str]]) -> Comparison:
    """The comparison of a confirmation with these values, which was registered before its runs."""
    first = first_answer(answered(tmp_path), "norms")
    seeds = sorted({seed for by_seed in values.values() for seed in by_seed})
    plan = sweep(tmp_path, NORMS, values, name="norms-confirm", question={"expect": "pre > post", "seeds": seeds})
    (plan.folder / "plan.json").unlink()
    facts = {**plan.facts, "time": BEFORE, "confirms": confirmed_facts(plan, first)}
    stored = store_plan(replace(plan, facts=facts)).plan
    return compare(str(stored.folder), changes=False)


def shifted(values: dict[str, dict[int, float | str]]) -> dict[str, dict[int, float | str]]:
    return {arm: {seed + 1000: value for seed, value in by_seed.items()} for arm, by_seed in values.items()}


def test_the_same_verdict_on_fresh_seeds_confirms(tmp_path: Path) -> None:
    result = confirmation(tmp_path, shifted(VALUES))
    assert "Confirms: norms is supported on seeds 0 to 2, and again on fresh seeds 1000 to 1002." in result.answer
    assert result.seeds == [1000, 1001, 1002]
    assert "Confirms: norms is supported" in markdown(result)


def test_a_sweep_is_not_compared_together_with_its_confirmation(tmp_path: Path) -> None:
    confirmation(tmp_path, shifted(VALUES))
    folders = [str(tmp_path / "sweeps" / name) for name in ("norms", "norms-confirm")]
    with pytest.raises(UserError, match="norms-confirm asks norms again on fresh seeds"):
        compare(folders, changes=False)


def test_another_verdict_does_not(tmp_path: Path) -> None:
    swapped = {"post": VALUES["pre"], "pre": VALUES["post"]}
    result = confirmation(tmp_path, shifted(swapped))
    text = "Does not confirm: norms is supported on seeds 0 to 2, and contradicted on fresh seeds 1000 to 1002."
    assert text in result.answer


def test_runs_that_have_not_ended_confirm_nothing(tmp_path: Path) -> None:
    result = confirmation(tmp_path, shifted(VALUES | {"pre": {**VALUES["pre"], 2: "running"}}))
    assert "To be confirmed: norms is supported on seeds 0 to 2; on fresh seeds 1000 to 1002" in result.answer


def test_only_a_question_that_stood_before_every_run_is_registered_before_its_first(tmp_path: Path) -> None:
    plan = sweep(tmp_path, NORMS, VALUES, question={"expect": "pre > post"})
    for time, sentence in ((BEFORE, "Registered before its first run."), ("2027", "Asked after 6 of its 6 runs had")):
        (plan.folder / "plan.json").unlink()
        store_plan(replace(plan, facts={**plan.facts, "time": time}))
        assert sentence in compare(str(plan.folder), changes=False).answer
    assert TIME > BEFORE


@pytest.mark.parametrize(
    ("seeds", "typed", "expected", "until"),
    [
        ("3", None, [1000, 1001, 1002], None),
        ("[7, 9]", None, [1000, 1001], None),
        ("3", 2, [1000, 1001], None),
        ("{from: 1998, count: 4}", None, [3000, 3001, 3002, 3003], None),
        ("{first: 2, most: 3, until: decided}", None, [1000, 1001, 1002], {"first": 2, "most": 3, "by": "boundary"}),
    ],
)
def test_a_confirmation_has_as_many_seeds_of_the_next_thousand_in_a_folder_of_its_own(
    tmp_path: Path, seeds: str, typed: int | None, expected: list[int], until: dict[str, int | str] | None
) -> None:
    file = tmp_path / "norms.yaml"
    file.write_text(FILE.replace("seeds: 3", f"seeds: {seeds}"))
    first = make_plan(file, outputs=str(tmp_path / "o"))
    answer = first_answer(answered(tmp_path), "norms")
    fresh = fresh_seed(replace(answer, seeds=first.question["seeds"]))
    plan = make_plan(file, outputs=str(tmp_path / "o"), seeds=typed, fresh_from=fresh)
    assert (plan.question["seeds"], plan.question.get("until")) == (expected, until)
    assert plan.folder == first.folder.with_name("norms-confirm")
    assert not {cell.run for cell in plan.cells} & {cell.run for cell in first.cells}
    variant = {cell.run.partition("/")[0] for cell in plan.cells}
    assert variant == {cell.run.partition("/")[0] for cell in first.cells}  # the same runs but for their seeds


def test_what_cannot_be_confirmed_is_refused(tmp_path: Path) -> None:
    path = answered(tmp_path)
    answer = first_answer(path, "norms")
    for question in ({"margin": 0.1}, {"expect": "post > pre"}):
        plan = sweep(tmp_path, NORMS, VALUES, question={"expect": "pre > post", **question})
        with pytest.raises(UserError, match=f"`{next(iter(question))}` was changed since norms was answered"):
            confirmed_facts(plan, answer)
    write_json(path, {**read_json(path), "stale": "Outdated"})
    with pytest.raises(UserError, match="is out of date"):
        first_answer(path, "norms")
    path.unlink()
    with pytest.raises(UserError, match="no answer that could be confirmed; run `blockyard sweep norms` first"):
        first_answer(path, "norms")
    with pytest.raises(UserError, match="has no `expect:`"):
        first_answer(answered(tmp_path, expect=None), "norms")
    with pytest.raises(UserError, match="is undecided; more seeds can decide it"):
        first_answer(answered(tmp_path, expect="pre ~ post", margin=0.035), "norms")


def test_the_command_plans_the_same_runs_on_fresh_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "norms.yaml"
    file.write_text(FILE)
    path = answered(tmp_path / "o")
    question = make_plan(file, outputs=str(tmp_path / "o")).question
    write_json(path, {**read_json(path), "question": question})
    typed = ["sweep", str(file), "--confirm", "--dry-run", f"outputs={tmp_path / 'o'}"]
    assert main(typed) == 0
    text = capsys.readouterr().out
    assert text.startswith("norms-confirm: Pre-norm is better")
    assert "s1000" in text
    assert "note: asks norms again on fresh seeds, which is supported" in text
    file.write_text(FILE + "margin: 0.1\n")
    assert main(typed) == 2
    assert "`margin` was changed since norms was answered" in capsys.readouterr().err


def test_the_command_refuses_before_it_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "norms.yaml"
    file.write_text(FILE)
    assert main(["sweep", str(file), "--confirm", f"outputs={tmp_path / 'o'}"]) == 2
    assert "has no answer that could be confirmed" in capsys.readouterr().err
    assert main(["sweep", str(file), "--confirm", "--to-wandb", f"outputs={tmp_path / 'o'}"]) == 2
    assert "leave out --to-wandb" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
