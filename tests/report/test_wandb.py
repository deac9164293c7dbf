"""The answer at W&B: a summary run of the sweep's group, and a workspace with the page's panels."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import read_json, read_yaml, write_json, write_yaml
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.report.comparison import Comparison, compare
from blockyard.report.load.document import read_document
from blockyard.report.wandb.summary_run import mirror
from blockyard.report.wandb.workspace import _run_filter, build, workspace
from blockyard.sweep.plan.history import store_plan
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.page_data import HOSTILE, comparison
from tests.report.report_runs import NORMS, sweep

VALUES = {"post": {0: 0.90, 1: 0.91, 2: "failed"}, "pre": {0: 0.93, 1: 0.95, 2: 0.94}}
PATIENT = 100.0  # seconds; the limit itself has tests of its own, and a busy machine is slow
NODE = {"_target_": "blockyard.engine.loggers.wandb.Wandb", "project": "yard", "entity": None, "mode": "offline"}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not logged in, no W&B settings."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED", "WANDB_BASE_URL", "WANDB_SWEEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


def answered(tmp_path: Path, **logger: Any) -> tuple[SweepPlan, Comparison]:
    """A sweep that was run with W&B, and its comparison."""
    plan = sweep(tmp_path, NORMS, VALUES)
    node = NODE | {"group": plan.name} | logger
    variants = {k: replace(v, config=v.config | {"logger": node}) for k, v in plan.variants.items()}
    return replace(plan, variants=variants), compare(plan)


@pytest.mark.full
def test_the_summary_says_that_a_question_was_changed_after_its_results(tmp_path: Path) -> None:
    plan, _ = answered(tmp_path)
    store_plan(plan)
    changed = replace(plan, question={**plan.question, "expect": "pre >= post", "margin": 0.1})
    plan = store_plan(changed).plan
    assert mirror(compare(plan), plan, seconds=PATIENT) is not None
    summary: dict[str, Any] = {}
    for line in records(plan.folder):
        summary |= (line.get("summary") or {}).get("update") or {}
    assert summary["answer"].endswith("`expect` and `margin` were changed after 5 of its cells had finished.")


def records(folder: Path) -> list[dict[str, Any]]:
    path = max(folder.glob("wandb/*run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    program = shutil.which("wandb") or str(Path(sys.executable).parent / "wandb")
    output = subprocess.run([program, "leet", "inspect", "--json", str(path)], capture_output=True, text=True)
    return [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]


@pytest.mark.full
def test_the_summary_run_is_of_the_sweeps_group_and_holds_table_curves_and_figures(tmp_path: Path) -> None:
    plan, result = answered(tmp_path)
    message = mirror(result, plan, seconds=PATIENT)
    assert message == f"W&B: {plan.name}/comparison in group {plan.name} of project yard"
    lines = records(plan.folder)
    run = next(line["run"] for line in lines if line["type"] == "run")
    assert (run["display_name"], run["run_group"], run["job_type"]) == (
        f"{plan.name}/comparison",
        plan.name,
        "comparison",
    )
    directions = {line["metric"]["name"]: line["metric"]["summary"] for line in lines if line["type"] == "metric"}
    assert directions["pre/test/accuracy"] == {"max": True}
    summary: dict[str, Any] = {}
    for line in lines:
        summary |= (line.get("summary") or {}).get("update") or {}
    assert summary["pre/test/accuracy"] == pytest.approx(0.94)
    assert summary["answer"] == result["answer"]
    history = next(line["history"]["item"] for line in lines if line["type"] == "history")
    assert {"comparison", "cells", "plots/arms_table", "plots/cost_table"} <= {name.split(".")[0] for name in history}
    tables = [json.loads(path.read_text()) for path in plan.folder.glob("wandb/*/files/media/table/*.table.json")]
    table = next(table for table in tables if "Holm p" in table["columns"])
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["arm"] for row in rows] == ["post", "pre"]
    assert rows[1]["mean"] == pytest.approx(0.94)
    states = next(table for table in tables if "state" in table["columns"])
    assert [row[states["columns"].index("state")] for row in states["data"]].count("failed") == 1


def test_the_same_comparison_is_said_once_and_a_new_one_under_the_same_id(tmp_path: Path) -> None:
    plan, result = answered(tmp_path)
    assert mirror(result, plan, seconds=PATIENT) is not None
    first = read_json(plan.folder / "wandb.json")
    assert mirror(result, plan) is None
    assert mirror(replace(result, answer="more seeds say so"), plan, seconds=PATIENT) is not None
    second = read_json(plan.folder / "wandb.json")
    assert first["id"] == second["id"]
    assert first["said"] != second["said"]


@pytest.mark.parametrize("node", [{"_target_": "blockyard.engine.loggers.none.NoLogger"}, NODE | {"mode": "disabled"}])
def test_nothing_is_said_where_the_logger_is_another_or_off(tmp_path: Path, node: dict[str, Any]) -> None:
    plan, result = answered(tmp_path)
    variants = {k: replace(v, config=v.config | {"logger": node}) for k, v in plan.variants.items()}
    assert mirror(result, replace(plan, variants=variants)) is None
    assert not (plan.folder / "wandb.json").exists()


@pytest.mark.full
def test_a_network_that_swallows_everything_delays_by_less_than_15_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan, result = answered(tmp_path, mode="online")
    monkeypatch.setattr("blockyard.engine.loggers._wandb._PROBE_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server, caplog.at_level(logging.WARNING):
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        started = time.monotonic()
        assert mirror(result, plan) is not None
        assert time.monotonic() - started < 15
    assert "recorded offline" in caplog.text
    assert records(plan.folder)


@pytest.mark.parametrize("how", [RuntimeError("gone"), OSError(28, "No space left"), SystemExit(1)])
def test_no_error_of_wandbs_reaches_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: BaseException
) -> None:
    plan, result = answered(tmp_path)

    def breaks(*_: Any) -> None:
        raise how

    monkeypatch.setattr("blockyard.report.wandb.summary_run._log_run", breaks)
    assert mirror(result, plan) is None
    assert "the comparison was not logged to W&B" in caplog.text
    monkeypatch.setattr("blockyard.report.wandb.summary_run._log_run", lambda *_: time.sleep(5))
    started = time.monotonic()
    assert mirror(result, plan, seconds=0.3) is None
    assert time.monotonic() - started < 3
    assert "did not finish" in caplog.text


@pytest.mark.parametrize("names", [None, HOSTILE])
def test_every_comparison_can_be_said(tmp_path: Path, names: tuple[str, ...] | None) -> None:
    plan, _ = answered(tmp_path)
    result = read_document(comparison(**({"names": names, "arms": 5} if names else {"failed": True, "tuned": True})))
    assert mirror(result, plan, seconds=PATIENT) is not None


# -- the workspace ----------------------------------------------------------------------------------


def sent(plan: SweepPlan, *, entity: str | None = "team", group: str | None = "tiny") -> None:
    """As if the sweep's runs had been logged to W&B."""
    for number, cell in enumerate(plan.cells):
        path = plan.path(cell)
        if not (path / "run.json").is_file():
            continue
        facts = read_json(path / "run.json")
        write_json(path / "run.json", facts | {"wandb": {"id": f"id{number}", "project": "yard", "entity": entity}})
        config = read_yaml(path / "config.yaml")
        write_yaml(path / "config.yaml", config | {"logger": NODE | {"group": group}})


