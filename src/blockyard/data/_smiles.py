"""Molecules of a table as graphs, by rdkit: the extra `molecules`.

smiles,solubility,split            atoms: atomic number, degree, charge, hydrogens, aromatic, in a ring
CCO,1.1,train                      bonds: 1 single, 2 double, 3 triple, 4 aromatic; conjugated
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blockyard.data._graphs import Graph
from blockyard.data._molecule_file import Line, check_graph, refuse_lines
from blockyard.errors import UserError, quoted

if TYPE_CHECKING:
    import pandas

SMILES = "smiles"
NODE_COLUMNS = 6
_AROMATIC = 4


def unavailable() -> str | None:
    """Returns how to get rdkit, or None where it is there."""
    if importlib.util.find_spec("rdkit") is not None:
        return None
    return "reading SMILES needs rdkit: pip install 'blockyard[molecules]'; or set data.path to a file *.graphs.jsonl"


def target_columns(path: Path, values: tuple[str, ...] | None) -> list[str]:
    """The columns of targets: those that are named, else every column of numbers. Raises UserError for absent ones."""
    table = _read(path)
    absent = [name for name in (SMILES, *(values or ())) if name not in table]
    if absent:
        raise UserError(f"{path} has no column {', '.join(absent)}; it has {', '.join(map(str, table.columns))}")
    return list(values or [str(name) for name in table.select_dtypes("number").columns])


def read_smiles(path: Path, values: tuple[str, ...] | None, max_nodes: int, connected: bool) -> list[Line]:
    """Reads every molecule of a table. Raises UserError with every line that is wrong, and why."""
    from rdkit import rdBase

    names, table = target_columns(path, values), _read(path)
    if not names:
        raise UserError(f"{path} has no column of numbers; name the targets with data.values=[...]")
    lines, problems = [], []
    with rdBase.BlockLogs():  # rdkit prints a line for each SMILES that it refuses
        for number, row in enumerate(table.to_dict("records"), start=2):
            try:
                graph = _graph(row[SMILES], [_number(name, row[name]) for name in names])
                check_graph(graph, max_nodes, connected)
                lines.append(Line(number, graph, {str(key): value for key, value in row.items()}))
            except ValueError as error:
                problems.append((number, str(error)))
    refuse_lines(path, problems)
    return lines


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
    bonds = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx(), _kind(b), b.GetIsConjugated()) for b in molecule.GetBonds()]
    table = np.array(bonds, dtype=np.int64).reshape(-1, 4)
    return Graph(np.array(atoms, dtype=np.int64), table[:, :2], table[:, 2:], target)


def _kind(bond: Any) -> int:
    return _AROMATIC if bond.GetIsAromatic() else int(bond.GetBondTypeAsDouble())


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"column {name}: {quoted(value)} is not a number") from None
    if math.isinf(number):
        raise ValueError(f"column {name}: {quoted(value)} is not a number")
    return number


def _read(path: Path) -> pandas.DataFrame:
    import pandas

    try:
        return pandas.read_csv(path)
    except (ValueError, OSError, EOFError) as error:  # pandas' parser errors are ValueErrors
        raise UserError(f"{path} cannot be read as a table: {' '.join(str(error).split())}") from error
