"""Where tests lie: folders mirror the package, and what several test modules share stands in helper modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
PACKAGE = ROOT / "src" / "blockyard"
# `components` holds the tests of all families of components, `documents` those of the documentation, `battery` attacks,
# `schedulers` runs real schedulers, `compat` holds runs of earlier releases, `support` is what tests share.
WITHOUT_A_FOLDER = {"components", "documents", "battery", "schedulers", "compat", "golden", "support"}


def imported(tree: ast.AST) -> set[str]:
    """Dotted names of a module's imports, and of those in strings that are code of their own or name a class."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            names |= {f"{start}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "tests." in node.value:
            names |= {part.strip(";,'\"()") for part in node.value.replace("=", " ").split()}
    return names


def imports_of_test_modules(tests: Path) -> list[str]:
    """Imports of a test module by any module of the tests."""
    return [
        f"{path.relative_to(tests)} imports {name}"
        for path in sorted(tests.rglob("*.py"))
        for name in sorted(imported(ast.parse(path.read_text(encoding="utf-8"))))
        if name.startswith((f"{tests.name}.", ".")) and any(part.startswith("test_") for part in name.split("."))
    ]


def imports_of_tests(folder: Path) -> list[str]:
    """Imports of the tests by any module of a folder."""
    return [
        f"{path.name} imports {name}"
        for path in sorted(folder.rglob("*.py"))
        for name in sorted(imported(ast.parse(path.read_text(encoding="utf-8"))))
        if re.match(rf"{TESTS.name}(\.\w|$)", name)
    ]


def unmirrored(tests: Path, package: Path) -> set[str]:
    """Folders of tests that stand for no folder of the package."""
    folders = {path.parent.relative_to(tests).parts[0] for path in tests.glob("*/**/*.py")}
    return folders - {path.name for path in package.iterdir() if path.is_dir()} - WITHOUT_A_FOLDER


def test_no_test_module_is_imported() -> None:
    assert imports_of_test_modules(TESTS) == []


def test_tools_import_nothing_of_the_tests() -> None:
    """Tests import tools to test them."""
    assert list((ROOT / "tools").glob("*.py"))
    assert imports_of_tests(ROOT / "tools") == []


def test_helpers_lie_in_support() -> None:
    helpers = {path.name for path in TESTS.glob("*.py") if not path.name.startswith("test_")}
    assert helpers == {"__init__.py", "conftest.py"}


def test_folders_mirror_the_package() -> None:
    assert unmirrored(TESTS, PACKAGE) == set()


# HERE is `tests`, because this module is searched too.
@pytest.mark.parametrize(
    "line",
    [
        "from HERE.ops.test_attend import qkv",
        "from HERE.ops import test_attend",
        "import HERE.ops.test_attend as attend",
        "from .test_attend import qkv",
        "def late():\n    from HERE.ops.test_attend import qkv",
        'CODE = "import sys; from HERE.ops.test_attend import qkv; qkv()"',
        'OVERRIDE = "logger._target_=HERE.ops.test_attend.Logger"',
    ],
)
def test_a_planted_import_is_caught(tmp_path: Path, line: str) -> None:
    (tmp_path / "tests" / "ops").mkdir(parents=True)
    module = tmp_path / "tests" / "ops" / "helper.py"
    module.write_text("from tests.ops.attention_inputs import qkv\n")
    assert imports_of_test_modules(tmp_path / "tests") == []
    module.write_text(line.replace("HERE", "tests") + "\n")
    assert len(imports_of_test_modules(tmp_path / "tests")) == 1


def test_a_planted_import_of_the_tests_is_caught(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(f"def late():\n    from {TESTS.name}.support.tiny import TINY\n")
    assert len(imports_of_tests(tmp_path)) == 1


def test_a_planted_folder_is_caught(tmp_path: Path) -> None:
    for folder in ("ops", "components/properties", "misc"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / "__init__.py").touch()
    assert unmirrored(tmp_path / "tests", PACKAGE) == {"misc"}
