"""Which module of the package imports which, and the floors that say which may.

A room is a folder or a loose file at the top of the package, and an inner room a folder inside a room. Imports inside
functions count; those for annotations only count where it is said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "blockyard"
FAMILIES = (  # of one floor
    "data tokenizer position token_mixer channel_mixer norm block residual layers model head objective "
    "parametrization optimizer schedule"
)
# From the ground up. A module imports its own folder and the folders of lower floors; folders of one floor may import
# each other as long as they form no cycle.
FLOORS = (
    "errors atomic_files terminal address_space",
    "contracts weight_init",
    "ops",
    FAMILIES,
    "config",
    "runs weights",
    "generate evaluate verify token_shards",
    "engine",
    "inspect bench",
    "sweep",
    "report ask remote campaign",
    "commands cli __main__ __init__",
)
# The same for the folders in a room, whose imports of each other point down too; "." are the room's own files.
INNER_FLOORS = {
    "config": ("untrusted", "choices", "rules", "."),
    "data": ("files", "splits", "rows", "."),
    "engine": ("system", "faults", "lightning", "callbacks loggers", ".", "stacked"),
    "weights": (".", "convert", "library"),
}
# Parts that a user may ignore who trains and compares, by the files that belong to them. All other files are the core,
# which imports no outbuilding: it finds them on the disk, as it finds commands.
OUTBUILDINGS = {
    "inspection": (
        *("inspect/", "bench/", "evaluate/embed", "evaluate/soup", "report/page/vectors"),
        *("commands/inspect", "commands/embed", "commands/soup", "commands/bench"),
    ),
    "exchange": ("weights/convert/", "weights/library/", "commands/import_weights", "commands/export"),
    "sharing": (
        *("report/bundle/", "report/wandb/", "report/home/hub_card"),
        *("commands/bundle", "commands/verify_bundle"),
    ),
    "asking": ("ask/", "commands/ask"),
    "refereeing": ("campaign/", "commands/campaign"),
    "clusters": ("sweep/executor/slurm", "sweep/executor/_slurm", "sweep/executor/ray"),
}
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
        "fsspec",
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
    by_name = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        by_name[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return by_name


def imports(package: Path, annotations: bool = False) -> Iterator[Import]:
    """Every import of the package's own modules, those inside functions too.

    annotations: also imports that only a type checker follows
    """
    known = modules(package)
    for name, path in known.items():
        for node, nested in statements(path.read_text(encoding="utf-8"), annotations):
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
def statements(source: str, annotations: bool = False) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements of a module, and whether each stands inside a function.

    annotations: also those below `if TYPE_CHECKING`, which never run
    """
    tree = ast.parse(source)
    guarded = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    return list(_imports_of([node for node in tree.body if annotations or node not in guarded], False))


def _imports_of(body: Iterable[ast.AST], nested: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements among others and below them. Only blocks are entered: an expression holds none."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, nested
        inside = nested or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            statements_below = getattr(node, block, ())
            if isinstance(statements_below, list):  # the body of a lambda or a conditional is an expression
                yield from _imports_of(statements_below, inside)


def climbs(package: Path) -> list[str]:
    """Imports of a higher floor."""
    return [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each in imports(package)
        if FLOOR[room(each.importer)] < FLOOR[room(each.imported)]
    ]


def outbuilding(path: Path) -> str | None:
    """Return the outbuilding that a file of the package belongs to; None for the core."""
    name = path.as_posix()
    for building, beginnings in OUTBUILDINGS.items():
        if name.startswith(beginnings):
            return building
    return None


def imports_of_outbuildings(package: Path) -> list[str]:
    """Return the imports by which a file of the core depends on an outbuilding, those inside functions too."""
    buildings = {name: outbuilding(path.relative_to(package)) for name, path in modules(package).items()}
    return [
        f"{entry.importer}:{entry.line} imports {entry.imported}"
        for entry in imports(package)
        if buildings[entry.importer] is None and buildings[entry.imported] is not None
    ]


def inner_climbs(package: Path) -> list[str]:
    """Imports of a higher floor inside a room of `INNER_FLOORS`, and folders of such a room that have no floor."""
    folders = _inner_rooms(package)
    floor = {
        room if inner == "." else f"{room}/{inner}": number
        for room, floors in INNER_FLOORS.items()
        for number, inners in enumerate(floors)
        for inner in inners.split()
    }
    missing = {name for name in folders.values() if name.partition("/")[0] in INNER_FLOORS} - floor.keys()
    return [f"{name} has no floor" for name in sorted(missing)] + [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each in imports(package)
        if room(each.importer) == room(each.imported)
        and floor.get(folders[each.importer], 0) < floor.get(folders[each.imported], 0)
    ]


def cycles(package: Path) -> list[set[str]]:
    """Groups of rooms that import each other, directly or through others."""
    return groups((room(each.importer), room(each.imported)) for each in imports(package))


def inner_cycles(package: Path) -> list[set[str]]:
    """The same for rooms and inner rooms; a folder and the folders in it count as different ones."""
    folders = _inner_rooms(package)
    return groups((folders[each.importer], folders[each.imported]) for each in imports(package))


def file_cycles(package: Path) -> list[set[str]]:
    """The same for modules, imports for annotations too; what a package's `__init__` imports is not counted."""
    known = modules(package)
    files = {name for name, path in known.items() if path.name != "__init__.py"}
    pairs = ((each.importer, each.imported) for each in imports(package, annotations=True))
    return groups(pair for pair in pairs if set(pair) <= files)


def _inner_rooms(package: Path) -> dict[str, str]:
    """Each module's folder, two levels deep at most: `engine`, `engine/callbacks`."""
    inner = {}
    for name, path in modules(package).items():
        folders = path.parent.relative_to(package).parts[:2]
        inner[name] = "/".join(folders) or path.stem
    return inner


def groups(pairs: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Groups of nodes that reach each other along the pairs, the largest first."""
    graph: dict[str, set[str]] = {}
    for start, end in pairs:
        graph.setdefault(start, set()).add(end)
    reach = {start: reachable(graph, start) for start in graph}
    circles = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in graph}
    return sorted((set(group) for group in circles if len(group) > 1), key=lambda group: (-len(group), min(group)))


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """All nodes that paths from `start` lead to."""
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
        return set().union(*(heavy[name] for name in {module, *reachable(graph, module)}))

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
