"""The questions in sweeps/: each can be planned, and written as W&B sweep files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.wandb_file import files
from tests.support.paths import ROOT
from tests.support.untrained import untrained

SWEEPS = sorted(path.stem for path in (ROOT / "sweeps").glob("*.yaml"))
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
    "audio_pretraining": [("experiment=tones_ctc", "objective=masked_units", "objective.span=2", "name=listened")],
    "distillation": [("experiment=vit_digits", "name=teacher")],
    "linear_probe": [
        ("experiment=bert_code", "tokenizer=byte", "name=pretrained"),
        (
            *("experiment=bert_code", "tokenizer=byte", "model=decoder", "objective=next_token"),
            "name=pretrained_causal",
        ),
    ],
    "pretraining": [("experiment=bert_code", "tokenizer=byte", "name=pretrained")],
}
# Most of the time of planning all questions: the widths of every arm are solved at every rung, or there are many cells.
# The default suite plans ladders in test_ladder_key.py.
SLOW = ("ladder_field", "ladder_image", "ladder_rates", "recall_state")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in SLOW else name for name in SWEEPS]
)
@pytest.mark.sampled(12)
def test_a_shipped_sweep_can_be_planned_and_written_for_wandb(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    needed, starts = NEED_FILES.get(name, {}), NEED_RUNS.get(name, [])
    shared = request.getfixturevalue("shared_data") if needed else None
    for start in starts:  # a run of the name that the file gives, as the command in its header makes it
        untrained(tmp_path / f"{start[-1].removeprefix('name=')}-0000000000" / "s0", *start)
    plan = make_plan(
        Path("sweeps") / f"{name}.yaml",
        outputs=str(tmp_path) if starts else "outputs",
        overrides=[f"{key}={shared / file}" for key, file in needed.items()],
    )
    assert plan.refused == ()
    assert plan.variants
    assert plan.question["header"].count("\n") >= 3
    for text in ("command", "cost", "expected"):
        assert text in plan.question["header"]
    written = files(plan)
    assert written
    for file, content in written.items():
        assert file.partition(".")[0] == name
        assert {"method", "parameters", "command"} <= yaml.safe_load(content).keys(), file
