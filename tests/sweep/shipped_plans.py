"""Plans of the shipped sweeps, with the files and the runs that some of them start from."""

from __future__ import annotations

from pathlib import Path

from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.sweep_plan import SweepPlan
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
# Questions whose arms start from a run: the overrides of that run.
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


def plan_of_shipped(name: str, folder: Path, shared: Path | None) -> SweepPlan | None:
    """Return the plan of a shipped sweep; None where it needs files of `shared`, which is absent.

    The working folder is the checkout. folder: an empty one for the runs that the sweep starts from
    """
    needed = NEED_FILES.get(name, {})
    if needed and shared is None:
        return None
    starts = NEED_RUNS.get(name, [])
    for start in starts:  # a run of the name that the file gives, as the command in its header makes it
        untrained(folder / f"{start[-1].removeprefix('name=')}-0000000000" / "s0", *start)
    return make_plan(
        Path("sweeps") / f"{name}.yaml",
        outputs=str(folder) if starts else "outputs",
        overrides=[f"{key}={shared / file}" for key, file in needed.items()] if shared else [],
    )
