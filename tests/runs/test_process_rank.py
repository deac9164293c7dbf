"""Which process of a run this is has one answer."""

from __future__ import annotations

import pytest

from blockyard.runs.rank import local_rank_of, rank_in


@pytest.mark.parametrize(
    ("environment", "rank", "local"),
    [
        ({}, 0, 0),
        ({"RANK": "3", "LOCAL_RANK": "1"}, 3, 1),
        ({"RANK": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, 0, 0),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}, 2, 1),
        ({"SLURM_PROCID": "2"}, 0, 0),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "LOCAL_RANK": "1"}, 1, 1),
        ({"NODE_RANK": "1", "LOCAL_RANK": "1"}, 3, 1),
        ({"NODE_RANK": "1"}, 2, 0),
    ],
)
def test_there_is_one_answer_to_which_process_this_is(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], rank: int, local: int
) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank_in({"trainer": {"devices": 2}}) == rank
    assert local_rank_of() == local
