"""Reading molecules as graphs from lines of JSON, plain or gzipped, and from tables with SMILES by rdkit.

    {"atoms": [[6, 3, 0], [8, 1, 0]], "bonds": [[0, 1, 2]], "y": [-0.77, null], "split": "train"}

atoms: one list of whole numbers for each node; bonds: two nodes, counted from 0, and the whole numbers of their edge,
once or in both directions
y: real values, null where there is none; further keys are left alone

    smiles,solubility,split            atoms: atomic number, degree, charge, hydrogens, aromatic, in a ring
    CCO,1.1,train                      bonds: 1 single, 2 double, 3 triple, 4 aromatic; conjugated
"""

from __future__ import annotations

import importlib.util
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from blockyard.data.files.class_names import LIKE_MISSING, plain_names
from blockyard.data.files.graph import Graph, checked
from blockyard.data.files.tables import check_unique, column_names, read_table, unique_keys
from blockyard.data.files.unpacked import open_text
from blockyard.errors import UserError, quoted

if TYPE_CHECKING:
    import pandas

Content = TypeVar("Content")  # of a line or a row
LARGEST = 2**31  # of a whole number
_SHOWN = 10  # lines that one message names
SMILES = "smiles"
NODE_COLUMNS = 6
_AROMATIC = 4


class Line(NamedTuple):
    """A line of a file: its number from 1, its graph, and all that it says."""

    number: int
    graph: Graph
    record: dict[str, Any]


class Widths(NamedTuple):
    """The columns of a node and the number of targets of a file's first line, and the columns of its first edge."""

    nodes: int
    edges: int
    targets: int


def read_lines(path: Path, max_nodes: int, connected: bool) -> list[Line]:
    """Read every molecule. Raises UserError with the number of every line that is wrong, and why.

    max_nodes: the most nodes that a graph may have; connected: whether it must be in one part
    """
    widths = first_widths(path) or Widths(1, 0, 1)

    def read(text: str) -> tuple[Any, Graph]:
        record = json.loads(text, object_pairs_hook=unique_keys)
        return record, parse(record, widths)

    lines = _lines(path, _texts(path), read, max_nodes, connected)
    if not lines:
        raise UserError(
            f"{path} has no molecule; a line for each, such as " + '{"atoms": [[6]], "bonds": [], "y": [1.5]}'
        )
    return lines


def read_unlabelled(path: Path, nodes: int, edges: int, max_nodes: int, connected: bool) -> list[Line]:
    """Read molecules of lines of JSON or of a .csv with SMILES without the targets that a file may have.

    nodes, edges: the columns of a node and of an edge; the place of targets has a zero
    Raises UserError with every line that is wrong, and why.
    """

    def read(text: str) -> tuple[Any, Graph]:
        record = json.loads(text, object_pairs_hook=unique_keys)
        _check_columns(record, nodes)
        # `parse` wants targets; the line keeps its own record, from which they may be read by name.
        with_target = {**record, "y": 0.0} if isinstance(record, dict) else record
        return record, parse(with_target, Widths(nodes, edges, 1))

    if is_table(path.name):
        rows = _rows_of(path)
        lines = _lines(path, rows, lambda row: (row, _graph(row[SMILES], [0.0])), max_nodes, connected)
    else:
        lines = _lines(path, _texts(path), read, max_nodes, connected)
    if not lines:
        raise UserError(f"{path} has no molecule")
    if lines[0].graph.nodes.shape[1] != nodes:
        raise UserError(f"{path}: atoms of {lines[0].graph.nodes.shape[1]} numbers; the run reads atoms of {nodes}")
    return lines


def read_smiles(path: Path, values: tuple[str, ...] | None, max_nodes: int, connected: bool) -> list[Line]:
    """Read every molecule of a table. Raises UserError with every line that is wrong, and why."""
    from rdkit import rdBase

    names, table = target_columns(path, values), _read(path)
    if not names:
        raise UserError(f"{path} has no column of numbers; name the targets with data.values=[...]")

    def read(row: dict[str, Any]) -> tuple[Any, Graph]:
        return row, _graph(row[SMILES], [_number(name, row[name]) for name in names])

    with rdBase.BlockLogs():  # rdkit prints a line for each SMILES that it refuses
        return _lines(path, _numbered(table), read, max_nodes, connected)


def _lines(
    path: Path,
    contents: Iterable[tuple[int, Content]],
    read: Callable[[Content], tuple[Any, Graph]],
    max_nodes: int,
    connected: bool,
) -> list[Line]:
    """Return the lines of a file. Raises UserError with the number of every line that is wrong, and why.

    contents: each with its number; read: returns the record and the graph of a content. Raises ValueError
    """
    lines, problems = [], []
    for number, content in contents:
        try:
            record, graph = read(content)
            lines.append(Line(number, checked(graph, max_nodes, connected), record))
        except (ValueError, RecursionError) as error:
            problems.append((number, f"not JSON ({error})" if isinstance(error, json.JSONDecodeError) else str(error)))
    refuse_lines(path, problems)
    return lines


