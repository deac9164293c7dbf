"""The suite sees nothing of the checkout's runs, of a project file, or of the user's environment and home folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.paths import ROOT

# What the tests below read: runs by name, project files, W&B's account and mode, threads.
SHORTEST_PART = (
    "tests/test_isolation.py::test_nothing_of_the_user_is_left",
    "tests/weights/test_sources.py::test_what_cannot_be_read_is_refused_with_the_reason",
    "tests/config/test_project_file.py::test_what_is_typed_comes_first",
    "tests/config/test_project_file.py::test_it_can_be_switched_off",
    "tests/config/test_project_file.py::test_a_mistake_is_named_with_its_file",
)
PLANTED = {
    "OMP_NUM_THREADS": "7",
    "WANDB_MODE": "online",
    "WANDB_API_KEY": "k" * 40,
    "WANDB_PROJECT": "planted",
    "BLOCKYARD_PROJECT": "planted.yaml",
    "BLOCKYARD_COMPONENTS": "none",
    "SLURM_JOB_ID": "1",
    "RAY_ADDRESS": "10.0.0.1:6379",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def test_nothing_of_the_user_is_left() -> None:
    assert os.listdir() == []
    assert not any((folder / "blockyard.yaml").exists() for folder in (Path.cwd(), *Path.cwd().parents))
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert torch.get_num_threads() == 1
    assert {name for name in os.environ if name.startswith("WANDB_")} <= {"WANDB_MODE", "WANDB_ERROR_REPORTING"}
    assert os.environ["WANDB_MODE"] == "offline"
    assert not {"BLOCKYARD_PROJECT", "SLURM_JOB_ID", "RAY_ADDRESS", "LOCAL_RANK", "WORLD_SIZE"} & set(os.environ)
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert not sys.dont_write_bytecode
    assert not (Path.home() / ".ray").exists()
    assert not (Path.home() / ".netrc").exists()


@pytest.mark.full
def test_a_used_checkout_passes(tmp_path: Path) -> None:
    """A checkout with runs, a project file, exported variables and a home folder with accounts."""
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    (checkout / "outputs" / "mlp-0123456789" / "s0").mkdir(parents=True)
    for name in ("src", "conf", "sweeps", "tests", "docs", "tools", "pyproject.toml", "README.md", "CONTRIBUTING.md"):
        (checkout / name).symlink_to(ROOT / name)
    run = checkout / "outputs" / "mlp-0123456789" / "s0"
    (run / "config.yaml").write_text("seed: 0\n")
    (run / "status.json").write_text(json.dumps({"state": "done"}))
    (checkout / "blockyard.yaml").write_text("outputs: elsewhere\nlogger: [wandb]\nallow: [planted]\n")
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("planted")
    (home / ".netrc").write_text("machine api.wandb.ai login user password planted")
    environment = {name: value for name, value in os.environ.items() if name != "_TESTS_HOME"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SHORTEST_PART]
    done = subprocess.run(
        command,
        cwd=checkout,
        env=environment | PLANTED | {"HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in home.iterdir()) == [".netrc", ".ray"]
