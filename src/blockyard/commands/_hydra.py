"""Hydra's own application: multirun, `--cfg`, `--info`.

Each job of a multirun is a process of its own, started with the overrides of that job: a job that dies, even by a
signal, ends no other, and DDP inside a job sees a plain command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.config import catalog
from blockyard.errors import refuse

if TYPE_CHECKING:
    from blockyard.commands.train import TrainArgs

RESULTS = "BLOCKYARD_MULTIRUN_RESULTS"
CONFIG_DIRS = "BLOCKYARD_MULTIRUN_CONFIG_DIRS"


def show(args: TrainArgs) -> int:
    """Print what Hydra composes (`--cfg`, `--info`)."""
    from blockyard.config.overrides import sort_overrides
    from blockyard.config.presets import expand

    problems = _problems(args)
    if not problems:  # the choices that an experiment keeps with a preset are passed on to Hydra
        groups = sort_overrides(args.overrides, args.folders(), []).groups
        expanded, replaced = expand(groups, args.folders())
        args.overrides += [group for group in expanded if group not in groups]
        if replaced:
            sys.stderr.write(f"this shows the preset's options of {', '.join(replaced)}, which a run leaves out\n")
    return refuse(problems) if problems else _application(args)


def multirun(args: TrainArgs) -> int:
    """Run every combination and print the exit code of each; 0 only if all of them succeeded."""
    problems = _problems(args, multirun=True)
    if problems:
        return refuse(problems)
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results"
        os.environ[RESULTS] = str(results)
        os.environ[CONFIG_DIRS] = os.pathsep.join(args.config_dirs)
        # Hydra writes multirun.yaml into its sweep folder; the runs have folders of their own.
        has_folder = any(text.startswith("hydra.sweep.dir=") for text in args.overrides)
        args.overrides += [] if has_folder else [f"hydra.sweep.dir={scratch}"]
        code = _application(args)
        jobs = [line.split("\t") for line in results.read_text().splitlines()] if results.exists() else []
    for status, job in jobs:
        sys.stdout.write(f"exit {status}  {job}\n")
    codes = {int(status) for status, _ in jobs}
    return code or max(codes - {0}, default=0)


def _application(args: TrainArgs) -> int:
    import hydra

    folders = [text for folder in args.config_dirs for text in ("--config-dir", folder)]
    sys.argv = ["blockyard", *args.hydra_flags(), *folders, *args.overrides]
    try:
        hydra.main(version_base="1.3", config_path=str(catalog.conf_dir()), config_name="config")(_job)()
    except SystemExit as error:
        return 2 if error.code else 0
    return 0


def _job(_: object) -> int:
    """Train one combination in a process of its own and record its exit code."""
    from hydra.core.hydra_config import HydraConfig

    task = [str(override) for override in HydraConfig.get().overrides.task]
    names = [name for name in os.environ[CONFIG_DIRS].split(os.pathsep) if name]
    folders = [text for name in names for text in ("--config-dir", name)]
    code = subprocess.run([sys.executable, "-m", "blockyard", "train", *task, *folders], check=False).returncode
    with open(os.environ[RESULTS], "a", encoding="utf-8") as results:
        results.write(f"{code}\t{' '.join(task)}\n")
    return code


def _problems(args: TrainArgs, multirun: bool = False) -> list[str]:
    """The problems of the overrides, found before the first run and before Hydra reads any YAML."""
    from blockyard.config.compose import compose

    args.folders()
    return [str(issue) for issue in compose(args.overrides, args.config_dirs, multirun=multirun).issues]