def first_widths(path: Path, *, targets: bool = True) -> Widths | None:
    """Return the widths of a file; None where its first lines cannot be read, which `read_lines` reports.

    targets: whether it must have y
    """
    widths = None
    try:
        for _, text in _texts(path):
            record = json.loads(text)
            if widths is None:
                values = record["y"] if targets else None
                widths = Widths(len(record["atoms"][0]), 0, len(values) if isinstance(values, list) else 1)
            if record["bonds"]:
                return widths._replace(edges=len(record["bonds"][0]) - 2)
    except (UserError, ValueError, LookupError, TypeError, RecursionError):
        pass
    return widths


def first_keys(path: Path) -> set[str]:
    """Return the keys of the first line; none where it cannot be read, which `read_lines` reports."""
    try:
        for _, text in _texts(path):
            return set(json.loads(text))
    except (UserError, ValueError, TypeError, RecursionError):
        pass
    return set()


def _check_columns(record: Any, nodes: int) -> None:
    """Raise ValueError for a first atom of another number of columns than the run reads."""
    atoms = record.get("atoms") if isinstance(record, dict) else None
    first = atoms[0] if isinstance(atoms, list) and atoms else None
    if isinstance(first, list) and len(first) != nodes:
        raise ValueError(f"atoms of {len(first)} numbers; the run reads atoms of {nodes}")


def is_table(name: str) -> bool:
    """Return whether a file of this name is a table with SMILES."""
    return name.removesuffix(".gz").endswith(".csv")


def _rows_of(path: Path) -> Iterator[tuple[int, Any]]:
    """Return the line and the cells of each row of a table. Raises UserError without rdkit or a column of SMILES."""
    reason = unavailable()
    if reason is not None:
        raise UserError(reason)
    return _numbered(_read(path))


def plain_classes(path: Path, key: str) -> dict[str, str]:
    """Return the labels that lines have under a key, or rows in a column, and the class of each, as `plain_names` does.

    Empty for a file that cannot be read, which `read_lines` or `read_smiles` reports.
    """
    try:
        if is_table(path.name):
            values = _read(path)[key].tolist()
        else:
            values = [json.loads(text).get(key) for _, text in _texts(path)]
    except (UserError, ValueError, LookupError, AttributeError, RecursionError):
        return {}
    labels = map(_label, values)
    return plain_names(label for label in labels if label is not None)


def label_of(line: Line, key: str) -> str:
    """Return the label that a line has under a key. Raises ValueError without one."""
    name = _label(line.record.get(key))
    if name is None:
        raise ValueError(f"it has no {key} that is a text or a number")
    return name


def values_of(line: Line, keys: tuple[str, ...], *, labels: bool) -> list[float]:
    """Return the numbers that a line has under keys, NaN where there is none. labels: whether they must be 0 or 1.

    Raises ValueError for anything else, and for a line without any.
    """
    numbers = []
    for key in keys:
        value = line.record.get(key)
        number = _number(key, value)
        if labels and number not in (0, 1) and not math.isnan(number):
            raise ValueError(f"{key}: {quoted(value)} is neither 0 nor 1")
        numbers.append(number)
    if all(math.isnan(number) for number in numbers):
        raise ValueError(f"it has no {' nor '.join(keys)}; leave the line out")
    return numbers


def _label(value: Any) -> str | None:
    """Return a label as text, whole numbers without a point; None for no value, a blank text, and lists."""
    if value is None or isinstance(value, (list, dict)) or value != value:
        return None
    if isinstance(value, str) and not value.strip():
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def refuse_lines(path: Path, problems: list[tuple[int, str]]) -> None:
    """Raise UserError that counts the lines with problems and names the first ones; return where there are none."""
    if problems:
        listing = "".join(f"\n  line {number}: {problem}" for number, problem in problems[:_SHOWN])
        more = f"\n  and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
        raise UserError(f"{path}: {len(problems):,} line{'s'[: len(problems) > 1]} cannot be used{listing}{more}")


def refuse_absent(path: Path, lines: Sequence[Line], names: Sequence[str]) -> None:
    """Raise UserError for names that no line has; return where there are none."""
    absent = [name for name in names if not any(name in line.record for line in lines)]
    if not absent:
        return
    record = lines[0].record
    message = f"{path}: no line has {', '.join(absent)}; the first has {', '.join(record)}"
    values = record.get("y")
    if isinstance(values, list) and values:
        message += (
            f". Its y is a list of {len(values)} values without names: write one under its name, such as "
            f'"{absent[0]}": {json.dumps(values[0])}, or set neither data.label nor data.values, which predicts all of '
            "them as real values"
        )
    raise UserError(message)


def parse(record: Any, widths: Widths) -> Graph:
    """Return the graph of a record. Raises ValueError where it is none, or has other columns than `widths`."""
    if not isinstance(record, dict):
        raise ValueError(f"{quoted(record)} is not an object with atoms, bonds and y")
    missing = [key for key in ("atoms", "bonds", "y") if key not in record]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    nodes = _table("atoms", record["atoms"], widths.nodes)
    if not len(nodes):
        raise ValueError("it has no atom")
    bonds = _table("bonds", record["bonds"], 2 + widths.edges)
    return Graph(nodes, bonds[:, :2], bonds[:, 2:], _targets(record["y"], widths.targets))


