"""blockyard init FOLDER [package=PACKAGE]

Make a project of your own in a new or empty FOLDER, in the shape that users of lightning-hydra-template know: choices
with an experiment, a package with a component, a question, tests, a project file and a workflow for GitHub. It trains,
verifies and sweeps at once; replace its parts by yours, and add others with `blockyard new`.

  package=PACKAGE  the Python package of your components; default the folder's name

Writes:

  blockyard.yaml                the project file, which names the folders for all commands
  conf/experiment/baseline.yaml the settings of a run
  conf/token_mixer/running_mean.yaml, PACKAGE/running_mean.py, tests/test_running_mean.py
                                a component, the choice that names it, and its test against a formula
  sweeps/running_mean.yaml      a question about it
  tests/test_project.py         checks every experiment and every sweep
  README.md, pyproject.toml, .gitignore, .github/workflows/tests.yml

Examples:
  blockyard init mystudy
  cd mystudy && blockyard train experiment=baseline && blockyard sweep running_mean
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence

import yaml

from blockyard.atomic_files import write_text
from blockyard.commands._args import read
from blockyard.commands.new import check_is_own, is_name, texts
from blockyard.config import project_file
from blockyard.config.option_text import non_empty
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

KEYS = ("package",)
NAME, CONF = "running_mean", "conf"


def run(arguments: Sequence[str]) -> int:
    """Write the files and say what to do next."""
    args = read("init", arguments)
    package, names = args.pop("package", None, non_empty), args.pop_names()
    args.check_empty("init", KEYS)
    if len(names) != 1:
        raise UserError("init takes one folder: blockyard init mystudy")
    folder = local_path(names[0], "init")
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already and is not an empty folder; choose another name")
    package = package or re.sub(r"\W+", "_", folder.absolute().name.lower())
    if not is_name(package):
        raise UserError(f"package={package} is not the name of a Python package; write package=mypackage")
    if package == CONF or package in ("tests", "sweeps", "data", "outputs"):
        raise UserError(f"package={package} is a folder of the project already; write package=mypackage")
    check_is_own(package, folder)
    try:
        for name, text in project(folder.absolute().name, package).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, text)
            sys.stdout.write(f"wrote {folder / name}\n")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}; choose another folder") from error
    sys.stdout.write(
        f"next: cd {shlex.quote(str(folder))} && blockyard train experiment=baseline && blockyard sweep {NAME}\n"
    )
    return 0


def project(name: str, package: str) -> dict[str, str]:
    """The files of a project by their paths in its folder."""
    placeholders = {"PROJECT": re.sub(r"[^\w.-]+", "-", name), "PACKAGE": package, "CONF": CONF, "NAME": NAME}

    def filled(text: str) -> str:
        return re.sub(rf"\b(?:{'|'.join(placeholders)})\b", lambda match: placeholders[match.group()], text)

    return {
        project_file.NAME: f"config_dirs: [{CONF}]\nallow: {yaml.safe_dump([package], default_flow_style=True)}",
        f"{package}/__init__.py": "",
        **texts("token_mixer", NAME, package, CONF),
        **{filled(path): filled(text) for path, text in FILES.items()},
    }


# The files of the project besides a component and its test. In each text PROJECT, PACKAGE and CONF stand for the
# project's name, its Python package and its folder of choices, and NAME for the component.

README = """# PROJECT

An ablation study with blockyard. `blockyard.yaml` names the folders, so every command works from anywhere in here.

| folder | what is in it |
|---|---|
| `CONF/` | choices of your own, one small YAML each; `CONF/experiment/` has the settings of whole runs |
| `PACKAGE/` | the components that they name |
| `sweeps/` | a question in each file: claim, arms, seeds, what is expected |
| `tests/` | each component against a formula; every experiment and every sweep checked |
| `data/` | your data; not in git |
| `outputs/` | runs and their comparisons; not in git |

```
blockyard train experiment=baseline             # a run
blockyard train experiment=baseline token_mixer=NAME
blockyard verify token_mixer=NAME       # does it do what it declares?
blockyard sweep NAME                    # the question in sweeps/, its answer and its page
blockyard new norm my_norm                      # the next component, with its test
blockyard schema                                # completion of these YAML files in your editor
python -m pytest
```
"""

GITIGNORE = """/data/
/outputs/
/.schema/
__pycache__/
.pytest_cache/
"""

PYPROJECT = """[project]
name = "PROJECT"
version = "0.0.1"
requires-python = ">=3.11"

[tool.pytest.ini_options]
testpaths = ["tests"]
"""

WORKFLOW = """name: tests
on: [push, pull_request]
permissions: {contents: read}
jobs:
  tests:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {python-version: "3.11"}
      # The repository's variable BLOCKYARD says from where blockyard is installed: an address, or a version.
      - run: python -m pip install "$BLOCKYARD" pytest
        env: {BLOCKYARD: "${{ vars.BLOCKYARD }}"}
      - run: python -m pytest
"""

EXPERIMENT = """# @package _global_
# A small ViT reads scikit-learn's digits: replace data and model by yours.
#
# question   what is compared with what, in one line
# command    blockyard train experiment=baseline
# cost       about half a minute on 2 cores
# expected   write here what you expect before you run it
defaults:
  - override /data: digits
  - override /tokenizer: patch
  - override /model: encoder
  - override /head: mean_pool
  - override /objective: classify

data:
  batch_size: 64
tokenizer:
  size: 2
model:
  dim: 48
  depth: 3
  heads: 4
optimizer:
  lr: 2.0e-3
trainer:
  max_epochs: 10
  eval_every: 200 # the last step: choosing among many evaluations favours lucky ones
"""

SWEEP = """# Is a mean over all tokens as good as attention?
#
# command    blockyard sweep NAME
# cost       2 arms x 3 seeds, a few minutes on 2 cores
# expected   attention reaches a higher accuracy
claim: Attention reads digits better than a mean over all tokens does
base: [experiment=baseline]
baseline: attention
arms:
  attention: [token_mixer=attention]
  NAME: [token_mixer=NAME]
seeds: 3
metric: test/accuracy
expect: attention > NAME
"""

TEST = '''"""Every experiment is a config without problems, and every sweep can be planned."""

from __future__ import annotations

from pathlib import Path

import pytest
from blockyard.cli import main

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = sorted((ROOT / "CONF" / "experiment").glob("*.yaml"))
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands read the project file of the folder that they run in."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiment(path: Path) -> None:
    assert main(["check", f"experiment={path.stem}"]) == 0


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_sweep(path: Path) -> None:
    assert main(["sweep", str(path), "--dry-run"]) == 0
'''

FILES = {
    "README.md": README,
    ".gitignore": GITIGNORE,
    "pyproject.toml": PYPROJECT,
    ".github/workflows/tests.yml": WORKFLOW,
    "CONF/experiment/baseline.yaml": EXPERIMENT,
    "sweeps/NAME.yaml": SWEEP,
    "tests/test_project.py": TEST,
}
