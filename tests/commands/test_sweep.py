"""`blockyard sweep`: the grid, the cost, the run, the answer; bad input is told at once and starts nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.sweep.cells import Cell
from blockyard.sweep.execution.time_taken import read_times
from blockyard.sweep.plan import planner
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec import locate
from tests.support.paths import ROOT

FILE = """
claim: One is better
base: [experiment=vit_digits, debug=fast, model.depth=1, model.dim=16, model.heads=2, logger=none, trainer=cpu]
arms:
  plain: []
  rms: [norm=rms]
  bad: [token_mixer=fourier, position=rope]
seeds: 2
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text(FILE)
    return tmp_path


def done(outputs: Path, plan: SweepPlan, cell: Cell, state: str = "done", **summary: object) -> None:
    """A run folder as a finished or failed run leaves it."""
    import socket

    folder = plan.path(cell)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / "status.json").write_text(json.dumps({"state": state, "reason": "boom" if state == "failed" else None}))
    figures = {"metrics": {"val/accuracy": 0.5, "test/accuracy": 0.5}, "seconds": 100.0, "samples": 1000} | summary
    figures.setdefault("flops_per_sample", {"training": 2000})
    (folder / "summary.json").write_text(json.dumps(figures))
    facts = {"identity": cell.run.partition("/")[0].rpartition("-")[2], "host": {"name": socket.gethostname()}}
    (folder / "run.json").write_text(json.dumps(facts))


def make(here: Path) -> SweepPlan:
    return planner.make_plan(here / "sweeps" / "mine.yaml", outputs="outputs")


