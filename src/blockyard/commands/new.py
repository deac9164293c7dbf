"""`blockyard new`: write a component of your own to start from."""

from __future__ import annotations

import importlib.util
import json
import keyword
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import yaml

from blockyard.atomic_files import write_text
from blockyard.commands._signature import command
from blockyard.commands._types import Value
from blockyard.config import project_file
from blockyard.config.choices import catalog
from blockyard.config.untrusted.local_path import check_inside, local_path
from blockyard.errors import UserError, did_you_mean

PACKAGE = "mypackage"
CONF = "myconf"
# A folder for each family, and in it one for each further kind. The files contain CLASS, NAME, PACKAGE, CONF and
# OVERRIDES, which are replaced. Every component begins with TEMPLATES / COMPONENT. The folder of a part of a model has
# no choice, and its test no imports: TEMPLATES / CHOICE and TEMPLATES / TEST hold them.
TEMPLATES = Path(__file__).with_name("templates") / "new"
COMPONENT = "component.py-tpl"
TEST = "test.py-tpl"
CHOICE = "choice.yaml"
# Overrides that a run of a new component needs, by family.
BESIDE = {
    "head": ("data=code_topics", "objective=classify"),
    "data": ("tokenizer=symbols",),
    "tokenizer": ("data=code", "model=decoder", "head=token", "objective=next_token"),
}


@command()
def new(
    family: Annotated[str, Value("FAMILY", values=lambda _before, _typed: families())],
    name: Annotated[str, Value("NAME")],
    *,
    kind: Annotated[str, Value("KIND", values=lambda before, _: kinds(before[0]) if before else [])] | None = None,
    package: Annotated[str, Value("PACKAGE")] | None = None,
    conf: Annotated[str, Value("DIR")] | None = None,
) -> None:
    """Write a component of your own to start from.

    It works as it is; replace what it computes, and the formula in its test.

    Writes, in the folder of blockyard.yaml or here, where none of them exists yet:

      PACKAGE/NAME.py          the component, and PACKAGE/__init__.py where there is none
      DIR/FAMILY/NAME.yaml     the choice that names it
      tests/test_NAME.py       its test against a formula
      blockyard.yaml           the project file, where there is none, which names both folders for all commands

    Options:
        family: one of token_mixer, channel_mixer, norm, block, residual, position, head, model, data, tokenizer,
            objective, parametrization, optimizer, schedule and callbacks
        name: of the component
        kind: another component to start from: carrying for a token_mixer whose layers read what the first one computed,
            routing for a channel_mixer that sends each token to a part of its weights
        package: the Python package of your components; by default that of blockyard.yaml, or mypackage
        conf: the folder of your choices; by default that of blockyard.yaml, or myconf

    Examples:
        blockyard new token_mixer running_mean
        blockyard verify token_mixer=running_mean
        python -m pytest tests/test_running_mean.py
        blockyard new channel_mixer switch kind=routing
        blockyard new data last_digit && blockyard train data=last_digit tokenizer=symbols
    """
    _check(family, name, kind)
    path = project_file.find()
    project = None if path is None else project_file.read(path)
    folder = Path.cwd() if path is None else path.parent
    named_package = package
    package = package or (project.allow[0] if project and project.allow else PACKAGE)
    choices = _conf(conf or (project.config_dirs[0] if project and project.config_dirs else CONF))
    if choices.is_relative_to(folder):  # the test that is written names it, for whoever has the project
        choices = choices.relative_to(folder)
    if not is_name(package):
        raise UserError(f"package={package} is not the name of a Python package; write package={PACKAGE}")
    if named_package is not None:
        check_is_own(package, folder)
    files = texts(family, name, package, str(choices), kind)
    paths = {folder / file: text for file, text in files.items()}
    if taken := [path for path in paths if os.path.lexists(path)]:
        raise UserError(f"{taken[0]} exists already and is not overwritten; choose another name")
    if not os.path.lexists(folder / package / "__init__.py"):
        paths[folder / package / "__init__.py"] = ""
    if path is None:
        content = {"config_dirs": [str(choices)], "allow": [package]}
        paths[folder / project_file.NAME] = yaml.safe_dump(
            content, sort_keys=False, default_flow_style=None, allow_unicode=True, width=10_000
        )
    for each in paths:
        if each.absolute().is_relative_to(folder):  # a folder elsewhere was named
            check_inside(each, folder)
    for each, text in paths.items():
        each.parent.mkdir(parents=True, exist_ok=True)
        write_text(each, text)
        sys.stdout.write(f"wrote {_relative(each)}\n")
    if project and (package not in project.allow or str((folder / choices).absolute()) not in project.config_dirs):
        sys.stdout.write(f"add to {_relative(project.path)}: config_dirs: [{choices}] and allow: [{package}]\n")
    verb = "verify" if family in catalog.VERIFIED else "check"
    command = " ".join((f"{family}={name}", *BESIDE.get(family, ())))
    sys.stdout.write(f"next: blockyard {verb} {command}; python -m pytest tests/test_{name}.py\n")


