"""Molecules of your own as graphs: atoms are nodes, bonds are edges. Real values, a class or labels are predicted.

Source: Wu et al. 2018, MoleculeNet (arXiv 1703.00564), for such sets and their splits
Reference: rdkit, for molecules that are written as SMILES

A file *.graphs.jsonl, plain or .gz, has a line of JSON for each molecule:

    {"atoms": [[6, 3, 0], [8, 1, 0]], "bonds": [[0, 1, 2]], "y": [-0.77, null], "split": "train"}

atoms has a list of whole numbers for each atom (codes, such as the atomic number), bonds two atoms and the codes of
their bond, once or in both directions, y a real value for each task, null where it was not measured. `values` and
`label` name further keys: {"logp": 1.2, "active": 1, "toxic": null}. A table *.csv with a column `smiles` and columns
of numbers is read with rdkit, the extra `molecules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from blockyard.contracts import FittingValue, Length, Splits, Text
from blockyard.data.files import molecules
from blockyard.data.files.class_names import warn_of_names
from blockyard.data.files.graph import Graph
from blockyard.data.files.molecules import Line, Widths, first_widths, read_lines, refuse_absent, refuse_lines
from blockyard.data.files.split_names import SPLIT_NAMES, split_number
from blockyard.data.files.tables import column_names, read_table
from blockyard.data.splits.graphs import GraphData, GraphParts, graph_key
from blockyard.data.splits.order import mix
from blockyard.data.splits.row_splits import log, together, warn_of_duplicates
from blockyard.data.splits.split import DrawnSplits, refuse_untrained
from blockyard.errors import UserError, quoted


@dataclass(kw_only=True, eq=False)
class Molecules(DrawnSplits, GraphData):
    """Reads every molecule once; codes that only validation or test molecules have count as unseen.

    Molecules with the same atoms and bonds stay in one split that is drawn, however their nodes are numbered; where the
    file names the splits, those in several are counted.

    Options:
        path: the file
        split: the key or column that assigns molecules to train, val or test, such as scaffold_split; null draws splits
        splits: a table (.csv) with columns smiles and `split`, for a file whose lines do not name their split
        values: columns of a table, or keys of a line, that are predicted; null takes all columns of numbers, or y
        label: the column or key of a class that is predicted instead; several with 0 or 1 each for objective=multilabel
        max_nodes: the most atoms of a molecule
        disconnected: refuse or keep molecules in several parts, such as salts
        validation_fraction: share of the molecules that is the validation split, where splits are drawn
        test_fraction: share of the molecules that is the test split, where splits are drawn
        split_seed: seed of splits that are drawn; independent of the run's seed, so that all seeds share them
    """

    path: Text = "data/molecules.graphs.jsonl"
    split: Text | None = "split"
    splits: Text | None = None
    values: tuple[Text, ...] | None = None
    label: Text | tuple[Text, ...] | None = None
    max_nodes: Length = 128
    disconnected: Literal["refuse", "keep"] = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.values is not None and self.label is not None:
            raise ValueError("data.values and data.label both say what is predicted; one must be null")
        if isinstance(self.label, tuple) and len(set(self.label)) < len(self.label):
            raise ValueError(f"data.label={list(self.label)} names a label twice")
        if () in (self.values, self.label):
            raise ValueError("data.values and data.label name at least one column or key; null names none")
        if self.split is None and self.splits is not None:
            raise ValueError("data.splits is a table of splits and data.split=null draws them; leave one out")

    def missing(self) -> str | None:
        """Return a message that names the missing file or package and the remedy, or None."""
        for option, name in (("path", self.path), ("splits", self.splits)):
            if name is not None and not _file(name).is_file():
                return f"no file {_file(name).absolute()}; set data.{option}=FILE"
        return molecules.unavailable() if self._is_table else None

    def fitting_contents(self) -> list[FittingValue]:
        """Return that splits are drawn, where no line of the file names one."""
        if self.missing() is not None or self.split is None or self.splits is not None:
            return []
        path = _file(self.path)
        if self.split in (column_names(path) if self._is_table else molecules.first_keys(path)):
            return []
        return [FittingValue("data.split", None, f"the first molecule has no {self.split}, so splits are drawn")]

    def size(self) -> tuple[int, int]:
        """Return the maximum number of nodes, and the columns of a node in the first line."""
        return self.max_nodes, self._widths.nodes

    def targets(self) -> int | None:
        """Return the number of values or labels, of y in the first line by default; None for a class."""
        if isinstance(self.label, tuple):
            return len(self.label)
        if self.label is not None:
            return None
        if self.values is None or self._is_table:
            return self._widths.targets
        return len(self.values)

    @property
    def labels(self) -> bool:
        """Return whether `label` names several labels."""
        return isinstance(self.label, tuple)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The labels, or the classes of the file, sorted."""
        if self.label is None or isinstance(self.label, tuple):
            return self.label or ()
        return tuple(sorted(set(self._classes.values())))

    @cached_property
    def _classes(self) -> dict[str, str]:
        """The class of each label of the file; empty without the file."""
        assert isinstance(self.label, str)
        if self.missing():
            return {}
        return molecules.plain_classes(_file(self.path), self.label)

    @cached_property
    def _widths(self) -> Widths:
        unknown = Widths(1, 0, 1)  # also of a file that cannot be read: `read` tells why
        if self.missing() is not None:
            return unknown
        path = _file(self.path)
        if not self._is_table:
            return first_widths(path, targets=not self._named_targets) or unknown
        num_targets = 1
        if self.label is None:
            num_targets = len(molecules.target_columns(path, self.values))
        return Widths(molecules.NODE_COLUMNS, 2, num_targets)

    def read(self) -> GraphParts:
        """Read the file and assign each molecule to a split. Raises UserError naming lines that are wrong."""
        path = _file(self.path)
        connected = self.disconnected == "refuse"
        if self._named_targets:
            widths = self._widths
            lines = molecules.read_unlabelled(path, widths.nodes, widths.edges, self.max_nodes, connected)
            self._set_targets(path, lines)
        elif self._is_table:
            lines = molecules.read_smiles(path, self.values, self.max_nodes, connected)
        else:
            lines = read_lines(path, self.max_nodes, connected)
        keys = [graph_key(line.graph) for line in lines]  # equal for equal molecules, however they are numbered
        numbers = self._drawn(keys) if self.split is None else self._named(path, lines)
        parts: tuple[list[Graph], ...] = ([], [], [])
        keys_of: tuple[list[str], ...] = ([], [], [])
        for line, key, number in zip(lines, keys, numbers, strict=True):
            parts[number].append(line.graph)
            keys_of[number].append(key)
        warn_of_duplicates(self.path, keys_of, "molecules")
        if self.split is None:
            remedy = "use more molecules, or another share of them"
        else:
            remedy = "data.split=null draws splits"
        for name, part in zip(Splits._fields, parts, strict=True):
            if not part:
                raise UserError(f"{path} has no molecule of the {name} split; {remedy}")
        if isinstance(self.label, str):
            refuse_untrained(torch.tensor([graph.target for graph in parts[0]]), self.class_names, path)
        return GraphParts(*parts)

    @property
    def _named_targets(self) -> bool:
        """Return whether targets are read by their names, not from y or the columns of numbers."""
        return self.label is not None or (self.values is not None and not self._is_table)

    def _set_targets(self, path: Path, lines: list[Line]) -> None:
        """Set the target of each graph from its line. Raises UserError naming the lines without one."""
        names = (self.label,) if isinstance(self.label, str) else self.label or self.values or ()
        refuse_absent(path, lines, names)
        problems = []
        counts: Counter[str] = Counter()
        for line in lines:
            try:
                if isinstance(self.label, str):
                    name = self._classes[molecules.label_of(line, self.label)]
                    counts[name] += 1
                    line.graph.target = self.class_names.index(name)
                else:
                    line.graph.target = molecules.values_of(line, names, labels=self.labels)
            except ValueError as error:
                problems.append((line.number, str(error)))
        refuse_lines(path, problems)
        if isinstance(self.label, str) and len(self.class_names) < 2:
            raise UserError(
                f"{path}: every molecule has the {self.label} {self.class_names[0]}; a class needs another one"
            )
        warn_of_names(path, counts)

    def _drawn(self, keys: Sequence[str]) -> list[int]:
        """Return the split of each line, the same for equal graphs: 0 train, 1 validation, 2 test."""
        units, repeated = together(keys)
        if units is None:
            units = torch.arange(len(keys))
        else:
            log.warning(
                "%s: %d of %d molecules repeat an earlier one; they stay in its split", self.path, repeated, len(keys)
            )
        count = int(units.max()) + 1
        order = torch.randperm(count, generator=torch.Generator().manual_seed(mix("molecules", self.split_seed)))
        numbers = torch.zeros(count, dtype=torch.long)
        validation = round(self.validation_fraction * count)
        test = round(self.test_fraction * count)
        numbers[order[:validation]] = 1
        numbers[order[validation : validation + test]] = 2
        drawn: list[int] = numbers[units].tolist()
        return drawn

    def _named(self, path: Path, lines: list[Line]) -> list[int]:
        """Return the split of each line by its name: 0 train, 1 validation, 2 test."""
        assert self.split is not None
        table = None if self.splits is None else _split_table(_file(self.splits), self.split)
        numbers = []
        problems = []
        for line in lines:
            smiles = line.record.get(molecules.SMILES)
            name = line.record.get(self.split) if table is None else table.get(str(smiles))
            number = split_number(name) if isinstance(name, str) else None  # a line of JSON may hold anything
            if number is not None:
                numbers.append(number)
            elif name is None and table is None:
                problems.append((line.number, f"it has no {self.split}"))
            elif name is None:
                problems.append((line.number, f"smiles {quoted(smiles)} is not in {self.splits}"))
            else:
                problems.append((line.number, f"{self.split}: {quoted(name)}; allowed: {SPLIT_NAMES}"))
        if len(problems) == len(lines):
            raise UserError(
                f"{path}: no line names a split ({problems[0][1]}); use data.split=NAME, data.splits=TABLE.csv with "
                f"columns smiles and {self.split}, or data.split=null, which draws splits"
            )
        refuse_lines(path, problems)
        return numbers

    @property
    def _is_table(self) -> bool:
        return molecules.is_table(self.path)


def _split_table(path: Path, column: str) -> dict[str, str]:
    """Return the split of each SMILES by name. Raises UserError for another table, and for a SMILES of two splits."""
    table = read_table(path, {"data.splits": molecules.SMILES, "data.split": column})
    split_names: dict[str, str] = {}
    problems = []
    for number, smiles, name in zip(table.index, table[molecules.SMILES], table[column], strict=True):
        if split_names.setdefault(smiles, name) != name:
            problems.append((number, f"{quoted(smiles)} is of {column} {name} here and {split_names[smiles]} before"))
    refuse_lines(path, problems)
    return split_names


def _file(name: str) -> Path:
    return Path(name).expanduser()
