"""Which folder may import which: imports point down, function-level imports included, and folders form no cycle."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.import_graph import (
    FLOOR,
    FLOORS,
    OUTBUILDINGS,
    PACKAGE,
    climbs,
    cycles,
    file_cycles,
    imports_of_outbuildings,
    inner_climbs,
    inner_cycles,
    modules,
    needless,
    room,
)


def test_every_folder_has_a_floor() -> None:
    rooms = {room(name) for name in modules(PACKAGE) if name != "blockyard"}
    assert rooms - {"__main__"} == set(FLOOR) - {"__main__", "__init__"}
    assert len(FLOORS) <= 12


def test_few_files_lie_loose_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 7


def test_imports_point_down() -> None:
    assert climbs(PACKAGE) == []


def test_the_core_imports_no_outbuilding() -> None:
    assert imports_of_outbuildings(PACKAGE) == []


def test_every_outbuilding_is_there() -> None:
    files = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")]
    beginnings = [beginning for building in OUTBUILDINGS.values() for beginning in building]
    assert [beginning for beginning in beginnings if not any(file.startswith(beginning) for file in files)] == []


def test_imports_inside_a_room_point_down() -> None:
    """Rooms with floors name each of their folders."""
    assert inner_climbs(PACKAGE) == []


def test_imports_inside_functions_keep_something_heavy_away() -> None:
    assert needless(PACKAGE) == []


def test_folders_form_no_cycle() -> None:
    assert cycles(PACKAGE) == []


def test_inner_folders_form_no_cycle() -> None:
    """A folder and the folders in it count as different ones."""
    assert inner_cycles(PACKAGE) == []


@pytest.mark.parametrize(
    ("path", "text", "caught"),
    [
        ("engine/faults/planted.py", "def late():\n    from blockyard.engine.module import Learner\n", inner_climbs),
        ("engine/planted/__init__.py", "", inner_climbs),
        ("ops/planted.py", "from blockyard.engine import cost_card\n", climbs),
        ("ops/planted.py", "def late():\n    from blockyard.runs.folder import RunFolder\n", climbs),
        ("token_mixer/planted.py", "def late():\n    import blockyard.block.pre_norm\n", cycles),
        ("data/files/planted.py", "from blockyard.data.splits import order\n", inner_climbs),
        ("data/splits/planted.py", "def late():\n    import blockyard.data.digits\n", inner_climbs),
        ("report/planted.py", "def late():\n    from blockyard.inspect.run import inspect\n", imports_of_outbuildings),
        ("runs/planted.py", "def late():\n    from blockyard.runs.status import Status\n", needless),
    ],
)
def test_a_planted_import_is_caught(
    tmp_path: Path, path: str, text: str, caught: Callable[[Path], list[object]]
) -> None:
    package = tmp_path / "blockyard"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"), copy_function=os.symlink)
    (package / path).parent.mkdir(exist_ok=True)
    (package / path).write_text(text, encoding="utf-8")
    assert caught(package)


def planted(folder: Path, **files: str) -> Path:
    """A package of a few modules; two underscores in a name stand for a folder."""
    for name, text in files.items():
        path = folder / "yard" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "yard"


def test_a_circle_of_inner_folders_is_found(tmp_path: Path) -> None:
    """Also between a folder and one inside it, though no two files import each other."""
    package = planted(
        tmp_path,
        ops__inner__low="from yard.ops import shared\n",
        ops__shared="",
        ops__high="from yard.ops.inner import low\n",
    )
    assert inner_cycles(package) == [{"ops", "ops/inner"}]
    assert file_cycles(package) == cycles(package) == []


def test_a_circle_of_files_counts_imports_for_annotations(tmp_path: Path) -> None:
    late = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from yard.ops import whole\n"
    package = planted(tmp_path, ops__whole="from yard.ops import half\n", ops__half=late)
    assert file_cycles(package) == [{"yard.ops.half", "yard.ops.whole"}]
