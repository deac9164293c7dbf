"""`blockyard init`: start a project of your own."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import yaml

from blockyard.atomic_files import write_text
from blockyard.commands._signature import command
from blockyard.commands._types import Value
from blockyard.commands.new import check_is_own, filled, is_name, texts
from blockyard.config import project_file
from blockyard.config.option_text import non_empty
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

NAME = "running_mean"
CONF = "conf"
# The files of a project besides a component and its test, at their paths. In paths and texts PROJECT, PACKAGE and CONF
# stand for the project's name, its Python package and its folder of choices, and NAME for the component.
TEMPLATES = Path(__file__).with_name("templates") / "init"


@command()
def init(
    path: Annotated[str, Value("FOLDER")], *, package: Annotated[str, Value("PACKAGE", non_empty)] | None = None
) -> None:
    """Make a project of your own in a new or empty FOLDER.

    It has the shape that users of lightning-hydra-template know: choices with an experiment, a package with a
    component, a question, tests, a project file and a workflow for GitHub. It trains, verifies and sweeps at once;
    replace its parts by yours, and add others with `blockyard new`.

    Writes:

      blockyard.yaml                the project file, which names the folders for all commands
      conf/experiment/baseline.yaml the settings of a run
      conf/token_mixer/running_mean.yaml, PACKAGE/running_mean.py, tests/test_running_mean.py
                                    a component, the choice that names it, and its test against a formula
      sweeps/running_mean.yaml      a question about it
      tests/test_project.py         checks every experiment and every sweep
      README.md, pyproject.toml, .gitignore, .github/workflows/tests.yml

    Options:
        package: the Python package of your components; by default the folder's name

    Examples:
        blockyard init mystudy
        cd mystudy && blockyard train experiment=baseline && blockyard sweep running_mean
    """
    folder = local_path(path, "init")
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already and is not an empty folder; choose another name")
    package = package or re.sub(r"\W+", "_", folder.absolute().name.lower())
    if not is_name(package):
        raise UserError(f"package={package} is not the name of a Python package; write package=mypackage")
    if package == CONF or package in ("tests", "sweeps", "data", "outputs"):
        raise UserError(f"package={package} is a folder of the project already; write package=mypackage")
    check_is_own(package, folder)
    try:
        for file, text in project(folder.absolute().name, package).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / file, text)
            sys.stdout.write(f"wrote {folder / file}\n")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}; choose another folder") from error
    sys.stdout.write(
        f"next: cd {shlex.quote(str(folder))} && blockyard train experiment=baseline && blockyard sweep {NAME}\n"
    )


def project(name: str, package: str) -> dict[str, str]:
    """Return the files of a project by their paths in its folder."""
    names = {"PROJECT": re.sub(r"[^\w.-]+", "-", name), "PACKAGE": package, "CONF": CONF, "NAME": NAME}
    files = {
        project_file.NAME: f"config_dirs: [{CONF}]\nallow: {yaml.safe_dump([package], default_flow_style=True)}",
        f"{package}/__init__.py": "",
        **texts("token_mixer", NAME, package, CONF),
    }
    for template in sorted(path for path in TEMPLATES.rglob("*") if path.is_file()):
        path = template.relative_to(TEMPLATES).as_posix().removesuffix("-tpl")
        files[filled(path, names)] = filled(template.read_text(encoding="utf-8"), names)
    return files
