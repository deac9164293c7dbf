"""The partitions of a cluster: whether the one that jobs go to exists, and whether it has GPUs.

Source: sinfo of SLURM (slurm.schedmd.com)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockyard.errors import UserError
from blockyard.sweep.executor._slurm_queue import run_command

# sbatch's options and variables by which jobs go to clusters that sinfo does not list.
_ELSEWHERE = ("clusters", "M", "cluster-constraint", "remote")
_ELSEWHERE_VARIABLES = ("SBATCH_CLUSTERS", "SBATCH_CLUSTER_CONSTRAINT")


@dataclass(frozen=True)
class Partitions:
    """gpus: whether each partition lists GPUs among its generic resources, by name; default: the cluster's default."""

    gpus: dict[str, bool]
    default: str | None = None

    def check(self, chosen: str | None) -> None:
        """Raise UserError where a partition does not exist. chosen: one name or several with commas; None: default"""
        unknown = [name for name in _names(chosen) if name not in self.gpus]
        if unknown:
            listed = ", ".join(sorted(self.gpus))
            raise UserError(f"executor.partition: SLURM has no partition {', '.join(unknown)}; it has {listed}")

    def have_gpus(self, chosen: str | None) -> bool:
        """Whether one of the chosen partitions has GPUs; of a cluster without a default, any."""
        names = _names(chosen) or ([self.default] if self.default else list(self.gpus))
        return any(self.gpus.get(name, False) for name in names)


def read_partitions(sbatch: Mapping[str, Any]) -> Partitions | None:
    """All partitions, hidden ones too; None where `sinfo` does not answer or jobs go to another cluster.

    sbatch: further options of sbatch
    """
    if any(name in sbatch for name in _ELSEWHERE) or any(map(os.environ.get, _ELSEWHERE_VARIABLES)):
        return None
    output, _ = run_command("sinfo", "-h", "-a", "-o", "%P|%G")
    gpus: dict[str, bool] = {}
    default = None
    for line in (output or "").splitlines():
        name, bar, resources = line.strip().partition("|")
        if not bar:
            continue
        default = name.rstrip("*") if name.endswith("*") else default
        name = name.rstrip("*")
        # A partition has a line for each kind of its nodes.
        has = any(part.strip().partition(":")[0] == "gpu" for part in resources.split(","))
        gpus[name] = gpus.get(name, False) or has
    return Partitions(gpus, default) if gpus else None


def _names(chosen: str | None) -> list[str]:
    return [name for name in (chosen or "").split(",") if name]