def _spec(result: Any) -> dict[str, Any]:
    return json.loads(result._to_model().model_dump_json(by_alias=True, exclude_none=True))


@pytest.mark.parametrize("group", ["tiny", None])
def test_the_workspace_has_the_pages_panels_over_the_sweeps_runs(tmp_path: Path, group: str | None) -> None:
    pytest.importorskip("wandb_workspaces")
    plan, result = answered(tmp_path)
    sent(plan, group=group)
    where = _run_filter(result, tmp_path)
    assert (where.entity, where.project, where.group) == ("team", "yard", group)
    spec = _spec(build(result, where, "team"))
    assert (spec["entity"], spec["project"], spec["displayName"]) == ("team", "yard", plan.name)
    text = json.dumps(spec)
    sections = spec["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections][:4] == [
        "Answer",
        "Arms",
        "Learning curves",
        "Quality against cost",
    ]
    for wanted in ("test/accuracy", "val/accuracy", "val/loss", "train/loss", "flops_per_sample", "jobType"):
        assert wanted in text, wanted
    runset = spec["spec"]["section"]["runSets"][0]
    assert ('"tiny"' if group else '"id0"') in json.dumps(runset["filters"])
    assert [key["name"] for key in runset["grouping"]] == ["jobType"]
    assert result.answer.split()[0] in text


def test_the_workspace_escapes_what_configs_say(tmp_path: Path) -> None:
    pytest.importorskip("wandb_workspaces")
    plan, result = answered(tmp_path)
    sent(plan)
    hostile = replace(result, answer=HOSTILE[0], claim=HOSTILE[1])
    text = json.dumps(_spec(build(hostile, _run_filter(result, tmp_path), "team")))
    assert "<script>" not in text
    assert "<img" not in text


def test_a_workspace_is_saved_and_its_address_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    internal = pytest.importorskip("wandb_workspaces.workspaces.internal")
    plan, result = answered(tmp_path)
    sent(plan)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    saved: list[Any] = []

    def upsert(view: Any) -> dict[str, Any]:
        saved.append(view)
        return {"upsertView": {"view": {"name": "nw-abc-v", "id": "xyz"}}}

    monkeypatch.setattr(internal, "upsert_view2", upsert)
    views = pytest.importorskip("wandb_workspaces.workspaces")
    monkeypatch.setattr(views.Workspace, "url", property(lambda view: f"{view.entity}/{view.project}"))
    address = workspace(result, outputs=str(tmp_path))
    assert len(saved) == 1
    assert address == "team/yard"

    def refuses(view: Any) -> dict[str, Any]:
        raise RuntimeError("permission denied")

    monkeypatch.setattr(internal, "upsert_view2", refuses)
    with pytest.raises(UserError, match="did not create the workspace: permission denied"):
        workspace(result, outputs=str(tmp_path))


def test_who_is_not_logged_in_is_told_so_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb_workspaces")
    plan, _ = answered(tmp_path)
    plan.save()
    assert main(["board", str(plan.folder), "--wandb"]) == 2
    assert "wandb login" in capsys.readouterr().err


def test_runs_that_wandb_never_saw_or_of_two_projects_are_refused(tmp_path: Path) -> None:
    plan, result = answered(tmp_path)
    with pytest.raises(UserError, match="none of these runs was logged to W&B"):
        _run_filter(result, tmp_path)
    sent(plan)
    path = plan.path(plan.cells[0]) / "run.json"
    write_json(path, read_json(path) | {"wandb": {"id": "x", "project": "other", "entity": "team"}})
    with pytest.raises(UserError, match=r"2 projects of W&B \(team/other, team/yard\)"):
        _run_filter(result, tmp_path)
