"""blockyard new FAMILY NAME [kind=KIND] [package=PACKAGE] [conf=DIR]

Write a component of your own to start from: NAME in FAMILY, one of token_mixer, channel_mixer, norm, block, residual,
position, head, model, data, tokenizer, objective, parametrization, optimizer, schedule and callbacks. It works as it
is; replace what it computes, and the formula in its test.

  kind=KIND        another component to start from: carrying for a token_mixer whose layers read what the first one
                   computed, routing for a channel_mixer that sends each token to a part of its weights
  package=PACKAGE  the Python package of your components; default that of blockyard.yaml, or mypackage
  conf=DIR         the folder of your choices; default that of blockyard.yaml, or myconf

Writes, in the folder of blockyard.yaml or here, where none of them exists yet:

  PACKAGE/NAME.py          the component, and PACKAGE/__init__.py where there is none
  DIR/FAMILY/NAME.yaml     the choice that names it
  tests/test_NAME.py       its test against a formula
  blockyard.yaml           the project file, where there is none, which names both folders for all commands

Examples:
  blockyard new token_mixer running_mean
  blockyard verify token_mixer=running_mean
  python -m pytest tests/test_running_mean.py
  blockyard new channel_mixer switch kind=routing
  blockyard new data last_digit && blockyard train data=last_digit tokenizer=symbols
"""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from blockyard.atomic_files import write_text
from blockyard.commands.templates import KINDS, TEMPLATES, template_of
from blockyard.config import project_file
from blockyard.config.choices import catalog
from blockyard.config.untrusted.local_path import check_inside, local_path
from blockyard.errors import UserError, did_you_mean

PACKAGE, CONF = "mypackage", "myconf"
KEYS = ("kind", "package", "conf")


def run(arguments: Sequence[str]) -> int:
    """Write the files and say what to do next."""
    family, name, options = _parsed(arguments)
    path = project_file.find()
    project = None if path is None else project_file.read(path)
    folder = Path.cwd() if path is None else path.parent
    package = options.get("package") or (project.allow[0] if project and project.allow else PACKAGE)
    conf = _conf(options.get("conf") or (project.config_dirs[0] if project and project.config_dirs else CONF))
    if conf.is_relative_to(folder):  # the test that is written names it, for whoever has the project
        conf = conf.relative_to(folder)
    if not is_name(package):
        raise UserError(f"package={package} is not the name of a Python package; write package={PACKAGE}")
    if "package" in options:
        check_is_own(package, folder)
    files = texts(family, name, package, str(conf), options.get("kind"))
    paths = {folder / file: text for file, text in files.items()}
    if taken := [path for path in paths if os.path.lexists(path)]:
        raise UserError(f"{taken[0]} exists already and is not overwritten; choose another name")
    if not os.path.lexists(folder / package / "__init__.py"):
        paths[folder / package / "__init__.py"] = ""
    if path is None:
        content = {"config_dirs": [str(conf)], "allow": [package]}
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
    if project and (package not in project.allow or str((folder / conf).absolute()) not in project.config_dirs):
        sys.stdout.write(f"add to {_relative(project.path)}: config_dirs: [{conf}] and allow: [{package}]\n")
    template = template_of(family, options.get("kind"))
    verb = "verify" if template.verified else "check"
    command = " ".join((f"{family}={name}", *template.beside))
    sys.stdout.write(f"next: blockyard {verb} {command}; python -m pytest tests/test_{name}.py\n")
    return 0


def texts(family: str, name: str, package: str, conf: str, kind: str | None = None) -> dict[str, str]:
    """The files by their paths below the project's folder."""
    template = template_of(family, kind)
    placeholders = {"FAMILY": family, "NAME": name, "CLASS": class_name(name), "PACKAGE": package, "CONF": conf}
    placeholders["BESIDE"] = "".join(f', "{override}"' for override in template.beside)

    def filled(text: str) -> str:
        return re.sub("|".join(placeholders), lambda match: placeholders[match.group()], text)

    return {
        f"{package}/{name}.py": filled(template.component),
        f"{conf}/{family}/{name}.yaml": filled(template.yaml),
        f"tests/test_{name}.py": filled(template.test_head + template.test),
    }


def class_name(name: str) -> str:
    """RunningMean for running_mean."""
    return "".join(part.capitalize() for part in name.split("_"))


def _parsed(arguments: Sequence[str]) -> tuple[str, str, dict[str, str]]:
    """Family, name and options. Raises UserError for what cannot be written."""
    names = [each for each in arguments if "=" not in each]
    options = dict(each.split("=", 1) for each in arguments if "=" in each)
    for key in options:
        if key not in KEYS:
            raise UserError(f"new has no option {key}{did_you_mean(key, KEYS)} (options: {', '.join(KEYS)})")
    if len(names) != 2 or names[0].startswith("-"):
        raise UserError("new takes a family and a name: blockyard new token_mixer running_mean")
    family, name = names
    if family not in TEMPLATES:
        exists = family in catalog.families()
        text = f"no template for {family}" if exists else f"unknown family {family}{did_you_mean(family, TEMPLATES)}"
        more = f"; for {family} start from a choice of `blockyard list {family}` and CONTRIBUTING.md" if exists else ""
        raise UserError(f"{text} (families with a template: {', '.join(TEMPLATES)}){more}")
    kinds = KINDS.get(family, {})
    if (kind := options.get("kind")) is not None and kind not in kinds:
        more = f"kinds: {', '.join(kinds)}" if kinds else f"{family} has one template: leave kind out"
        raise UserError(f"kind={kind} is not a template of {family}{did_you_mean(kind, kinds)} ({more})")
    if not is_name(name):
        raise UserError(f"{name} is not a name for a module of Python: write small letters, digits and _")
    if name in catalog.choices(family):
        raise UserError(f"{family}={name} is a choice of blockyard already; take another name")
    template = template_of(family, kind)
    if re.search(rf"\b{class_name(name)}\b", template.component + template.test_head + template.test):
        raise UserError(f"{name} would be class {class_name(name)}, a name that the template uses; take another name")
    return family, name, options


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
    """Whether a text may name a module of Python."""
    return bool(re.fullmatch(r"[a-z][a-z0-9_]*", text)) and not keyword.iskeyword(text)


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