def test_a_dry_run_shows_the_grid_and_starts_no_run(here, capsys):
    assert main(["sweep", "mine", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"plain \(baseline\) +\(base\) +to run +to run", out)
    assert re.search(r"bad .* refused +refused", out)
    assert "refused: bad\n  - position with token_mixer: position=rope acts on queries_and_keys" in out
    assert "from the first steps of plain" in out
    assert "trainer.precision is 32 in every cell" in out
    assert not list(here.rglob("run.json"))


def test_what_is_done_is_seen(here, capsys):
    plan = make(here)
    done(here, plan, plan.cells[0])
    done(here, plan, plan.cells[1], "failed")
    assert main(["sweep", "mine", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"plain \(baseline\) +\(base\) +done +failed", out)
    assert "failed: plain/s1: boom\n--retry runs it again" in out
    assert "2 to run" in out
    assert main(["sweep", "mine", "--dry-run", "--retry"]) == 0
    out = capsys.readouterr().out
    assert "to retry" in out
    assert "3 to run" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "sweep takes one sweep file, and none is named"),
        (["mine", "yours"], "not 2 (mine, yours)"),
        (["mien"], "unknown sweep 'mien'; did you mean mine or mixers"),
        (["sweeps"], "sweeps is a folder"),
        (["mine", "--dryrun"], "--dryrun: unknown flag; did you mean --dry-run?"),
        (["mine", "--workers", "0"], "--workers: expected a whole number >= 1, not '0'"),
        (["mine", "--workers"], "--workers: a value is missing"),
        (["mine", "--retry=yes"], "--retry: takes no value"),
        (["mine", "--executor", "slrm"], "executor=slrm: unknown executor; did you mean slurm?"),
        (["mine", "executor.worker=2"], "executor.worker: executor=local has no such option; did you mean workers?"),
        (["mine", "model.dmi=3"], "base: model.dmi: model (Encoder) has no option 'dmi'"),
        (["mine", "seed=3"], "seed cannot be set here"),
        (["mine", "--config-dir", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_bad_commands(here, capsys, arguments, message):
    before = sorted(here.rglob("*"))
    assert main(["sweep", "--dry-run", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before


def test_every_problem_of_a_file_is_told(here, capsys):
    (here / "sweeps" / "mine.yaml").write_text("claims: x\nseeds: no\narms: {a: [block]}\n")
    assert main(["sweep", "mine"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("blockyard: 4 problems\n  - ")
    assert not (here / "outputs").exists()


def test_a_run_ends_in_an_answer_and_fills_only_holes(here, capsys):
    arguments = ["sweep", "mine", "--workers", "1", "trainer.max_steps=2"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    folder = here / "outputs" / "sweeps" / "mine"
    assert {path.name for path in folder.iterdir()} >= {"plan.json", "comparison.json", "report.html"}
    assert str(folder / "report.html") in out
    result = json.loads((folder / "comparison.json").read_text())
    assert [arm["name"] for arm in result["arms"]][:2] == ["plain", "rms"]
    assert [cell["state"] for cell in result["cells"]].count("done") == 4
    assert re.search(r"took \d+ \w+, announced were about", out)
    times = {path: path.stat().st_mtime_ns for path in here.rglob("summary.json")}
    assert len(times) == 4
    (here / "sweeps" / "mine.yaml").write_text(FILE.replace("seeds: 2", "seeds: 3"))
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "the question has changed: 4 runs as before, 2 new; changed keys: seeds" in out
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert len(list(here.rglob("summary.json"))) == 6
    first, second = read_times(folder)
    assert first["cells"] == 4
    assert second["cells"] == 2
    assert second["ratio"] == pytest.approx(second["taken_seconds"] / second["announced_seconds"])
    assert f": {second['ratio']:.2f} times as long" in out
    assert main(arguments) == 0
    assert "times as long" not in capsys.readouterr().out  # nothing was left to run
    assert len(read_times(folder)) == 2
    plan = SweepPlan.load(folder)
    assert plan.facts["overrides"] == ["trainer.max_steps=2"]
    assert "trainer.max_steps=2" in plan.question["base"]


def test_a_command_at_the_end_reads_of_failed_cells_and_changes_no_exit_code(here, capsys, monkeypatch):
    from blockyard.report.home import on_end

    arms = "arms: {plain: [], rms: [norm=rms], costly: [trainer.max_flops=1]}\nseeds: 1\n"
    (here / "sweeps" / "mine.yaml").write_text(FILE.partition("arms:")[0] + arms)
    script = here / "mail.py"
    script.write_text("import pathlib, sys\npathlib.Path('mail.json').write_text(sys.stdin.read())\nsys.exit(3)\n")
    arguments = ["sweep", "mine", "--workers", "1", "trainer.max_steps=2", "--on-end"]
    assert main([*arguments, f"{sys.executable} {script}"]) == 1
    assert "ended with exit code 3; the sweep is as it was" in capsys.readouterr().out
    mail = json.loads((here / "mail.json").read_text())
    assert (mail["sweep"], mail["state"], mail["exit_code"]) == ("mine", "failed", 1)
    assert mail["answer"]
    assert {arm["name"]: arm["n"] for arm in mail["arms"]} == {"plain": 1, "rms": 1, "costly": 0}
    assert Path(mail["page"]).is_file()
    assert json.loads(Path(mail["comparison"]).read_text())["answer"] == mail["answer"]
    # Nothing is left to run, and the failed cell still counts.
    monkeypatch.setattr(on_end, "SECONDS", 0.3)
    script.write_text("import time\ntime.sleep(60)\n")
    assert main([*arguments, f"{sys.executable} {script}"]) == 1
    assert "did not end within 0.3 s and was stopped" in capsys.readouterr().out


SEARCH = FILE.replace("  bad: [token_mixer=fourier, position=rope]\n", "") + (
    "search: {trials: 2, sampler: random, space: {optimizer.lr: {low: 1e-4, high: 1e-2, log: true}}}\n"
)


def test_an_arm_that_a_search_finds_no_setting_for_has_failed(here, monkeypatch):
    from dataclasses import replace

    from blockyard.sweep.execution import runner
    from blockyard.sweep.search import search_runner

    (here / "sweeps" / "mine.yaml").write_text(SEARCH)
    arms = {"plain": {"chosen": "plain#0", "trials": []}, "rms": {"chosen": None, "trials": []}}
    monkeypatch.setattr(
        search_runner, "run_search", lambda plan, *_, **__: replace(plan, facts=plan.facts | {"search": {"arms": arms}})
    )
    monkeypatch.setattr(runner, "run_plan", lambda *_, **__: 0)
    assert main(["sweep", "mine", "--no-compare"]) == 1
    arms["rms"]["chosen"] = "rms#1"
    assert main(["sweep", "mine", "--no-compare"]) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_search_is_stopped_like_any_sweep(here, monkeypatch, number, code):
    from blockyard.sweep.execution import runner
    from blockyard.sweep.search import search_runner

    def stop(plan, *_, stopped, **__):
        assert not stopped()
        os.kill(os.getpid(), number)
        assert stopped()
        return plan

    (here / "sweeps" / "mine.yaml").write_text(SEARCH)
    monkeypatch.setattr(search_runner, "run_search", stop)
    monkeypatch.setattr(runner, "run_plan", lambda *_, **__: pytest.fail("cells are run after a stop"))
    assert main(["sweep", "mine"]) == code


def test_shipped_sweeps_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = {path.stem for path in (ROOT / "sweeps").glob("*.yaml")}
    assert set(locate.sweep_names()) == shipped
    os.mkdir("sweeps")
    Path("sweeps/quickstart.yaml").write_text("claim: mine\n")
    assert locate.find_sweep("quickstart") == Path("sweeps/quickstart.yaml")


def test_names_are_completed(here):
    from blockyard.commands.completion import complete

    assert complete("blockyard sweep min") == ["mine"]
    assert "--dry-run" in complete("blockyard sweep mine --d")
    assert complete("blockyard sweep mine --executor sl") == ["slurm"]
    assert complete("blockyard sweep mine position=ro") == ["position=rope"]
    assert complete("blockyard compare min") == ["mine"]


def test_completion_imports_nothing_heavy(here):
    code = "import sys; from blockyard.commands.completion import complete; print(complete('blockyard sweep min')); "
    code += "print({'torch', 'hydra', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["['mine']", "set()"]


def test_cells_that_ended_but_cannot_be_compared_are_no_bad_input(here, capsys, monkeypatch):
    from blockyard.errors import UserError
    from blockyard.report import comparison

    plan = make(here)
    for cell in plan.cells:
        done(here / "outputs", plan, cell)

    def broken(*_: object, **__: object) -> None:
        raise UserError("two arms built the same model")

    monkeypatch.setattr(comparison, "compare", broken)
    assert main(["sweep", "mine"]) == 1
    assert "cannot be compared: two arms built the same model" in capsys.readouterr().err


def test_a_run_of_train_with_the_pinned_precision_is_the_sweeps_own(here):
    from blockyard.config.compose import compose
    from blockyard.runs.identity import identity

    plan = make(here)
    arguments = ["experiment=vit_digits", "debug=fast", "model.depth=1", "model.dim=16", "model.heads=2", "trainer=cpu"]
    expected = identity(compose([*arguments, "norm=rms", "trainer.precision=32"]).config)
    assert expected in {cell.run.partition("/")[0].rpartition("-")[2] for cell in plan.cells}


def test_an_answer_of_before_is_marked_as_such(here, capsys, monkeypatch):
    from blockyard.report.home import stale
    from blockyard.sweep.execution import runner

    plan = make(here)
    for cell in plan.cells:
        done(here / "outputs", plan, cell)

    def comparison_json() -> dict[str, object]:
        return json.loads((plan.folder / stale.DATA).read_text())

    assert main(["sweep", "mine"]) == 0
    assert comparison_json()["stale"] is None
    for code, arguments in ((0, ["--no-compare"]), (130, []), (1, [])):
        # 130 is Ctrl-C; where it ended with 1, the new answer takes the old one's place
        monkeypatch.setattr(runner, "run_plan", lambda *_, code=code, **__: code)
        assert main(["sweep", "mine", *arguments]) == code
        assert bool(comparison_json()["stale"]) == (code != 1)
    assert (plan.folder / stale.PAGE).is_file()


@pytest.mark.full
def test_two_files_of_one_name_do_not_share_a_folder(here, capsys):
    from blockyard.sweep.plan import history

    history.store_plan(make(here))
    (here / "other").mkdir()
    other = here / "other" / "mine.yaml"
    other.write_text(FILE)
    assert main(["sweep", str(other), "--dry-run"]) == 0  # the same question
    other.write_text(FILE.replace("seeds: 2", "seeds: 3"))
    before = sorted(here.rglob("*"))
    for arguments in ([], ["--dry-run"]):
        capsys.readouterr()
        assert main(["sweep", str(other), *arguments]) == 2
        message = capsys.readouterr().err
        assert f"belongs to {here / 'sweeps' / 'mine.yaml'}, another question of the same name" in message
        assert f"rename {other}, or choose another folder with outputs=DIR" in message
    assert sorted(here.rglob("*")) == before
    assert main(["sweep", str(other), "--dry-run", "outputs=elsewhere"]) == 0
    (here / "sweeps" / "mine.yaml").rename(here / "sweeps" / "moved.yaml")
    assert main(["sweep", str(other), "--dry-run"]) == 0  # the file was moved and changed


def test_seeds_of_the_command_line_replace_those_of_the_file(here, capsys):
    assert main(["sweep", "mine", "--seeds", "3", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"plain \(baseline\) .* to run +to run +to run$", out, re.M)
    assert "6 to run" in out


def test_only_the_named_arms_are_run_and_the_others_stay(here, capsys):
    plan = make(here)
    done(here / "outputs", plan, next(cell for cell in plan.cells if cell.variant == "plain" and cell.seed == 0))
    assert main(["sweep", "mine", "--arms", "rms", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"plain \(baseline\) .* done +to run$", out, re.M)
    assert "--arms rms: 2 to run" in out
    assert main(["sweep", "mine", "--arms", "rsm", "--dry-run"]) == 2
    assert "--arms rsm: no such arm; did you mean rms? (arms: plain, rms, bad)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", ""], "--arms: name one arm or more (arms: plain, rms, bad)"),
        (["--arms", ","], "--arms: name one arm or more"),
        (["--executor", "ray", "executor=local"], "--executor ray and executor=local: give one of them"),
        (["--workers", "3", "executor.workers=1"], "--workers 3 and executor.workers=1: give one of them"),
    ],
)
def test_what_says_nothing_or_two_things_is_refused(arguments, message, here, capsys, monkeypatch):
    make(here)
    monkeypatch.setattr("blockyard.sweep.execution.runner.run_plan", lambda plan, executor, **_: 0)
    assert main(["sweep", "mine", *arguments, "--no-compare"]) == 2
    assert message in capsys.readouterr().err


def test_a_run_of_some_arms_leaves_the_plan_whole(here, capsys, monkeypatch):
    ran = []
    monkeypatch.setattr("blockyard.sweep.execution.runner.run_plan", lambda plan, *_, **__: ran.append(plan) or 0)
    assert main(["sweep", "mine", "--arms", "rms", "--no-compare"]) == 0
    assert {cell.variant for cell in ran[0].cells} == {"rms"}
    stored = SweepPlan.load(here / "outputs" / "sweeps" / "mine")
    assert {cell.variant for cell in stored.cells} == {"plain", "rms"}


def test_what_is_misspelt_in_an_arm_stops_the_plan(here, capsys):
    """A combination that cannot be is listed as refused; a name that exists nowhere is a mistake."""
    text = FILE.replace("[norm=rms]", "[norm=rsm]").replace("seeds: 2", "seeds: 2\n  # tail")
    text = text.replace(
        "plain: []", "plain: [token_mixer=conv, token_mixer.num_kv_heads=1]\n  odd: [trainer.eval_evry=2]"
    )
    (here / "sweeps" / "mine.yaml").write_text(text)
    assert main(["sweep", "mine", "--dry-run"]) == 2
    message = capsys.readouterr().err
    assert "rms: norm: unknown norm 'rsm'; did you mean rms?" in message
    assert "odd: trainer.eval_evry: trainer (TrainerPlan) has no option 'eval_evry'" in message
    assert "num_kv_heads" not in message  # an option of attention, which this mixer has not


def test_mistakes_of_keys_base_and_arms_are_told_together(here, capsys):
    text = FILE.replace("seeds:", "seed:").replace("base: [", "base: [epochs=3, ").replace("norm=rms", "norm=rsm")
    (here / "sweeps" / "mine.yaml").write_text(text)
    assert main(["sweep", "mine", "--dry-run"]) == 2
    message = capsys.readouterr().err
    assert "seed: unknown key; did you mean seeds?" in message
    assert "base: epochs: unknown config key (try trainer.max_epochs)" in message
    assert "rms: norm: unknown norm 'rsm'; did you mean rms?" in message
    assert message.count("epochs") == 2
