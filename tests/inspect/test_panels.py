"""Declared pages become files: their names, their colour scales, their empty cells; and columns of a table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from blockyard.inspect.panels import Heat, Page, Panel, box, draw, grid, mark, picture
from blockyard.inspect.result import InspectionResult


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written, which takes no time."""
    written: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (written.append(figure), Path(path).touch()))
    return written


def test_pages_of_one_name_are_numbered_and_drawn_one_by_one(figures: list[Figure], tmp_path: Path) -> None:
    panel = Panel([Heat(torch.eye(2))])
    paths = draw((Page(name, name, [[panel]], (2, 2)) for name in ("maps", "tokens", "maps")), tmp_path)
    assert next(paths).name == "maps.png"
    assert len(figures) == 1
    assert [path.name for path in paths] == ["tokens.png", "maps_2.png"]


def test_the_colour_bar_of_a_page_is_of_its_tables_and_not_of_a_picture(figures: list[Figure], tmp_path: Path) -> None:
    heat = Panel([Heat(torch.eye(2), 5.0, -5.0), box(0, 1)])
    rows = [[heat, Panel([picture(torch.eye(2))])]]
    list(draw([Page("both", "", rows, (2, 2), bar="weight"), Page("one", "", [rows[0][1:]], (2, 2), bar="")], tmp_path))
    *_, bar = figures[0].axes
    assert (bar.get_ylabel(), bar.get_ylim()) == ("weight", (-5.0, 5.0))
    assert len(figures[1].axes) == 1


def test_cells_without_a_panel_are_empty(figures: list[Figure], tmp_path: Path) -> None:
    panels = [Panel([mark("plot", [0, 1], [2, 3])], f"{number}", numbers=True) for number in range(3)]
    list(draw([Page("lines", "", grid(panels, 2), (2, 2))], tmp_path))
    assert [axes.axison for axes in figures[0].axes] == [True, True, True, False]
    assert [axes.get_title() for axes in figures[0].axes] == ["0", "1", "2", ""]


def test_a_column_of_none_alone_is_left_out() -> None:
    rows = [{"layer": "a", "sink": None, "asked": None}, {"layer": "b", "sink": "1%", "asked": None}]
    assert InspectionResult({}, rows, [], "").columns == ["layer", "sink"]
