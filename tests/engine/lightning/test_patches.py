"""Private parts of Lightning and torch: they exist in the installed releases, and the documentation lists them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from blockyard.engine.lightning.patches import PARTS, Part
from tests.support.paths import ROOT

PACKAGE = ROOT / "src" / "blockyard"
LIBRARIES = {"torch", "pytorch_lightning", "lightning_fabric"}


def exists(name: str) -> bool:
    """Whether a dotted name can be imported, or is an attribute that methods of its class set."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for number, part in enumerate(parts[split:], start=split):
            try:
                value = getattr(value, part)
            except (AttributeError, RuntimeError):
                owner = inspect.getsource(value) if inspect.isclass(value) and number == len(parts) - 1 else ""
                return f"self.{part}" in owner
        return True
    return False


def problem(part: Part) -> str | None:
    """What an upgrade has changed about a part; of an older release, which test-oldest installs, that it is there."""
    distribution, release = part.release.split()
    installed = ".".join(version(distribution).split(".")[:2])
    if not exists(part.name):
        return f"{part.name} is gone from {distribution} {installed}: mend src/blockyard/{part.file} ({part.reason})"
    if [*map(int, installed.split("."))] > [*map(int, release.split("."))]:
        return (
            f"{distribution} {installed} is installed, and {part.name} was read in {release}: compare it, as "
            f"src/blockyard/{part.file} relies on it ({part.reason}); then name {installed} in patches.py"
        )
    return None


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_installed_release_has_the_part(part: Part) -> None:
    assert problem(part) is None, problem(part)


def test_a_part_that_is_gone_or_of_another_release_is_reported() -> None:
    """An upgrade is not to change how a run ends without a word."""
    gone = Part("torch._C._no_such_function", PARTS[-1].release, "engine/loader.py", "planted")
    assert "is gone from torch" in str(problem(gone))
    older = Part("torch._C._remove_worker_pids", "torch 1.0", "engine/loader.py", "planted")
    assert "was read in 1.0" in str(problem(older))
    assert problem(Part("torch._C._remove_worker_pids", "torch 99.0", "engine/loader.py", "planted")) is None


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_named_file_names_the_part(part: Part) -> None:
    assert part.name.rpartition(".")[2] in (PACKAGE / part.file).read_text(encoding="utf-8")


def private_names(path: Path) -> set[str]:
    """Private names of a library that a module imports, or reads by their dotted name."""
    tree, names = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
    private = re.compile(r"\._[a-z]")
    dotted = {name for name in names if name.replace(".", "").isidentifier()}
    return {name for name in dotted if name.split(".")[0] in LIBRARIES and private.search(name)}


@pytest.mark.full
def test_every_private_name_of_a_library_is_listed() -> None:
    """Also one that a module outside the engine reads, such as an operator."""
    listed = " ".join(part.name for part in PARTS)
    for path in PACKAGE.rglob("*.py"):
        for name in private_names(path):
            first = re.search(r"(\._[A-Za-z]\w*)", name)
            assert first is not None
            assert first[1] in listed, f"{path.relative_to(PACKAGE)} uses {name}, which patches.py does not list"


def shown(name: str) -> str:
    """A part's name in the table: an attribute and its class, or the full name of torch's."""
    return name if name.startswith("torch.") else ".".join(name.split(".")[-2:])


def test_the_table_of_the_documentation_is_the_list() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("### Private parts of Lightning")[2].partition("\n### ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    table = {
        (name, release, file.strip("`"), reason.removesuffix(" |"))
        for names, release, file, reason in rows
        for name in re.findall(r"`([^`]+)`", names)
    }
    assert table == {(shown(part.name), part.release, part.file, part.reason) for part in PARTS}
