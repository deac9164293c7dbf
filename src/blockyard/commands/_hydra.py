"""Hydra's own application, for those who know it: multirun, `--cfg`, `--info`.

Each job of a multirun is a process of its own, started from the words of that job: a job that dies,
even by a signal, ends nobody else, and DDP inside a job sees a plain command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from blockyard.commands._args import Args
from blockyard.config import catalog
from blockyard.errors import refuse

RESULTS = "BLOCKYARD_MULTIRUN_RESULTS"
CONFIG_DIRS = "BLOCKYARD_MULTIRUN_CONFIG_DIRS"


def show(words: Args) -> int:
    """Print what Hydra composes (`--cfg`, `--info`)."""
    from blockyard.config.overrides import sort_overrides
    from blockyard.config.presets import expand

    problems = _problems(words)
    if not problems:  # what an experiment keeps beside a preset is named, so that Hydra sees it
        groups = sort_overrides(words.overrides, words.folders(), []).groups
        named, replaced = expand(groups, words.folders())
        words.overrides += [word for word in named if word not in groups]
        if replaced:
            sys.stderr.write(f"the preset's options of {', '.join(replaced)} are shown, a run leaves them out\n")
    return refuse(problems) if problems else _application(words)


def multirun(words: Args) -> int:
    """Run every combination, say how each ended, and answer 0 only if all are done."""
    problems = _problems(words, multirun=True)
    if problems:
        return refuse(problems)
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results"
        os.environ[RESULTS] = str(results)
        os.environ[CONFIG_DIRS] = os.pathsep.join(words.config_dirs)
        # Hydra writes multirun.yaml into its sweep folder; the runs have folders of their own.
        words.overrides += [f"hydra.sweep.dir={scratch}"] if not _names(words, "hydra.sweep.dir") else []
        code = _application(words)
        ended = [line.split("\t") for line in results.read_text().splitlines()] if results.exists() else []
    for status, job in ended:
        sys.stdout.write(f"exit {status}  {job}\n")
    codes = {int(status) for status, _ in ended}
    return code or max(codes - {0}, default=0)


def _application(words: Args) -> int:
    import hydra

    sys.argv = [
        "blockyard",
        *words.flags,
        *(p for d in words.config_dirs for p in ("--config-dir", d)),
        *words.overrides,
    ]
    try:
        hydra.main(version_base="1.3", config_path=str(catalog.conf_dir()), config_name="config")(_job)()
    except SystemExit as error:
        return 2 if error.code else 0
    return 0


def _job(_: object) -> int:
    """One combination: train in a process of its own, note how it ended."""
    from hydra.core.hydra_config import HydraConfig

    task = [str(word) for word in HydraConfig.get().overrides.task]
    folders = [part for name in os.environ[CONFIG_DIRS].split(os.pathsep) if name for part in ("--config-dir", name)]
    code = subprocess.run([sys.executable, "-m", "blockyard", "train", *task, *folders], check=False).returncode
    with open(os.environ[RESULTS], "a", encoding="utf-8") as results:
        results.write(f"{code}\t{' '.join(task)}\n")
    return code


def _problems(words: Args, multirun: bool = False) -> list[str]:
    """What is wrong with the words of every run, known before the first; and no YAML may lead Hydra astray."""
    from blockyard.config.compose import compose

    words.folders()
    return [str(issue) for issue in compose(words.overrides, words.config_dirs, multirun=multirun).issues]


def _names(words: Args, key: str) -> bool:
    return any(word.startswith(f"{key}=") for word in words.overrides)
