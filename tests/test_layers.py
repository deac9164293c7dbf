"""Which folder may import which: imports point down, function-level imports included, and folders form no cycle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.paths import ROOT

PACKAGE = ROOT / "src" / "blockyard"
FAMILIES = (
    "data tokenizer position token_mixer channel_mixer norm block model head objective optimizer schedule"  # one floor
)
# From the ground up. A module imports its own folder and the folders of lower floors; folders of one floor may import
# each other as long as they form no cycle.
FLOORS = (
    "errors weight_init atomic_files terminal",
    "contracts",
    "ops",
    FAMILIES,
    "config",
    "runs weights",
    "generate evaluate verify token_shards",
    "engine",
    "inspect bench",
    "sweep",
    "report",
    "commands cli __main__ __init__",
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms.split()}

# Libraries that take a tenth of a second or more to import: why an import may stand inside a function.
HEAVY = frozenset(
    {
        "torch",
        "torchvision",
        "torchmetrics",
        "pytorch_lightning",
        "timm",
        "transformers",
        "tokenizers",
        "wandb",
        "scipy",
        "statsmodels",
        "sklearn",
        "matplotlib",
        "optuna",
        "hydra",
        "omegaconf",
        "pydantic",
        "ray",
        "submitit",
        "rich",
        "numpy",
        "babel",
    }
)

# Commands answer --help and completion at once: they import what they need when they run.
FRONT = frozenset({"cli", "commands", "__init__"})


class Import(NamedTuple):
    """One import statement: who imports what, and where."""

    importer: str
    imported: str
    line: int
    inside_function: bool


def room(module: str) -> str:
    """The folder or top-level file of a module: `blockyard.ops.attend` -> ops."""
    return module.split(".")[1] if "." in module else "__init__"


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(package: Path) -> Iterator[Import]:
    """Every import of the package's own modules, those inside functions too."""
    known = modules(package)
    for name, path in known.items():
        for node, nested in statements(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif node.module and not node.level:
                dotted = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
                targets = [full if full in known else module for full, module in dotted]
            else:
                continue
            for target in targets:
                if target in known:
                    yield Import(name, target, node.lineno, nested)


@cache
def statements(source: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements of a module that are run, and whether each stands inside a function."""
    tree = ast.parse(source)
    nested = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f) if n is not f}
    guards = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    annotations = {id(n) for guard in guards for n in ast.walk(guard)}  # never run
    found = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) and id(n) not in annotations)
    return [(node, id(node) in nested) for node in found]


def climbs(package: Path) -> list[str]:
    """Imports of a higher floor."""
    return [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each in imports(package)
        if FLOOR[room(each.importer)] < FLOOR[room(each.imported)]
    ]


def cycles(package: Path) -> list[set[str]]:
    """Groups of folders that import each other, directly or through others."""
    graph: dict[str, set[str]] = {}
    for each in imports(package):
        graph.setdefault(room(each.importer), set()).add(room(each.imported))
    reach = {start: _reachable(graph, start) for start in graph}
    groups = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in graph}
    return [set(group) for group in groups if len(group) > 1]


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        todo += (new := graph.get(todo.pop(), set()) - seen)
        seen |= new
    return seen


def needless(package: Path) -> list[str]:
    """Imports inside functions that keep nothing heavy away from their module, and so belong at its top."""
    known = modules(package)
    heavy = {name: _heavy(path.read_text(encoding="utf-8")) for name, path in known.items()}
    graph: dict[str, set[str]] = {}
    every = list(imports(package))
    for each in every:
        if not each.inside_function:
            graph.setdefault(each.importer, set()).add(each.imported)

    def loads(module: str) -> set[str]:
        return set().union(*(heavy[name] for name in {module, *_reachable(graph, module)}))

    return [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each in every
        if each.inside_function and room(each.importer) not in FRONT and loads(each.imported) <= loads(each.importer)
    ]


@cache
def _heavy(source: str) -> set[str]:
    """The slow libraries that a module imports at its top."""
    found = set()
    for node in _top(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        found |= {name.split(".")[0] for name in names} & HEAVY
    return found


def _top(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements that run when the module is imported."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.Try):
            yield from _top(ast.Module(node.body, []))


def test_every_folder_has_a_floor() -> None:
    rooms = {room(name) for name in modules(PACKAGE) if name != "blockyard"}
    assert rooms - {"__main__"} == set(FLOOR) - {"__main__", "__init__"}
    assert len(FLOORS) <= 12


def test_few_files_lie_loose_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 7


def test_imports_point_down() -> None:
    assert climbs(PACKAGE) == []


def test_imports_inside_functions_keep_something_heavy_away() -> None:
    assert needless(PACKAGE) == []


def test_folders_form_no_cycle() -> None:
    assert cycles(PACKAGE) == []


@pytest.mark.parametrize(
    ("path", "text", "caught"),
    [
        ("ops/planted.py", "from blockyard.engine import cost_card\n", climbs),
        ("ops/planted.py", "def late():\n    from blockyard.runs.folder import RunFolder\n", climbs),
        ("token_mixer/planted.py", "def late():\n    import blockyard.block.pre_norm\n", cycles),
        ("runs/planted.py", "def late():\n    from blockyard.runs.status import Status\n", needless),
    ],
)
def test_a_planted_import_is_caught(tmp_path: Path, path: str, text: str, caught: object) -> None:
    package = tmp_path / "blockyard"
    for name, source in modules(PACKAGE).items():
        target = package / source.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        assert name
    (package / path).write_text(text, encoding="utf-8")
    assert caught(package)  # type: ignore[operator]
