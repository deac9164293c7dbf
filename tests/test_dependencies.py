"""What the package imports is what pyproject.toml declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = ("dev", "docs", "supply")  # extras for work on the project itself, which src/ imports nothing of


def imported(path: Path) -> Iterator[str]:
    """The top-level names of all imports of a file, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def targets(path: Path) -> list[str]:
    """The top-level names of all `_target_`s of a config."""
    return re.findall(r"_target_: *(\w+)\.", path.read_text(encoding="utf-8"))


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def distributions(module: str, installed: dict[str, list[str]]) -> set[str]:
    """The distributions that a module comes from; its own name where none is installed."""
    return {canonicalize_name(name) for name in installed.get(module, [module])}


def test_every_import_is_declared_and_every_dependency_imported() -> None:
    installed = {module: list(names) for module, names in metadata.packages_distributions().items()}
    modules = {name for path in (ROOT / "src").rglob("*.py") for name in imported(path)}
    modules |= {name for path in (ROOT / "conf").rglob("*.yaml") for name in targets(path)}
    modules -= {*sys.stdlib_module_names, PROJECT["name"]}
    required = names(PROJECT["dependencies"])
    optional = set().union(*(names(PROJECT["optional-dependencies"][each]) for each in extras()))
    undeclared = [name for name in sorted(modules) if not distributions(name, installed) & (required | optional)]
    assert undeclared == []
    used = set().union(*(distributions(name, installed) for name in modules))
    assert sorted(required - used) == []


def test_every_extra_that_a_message_or_a_page_names_is_there() -> None:
    texts = [path.read_text(encoding="utf-8") for path in ROOT.glob("src/**/*.py")]
    texts += [path.read_text(encoding="utf-8") for path in ROOT.glob("docs/**/*.md")]
    named = {extra for text in texts for extra in re.findall(r"blockyard\[(\w+)\]", text)}
    assert "translation" in named
    assert sorted(named - {*extras()}) == []


def extras() -> list[str]:
    return [name for name in PROJECT["optional-dependencies"] if name not in TOOLS]
