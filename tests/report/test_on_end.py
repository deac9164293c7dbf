"""The command at the end of a sweep: what it reads, and that nothing of it changes the sweep."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from blockyard.atomic_files import write_json
from blockyard.errors import UserError
from blockyard.report.home import on_end
from tests.report.page_data import comparison

KEEP = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"


def test_the_command_reads_the_answer(tmp_path: Path) -> None:
    folder = tmp_path / "norms"
    write_json(folder / "comparison.json", comparison(arms=2, seeds=3))
    target = tmp_path / "with space.json"
    arguments = on_end.arguments_of(f"{sys.executable} -c '{KEEP}' '{target}'")
    said: list[str] = []
    on_end.run_on_end(arguments, folder, 0, said.append)
    content = json.loads(target.read_text())
    assert said == []
    assert (content["sweep"], content["state"], content["exit_code"]) == ("norms", "done", 0)
    assert content["verdict"] == "supported"
    assert [arm["n"] for arm in content["arms"]] == [3, 3]
    assert content["page"] == str(folder / "report.html")


@pytest.mark.parametrize(("code", "state"), [(1, "failed"), (130, "interrupted"), (143, "interrupted")])
def test_a_failure_is_told_without_an_outdated_answer(tmp_path: Path, code: int, state: str) -> None:
    write_json(tmp_path / "comparison.json", {**comparison(arms=2, seeds=3), "stale": "Outdated"})
    content = on_end.answer_of(tmp_path, code)
    assert (content["state"], content["exit_code"]) == (state, code)
    assert content["answer"] is None
    assert content["arms"] == []


@pytest.mark.parametrize(
    ("script", "expected"),
    [("raise SystemExit(3)", "ended with exit code 3"), ("import time; time.sleep(9)", "did not end within 0.3 s")],
)
def test_a_command_that_fails_is_reported(
    tmp_path: Path, script: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_end, "SECONDS", 0.3 if "sleep" in script else 30.0)
    said: list[str] = []
    on_end.run_on_end([sys.executable, "-c", script], tmp_path, 0, said.append)
    assert len(said) == 1
    assert expected in said[0]


def test_no_shell_reads_the_command() -> None:
    with pytest.raises(UserError, match="the program 'nosuchprogram' is not installed"):
        on_end.arguments_of("nosuchprogram | mail me")
    with pytest.raises(UserError, match="quotation"):
        on_end.arguments_of("echo 'a")
    assert on_end.arguments_of("echo $HOME '; ls'") == ["echo", "$HOME", "; ls"]
