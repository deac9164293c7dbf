"""A Hydra application of the user's own composes the package's groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from blockyard.config.compose import compose
from tests.support.paths import ROOT

SCRIPT = """
import json
import hydra
import blockyard

blockyard.hydra_groups()

@hydra.main(version_base="1.3", config_path="conf", config_name="app")
def main(cfg):
    try:
        print(json.dumps(blockyard.build(cfg).config))
    except ValueError as error:
        raise SystemExit(f"refused: {error}")

if __name__ == "__main__":
    main()
"""


def run(folder: Path, *arguments: str, **content: object) -> subprocess.CompletedProcess[str]:
    """Run the application in a folder. content: of its primary config, besides its defaults list."""
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "app.py").write_text(SCRIPT, encoding="utf-8")
    primary = {"defaults": ["blockyard", {"override logger": "none"}, "_self_"], **content}
    (folder / "conf" / "app.yaml").write_text(yaml.safe_dump(primary, sort_keys=False), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "app.py", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.sampled(100)
@pytest.mark.parametrize(
    "overrides",
    [
        ("experiment=vit_digits", "block=parallel", "tokenizer=pixel", "optimizer.weight_decay=0.5", "seed=3"),
        ("preset=llama", "data=code", "tokenizer=byte", "trainer.max_steps=5", "callbacks=ema"),
        ("experiment=translate_dates", "position@source_position=rope", "position=rope"),
    ],
    ids=["experiment", "preset", "source"],
)
def test_the_config_is_that_of_the_command_line(overrides: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, *overrides)
    assert done.returncode == 0, done.stderr
    typed = [override.replace("position@source_position", "source_position") for override in overrides]
    assert json.loads(done.stdout.splitlines()[-1]) == compose([*typed, "logger=none"]).config


@pytest.mark.full
def test_values_and_keys_of_the_applications_file(tmp_path: Path) -> None:
    """Its own keys may be interpolated; what is written wrongly below one of blockyard's is refused with the name."""
    done = run(tmp_path, rate=0.25, optimizer={"lr": "${rate}"}, mine={"a": [1]})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == compose(["logger=none", "optimizer.lr=0.25"]).config
    done = run(tmp_path, optimizer={"lrr": 1.0}, norm={"_target_": "os.system"})
    assert "has no option 'lrr'" in done.stderr
    assert "(try optimizer.lr)" in done.stderr
    assert "os.system" in done.stderr
    done = run(tmp_path, layers={"_target_": "blockyard.layers.pattern.Pattern", "kinds": {"far": ["position=none"]}})
    assert "far: lists of overrides are composed from blockyard's command line only" in done.stderr


@pytest.mark.full
def test_a_config_without_the_groups_is_refused(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    done = run(tmp_path, defaults=["_self_", {"norm": "rms"}])
    assert "put `blockyard` into the defaults list" in done.stderr
    assert "norm" not in done.stderr.partition("put")[0].partition("has no")[2]


@pytest.mark.full
def test_the_applications_own_groups_come_first(tmp_path: Path) -> None:
    (tmp_path / "conf" / "norm").mkdir(parents=True)
    (tmp_path / "conf" / "norm" / "rms.yaml").write_text(
        "_target_: blockyard.norm.rms.RMS\n_partial_: true\neps: 0.5\n", encoding="utf-8"
    )
    done = run(tmp_path, "norm=rms")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["norm"]["eps"] == 0.5


@pytest.mark.full
def test_multirun_of_the_application_runs_each_combination(tmp_path: Path) -> None:
    done = run(tmp_path, "--multirun", "norm=layer,rms", "hydra.job.chdir=true")
    assert done.returncode == 0, done.stderr
    configs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [config["norm"]["_target_"].rpartition(".")[2] for config in configs] == ["Layer", "RMS"]


def test_nothing_is_registered_by_an_import() -> None:
    """Other Hydra applications of an environment that has blockyard are as they were."""
    code = (
        "import blockyard, blockyard.config.compose; blockyard.config.compose.compose([])\n"
        "from hydra.core.plugins import Plugins; from hydra.plugins.search_path_plugin import SearchPathPlugin\n"
        "print([p.__module__ for p in Plugins.instance().discover(SearchPathPlugin) if 'blockyard' in p.__module__])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
