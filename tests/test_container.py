"""The container files hold what README, pyproject.toml, the Makefile and each other say."""

from __future__ import annotations

import json
import re
import tomllib

from tests.support.paths import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
DEVCONTAINER = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# `make` runs these: the rules of the Makefile, with the name of its environment in place of the variable.
TARGETS = {target for line in re.findall(r"^(\S[^:=\n]*):", MAKEFILE, re.M) for target in line.split()}
TARGETS |= {target.replace("$(VENV)", ".venv") for target in TARGETS}


def test_the_python_is_the_oldest_that_the_package_takes() -> None:
    assert PROJECT["project"]["requires-python"] == ">=" + re.search(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.M)[1]


def test_the_commands_are_those_of_the_makefile_and_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^CMD (.+)$", DOCKERFILE, re.M)
    typed = [" ".join(json.loads(command)), *re.findall(r"--rm blockyard (make \w+)", DOCKERFILE)]
    assert typed == ["make run", "make test"]
    assert [line for line in typed if f"\n{line} " not in readme] == []
    targets = [*re.findall(r"make (\.venv\S+)\n", DOCKERFILE), DEVCONTAINER["postCreateCommand"].removeprefix("make ")]
    assert [target for target in targets if target not in TARGETS] == []


def test_nothing_runs_as_root_once_the_system_is_set_up() -> None:
    number, user = re.search(r"useradd .*--uid (\d+) (\w+)$", DOCKERFILE, re.M).groups()
    assert re.findall(r"^USER (\w+)$", DOCKERFILE, re.M) == [number]
    assert DEVCONTAINER["remoteUser"] == user
    copied = re.findall(r"^COPY (.+)$", DOCKERFILE, re.M)
    assert [line for line in copied if not line.startswith(f"--chown={user} ")] == []
    before, after = DOCKERFILE.split(f"USER {number}\n")
    assert "make " not in re.sub(r"^#.*$|apt-get install.*$", "", before, flags=re.M)
    assert "apt-get" not in after


def test_all_that_is_installed_is_locked() -> None:
    """By `make`, which takes the locks; what the package includes must be there by its name."""
    assert "pip install" not in DOCKERFILE
    for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]:
        assert re.search(rf"(mkdir -p|touch)[^\n&]* {path}\b", DOCKERFILE), path


def test_the_image_holds_no_history_runs_or_keys() -> None:
    git_ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    folders = [line.strip("/") for line in git_ignored if line.startswith("/")]
    assert [name for name in (".git", ".env", ".venv", *folders) if name not in IGNORED] == []
    assert not re.search(r"(?i)token|secret|password|api_key", DOCKERFILE)


def test_the_devcontainer_builds_a_stage_of_the_dockerfile() -> None:
    build = DEVCONTAINER["build"]
    folder = ROOT / ".devcontainer"
    assert (folder / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert (folder / build["context"]).resolve() == ROOT
    assert build["target"] in re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.M)
