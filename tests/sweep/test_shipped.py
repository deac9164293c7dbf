"""The questions in sweeps/: each can be planned, and its W&B file is the one that is generated now."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.wandb_file import files
from tests.paths import ROOT
from tests.untrained import untrained

SWEEPS = sorted(path.stem for path in (ROOT / "sweeps").glob("*.yaml"))
WANDB = ROOT / "sweeps" / "wandb"
# Questions about data that are not embedded: overrides that name files below the folder of shared data.
NEED_FILES = {
    "channel_independence": {"data.path": "timeseries/ETTh1.csv.gz"},
    "graph_scaffolds": {
        "data.path": "molecules/esol_delaney.graphs.jsonl.gz",
        "data.splits": "molecules/esol_delaney.csv",
    },
}
# Questions whose arms start from a run: what it is made of.
NEED_RUNS = {
    "audio_pretraining": ("experiment=tones_ctc", "objective=masked_units", "objective.span=2", "name=listened"),
    "pretraining": ("experiment=bert_code", "tokenizer=byte", "name=pretrained"),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_shipped_sweep_can_be_planned_and_its_wandb_files_are_current(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    needed, start = NEED_FILES.get(name, {}), NEED_RUNS.get(name)
    shared = request.getfixturevalue("shared_data") if needed else None
    if start is not None:  # a run of the name that the file gives, as the command in its header makes it
        untrained(tmp_path / f"{start[-1].removeprefix('name=')}-0000000000" / "s0", *start)
    plan = make_plan(
        Path("sweeps") / f"{name}.yaml",
        outputs=str(tmp_path) if start else "outputs",
        overrides=[f"{key}={shared / file}" for key, file in needed.items()],
    )
    assert plan.refused == ()
    assert plan.variants
    assert plan.question["header"].count("\n") >= 3
    for word in ("command", "cost", "expected"):
        assert word in plan.question["header"]
    if not needed and not start:
        for file, content in files(plan).items():
            again = f"sweeps/wandb/{file}: run `blockyard sweep {name} --to-wandb` again"
            assert (WANDB / file).read_text() == content, again


def test_every_wandb_file_belongs_to_a_sweep() -> None:
    owners = {path.name.partition(".")[0] for path in WANDB.glob("*.yaml")}
    assert owners == set(SWEEPS) - set(NEED_FILES) - set(NEED_RUNS)