def _table(name: str, rows: Any, width: int) -> np.ndarray:
    """Return lists of `width` whole numbers each as an array (n, width). Raises ValueError for anything else."""
    if not isinstance(rows, list):
        raise ValueError(f"{name}: {quoted(rows)} is not a list")
    for row in rows:
        if not isinstance(row, list) or not all(type(value) is int and abs(value) < LARGEST for value in row):
            raise ValueError(f"{name}: {quoted(row)} is not a list of whole numbers")
        if len(row) != width:
            raise ValueError(f"{name}: {quoted(row)} has {len(row)} numbers, the first has {width}")
    return np.array(rows, dtype=np.int64).reshape(-1, width)


def _targets(values: Any, count: int) -> list[float]:
    values = values if isinstance(values, list) else [values]
    for value in values:
        if value is not None and (type(value) not in (int, float) or math.isinf(value)):
            raise ValueError(f"y: {quoted(value)} is not a number")
    if len(values) != count:
        raise ValueError(f"y has {len(values)} values, the first has {count}")
    numbers = [math.nan if value is None else float(value) for value in values]
    if all(math.isnan(number) for number in numbers):
        raise ValueError("y has no value; leave the line out")
    return numbers


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Return the number, from 1, and the text of each line that is not blank."""
    try:
        with open_text(path) as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, text
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}); expected lines of JSON in UTF-8, plain or .gz") from error


def unavailable() -> str | None:
    """Return how to get rdkit, or None where it is there."""
    if importlib.util.find_spec("rdkit") is not None:
        return None
    return "reading SMILES needs rdkit: pip install 'blockyard[molecules]'; or set data.path to a file *.graphs.jsonl"


def target_columns(path: Path, values: tuple[str, ...] | None) -> list[str]:
    """Return the columns of targets: `values`, or all columns of numbers. Raises UserError for absent columns."""
    table = _read(path)
    absent = [name for name in values or () if name not in table]
    if absent:
        raise UserError(f"{path} has no column {_listed(absent)}; it has {_listed(table.columns)}")
    return list(values or [name for name in table.columns if _holds_numbers(table[name].tolist())])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _holds_numbers(cells: list[str | None]) -> bool:
    """Return whether a column has numbers, and nothing else but missing values."""
    import pyarrow as pa

    present = [cell.strip() for cell in cells if cell is not None and not _is_missing(cell)]
    try:
        pa.array(present, pa.string()).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return bool(present)


def _is_missing(value: Any) -> bool:
    """Return whether a value is missing where numbers are: None, a blank text, or NA and the like."""
    return value is None or (isinstance(value, str) and value.strip().lower() in {"", *LIKE_MISSING})


def _graph(smiles: Any, target: list[float]) -> Graph:
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles) if isinstance(smiles, str) else None
    if molecule is None or not molecule.GetNumAtoms():
        raise ValueError(f"{quoted(smiles)} is not the SMILES of a molecule")
    if all(math.isnan(value) for value in target):
        raise ValueError("it has no target; leave the line out")
    atoms = [
        (a.GetAtomicNum(), a.GetDegree(), a.GetFormalCharge(), a.GetTotalNumHs(), a.GetIsAromatic(), a.IsInRing())
        for a in molecule.GetAtoms()
    ]
    bonds = []
    for bond in molecule.GetBonds():
        # rdkit counts an aromatic bond as 1.5.
        order = _AROMATIC if bond.GetIsAromatic() else int(bond.GetBondTypeAsDouble())
        bonds.append((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), order, bond.GetIsConjugated()))
    table = np.array(bonds, dtype=np.int64).reshape(-1, 4)  # (bonds, 4), also without any bond
    return Graph(np.array(atoms, dtype=np.int64), table[:, :2], table[:, 2:], target)


def _number(name: str, value: Any) -> float:
    if _is_missing(value):
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"column {name}: {quoted(value)} is not a number") from None
    if math.isinf(number):
        raise ValueError(f"column {name}: {quoted(value)} is not a number")
    return number


def _numbered(table: pandas.DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line and the cells of each row of a table."""
    for line, row in zip(table.index, table.itertuples(index=False, name=None), strict=True):
        yield int(line), dict(zip(table.columns, row, strict=True))


def _read(path: Path) -> pandas.DataFrame:
    """Read the columns of a table that have a name, as text. Raises UserError without a column of SMILES."""
    names = [name for name in column_names(path) if name]
    check_unique(path, names, names)
    if names and SMILES not in names:
        raise UserError(f"{path} has no column {SMILES!r}; it has {_listed(names)}")
    # Of a file that cannot be read no column is known: `read_table` then says why.
    return read_table(path, {f"column {number}": name for number, name in enumerate(names or [SMILES], start=1)})