def families() -> list[str]:
    """Return the families with a template."""
    return [family for family in catalog.families() if (TEMPLATES / family).is_dir()]


def kinds(family: str) -> list[str]:
    """Return the further templates of a family, by the names that `kind=` takes."""
    folders = (path for path in TEMPLATES.glob(f"{family}/*") if path.is_dir())
    return sorted(folder.name for folder in folders)


def texts(family: str, name: str, package: str, conf: str, kind: str | None = None) -> dict[str, str]:
    """Return the files of a new component by their paths below the project's folder."""
    component, choice, test = _template(family, kind)
    names = {
        "NAME": name,
        "CLASS": class_name(name),
        "PACKAGE": package,
        "CONF": conf,
        "OVERRIDES": json.dumps([f"{family}={name}", f"allow=[{package}]", *BESIDE.get(family, ())]),
    }
    return {
        f"{package}/{name}.py": filled(component, names),
        f"{conf}/{family}/{name}.yaml": filled(choice, names),
        f"tests/test_{name}.py": filled(test, names),
    }


def _template(family: str, kind: str | None) -> tuple[str, str, str]:
    """Return the texts of a template: the component, the choice that names it, and its test."""
    folder = TEMPLATES / family / (kind or "")
    component = _text(TEMPLATES / COMPONENT) + "\n" + _text(folder / COMPONENT)
    test = _text(folder / TEST)
    if (folder / CHOICE).exists():
        return component, _text(folder / CHOICE), test
    return component, _text(TEMPLATES / CHOICE), _text(TEMPLATES / TEST) + "\n\n" + test


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def filled(text: str, names: Mapping[str, str]) -> str:
    """Return a text with the value of each name in its place."""
    return re.sub("|".join(names), lambda match: names[match.group()], text)


def class_name(name: str) -> str:
    """RunningMean for running_mean."""
    return "".join(part.capitalize() for part in name.split("_"))


def _check(family: str, name: str, kind: str | None) -> None:
    """Raise UserError for a component that cannot be written."""
    with_template = families()
    if family not in with_template:
        listed = f"(families with a template: {', '.join(with_template)})"
        if family in catalog.families():
            way_out = f"for {family} start from a choice of `blockyard list {family}` and CONTRIBUTING.md"
            raise UserError(f"no template for {family} {listed}; {way_out}")
        raise UserError(f"unknown family {family}{did_you_mean(family, with_template)} {listed}")
    of_family = kinds(family)
    if kind is not None and kind not in of_family:
        allowed = f"kinds: {', '.join(of_family)}" if of_family else f"{family} has one template: leave kind out"
        raise UserError(f"kind={kind} is not a template of {family}{did_you_mean(kind, of_family)} ({allowed})")
    if not is_name(name):
        raise UserError(f"{name} is not a name for a module of Python: write small letters, digits and _")
    if name in catalog.choices(family):
        raise UserError(f"{family}={name} is a choice of blockyard already; take another name")
    component, _, test = _template(family, kind)
    if re.search(rf"\b{class_name(name)}\b", component + test):
        raise UserError(f"{name} would be class {class_name(name)}, a name that the template uses; take another name")


def _conf(text: str) -> Path:
    """Return the folder of choices. Raises UserError for one that the written files could not name."""
    path = local_path(text, "conf")
    if not str(path).isprintable() or re.search(r"[\"\\]", str(path)):
        raise UserError(f"conf={text!a}: quotes, backslashes and control characters cannot be part of it; write {CONF}")
    return path


def check_is_own(package: str, folder: Path) -> None:
    """Raise UserError for the name of an installed package, which `allow` would mean."""
    taken = "of Python's standard library" if package in sys.stdlib_module_names else None
    if taken is None and not (folder / package).is_dir():
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        taken = "an installed package" if spec is not None else None
    if taken:
        raise UserError(f"package={package} is {taken}, not one of yours; write package={PACKAGE}")


def is_name(text: str) -> bool:
    """Return whether a text may name a module of Python."""
    return bool(re.fullmatch(r"[a-z][a-z0-9_]*", text)) and not keyword.iskeyword(text)


def _relative(path: Path) -> Path:
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd())
    return path
