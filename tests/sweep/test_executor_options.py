"""Executors: missing packages, options that are refused, and how they are listed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.sweep.executor import build
from blockyard.sweep.executor.local import LocalExecutor
from blockyard.sweep.executor.slurm import SlurmExecutor


def test_missing_packages_name_what_to_install(monkeypatch):
    for package, extra in (("ray", "ray"), ("submitit", "slurm")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=rf"blockyard\[{extra}\]"):
            build("ray" if extra == "ray" else "slurm", {})


def test_without_slurm_the_message_names_an_alternative(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = SlurmExecutor()
    executor.home = tmp_path
    with pytest.raises(UserError, match=r"executor\.cluster=local"), executor:
        pass


@pytest.mark.parametrize(
    ("name", "options", "workers", "says"),
    [
        ("locl", {}, None, "did you mean local"),
        ("local", {"partition": "gpu"}, None, "executor.partition"),
        ("slurm", {"partion": "gpu"}, None, "did you mean partition"),
        ("slurm", {"timeout_min": 0}, None, "executor.timeout_min: invalid value 0"),
        ("slurm", {"timeout_min": 1}, None, "signal_delay_s=120"),
        ("local", {"gpus": [99]}, None, "no GPU 99"),
        ("local", {}, 0, "executor.workers: invalid value 0"),
    ],
)
def test_invalid_options_are_named(name, options, workers, says):
    with pytest.raises(UserError, match=says):
        build(name, options, workers)


def test_all_problems_at_once():
    with pytest.raises(UserError) as caught:
        build("slurm", {"partion": "x", "mem_gb": -1})
    assert "partion" in str(caught.value)
    assert "mem_gb" in str(caught.value)


def test_workers_are_one_of_the_options():
    assert build("local", {"gpus": None, "workers": 3}).capacity == 3
    assert build("local", {"gpus": None}, workers=3).capacity == 3


def test_a_run_takes_no_executor(capsys):
    assert main(["check", "executor=local", "executor.workers=2"]) == 2
    message = capsys.readouterr().err
    assert message.count("is not part of a run; `blockyard sweep` takes it") == 2


@pytest.mark.parametrize("name", ["local", "ray", "slurm"])
def test_executors_are_listed_and_explained(name, capsys):
    assert main(["list", "executor"]) == 0
    assert name in capsys.readouterr().out
    assert main(["explain", f"executor={name}"]) == 0
    output = capsys.readouterr().out
    assert f"blockyard sweep FILE executor={name}" in output
    assert "executor.workers" in output


def test_listing_imports_nothing_heavy():
    code = (
        "import sys; from blockyard.cli import main; main(['list', 'executor']); "
        "assert not {'torch', 'ray', 'submitit'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("exported", "options", "expected"),
    [("1", {}, 1), ("3,2", {}, 3), ("3", {"threads": 2}, 2), ("", {}, 4), ("many", {}, 4)],
)
def test_exported_threads_are_those_of_the_cells(
    monkeypatch: pytest.MonkeyPatch, exported: str, options: dict[str, int], expected: int
) -> None:
    """OMP_NUM_THREADS is not replaced by a share of the cores; the executor's own option comes first."""
    monkeypatch.setattr("blockyard.sweep.executor.local.cpu_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", exported)
    executor = LocalExecutor(workers=2, gpus=None, **options)
    assert executor.threads == executor._server.threads == expected
