"""Small files of molecules, the same every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("train", "train", "val", "test")


def molecule(draws: np.random.Generator, number: int = 0) -> dict[str, Any]:
    """A random tree of 3 to 8 atoms with one ring at most, whose target is its number of atoms and of double bonds."""
    count = int(draws.integers(3, 9))
    bonds = [[int(draws.integers(0, atom)), atom, int(draws.integers(1, 3)), 0] for atom in range(1, count)]
    if count > 4 and [0, count - 1] not in [bond[:2] for bond in bonds]:
        bonds.append([0, count - 1, 1, 0])
    atoms = [[int(draws.choice([6, 7, 8])), int(draws.integers(0, 3))] for _ in range(count)]
    target = count + sum(bond[2] == 2 for bond in bonds) + 0.1 * sum(atom[0] == 8 for atom in atoms)
    return {"atoms": atoms, "bonds": bonds, "y": [target], "split": PARTS[number % 4]}


def write_molecules(path: Path, count: int = 80) -> Path:
    """Write `count` molecules with their splits to `path`, and return it."""
    draws = np.random.default_rng(0)
    path.write_text("".join(json.dumps(molecule(draws, number)) + "\n" for number in range(count)))
    return path
