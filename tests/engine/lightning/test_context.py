"""`trainer=context`: the run of one process, and what cannot be cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.engine.loader import Layout
from blockyard.runs.folder import RunFolder
from tests.engine.lightning.process_runs import start
from tests.support.engine_runs import rows, state, text_run
from tests.support.tiny import TEXT
from tests.support.tolerances import float32

CONTEXT = ("trainer=context", "trainer.accelerator=cpu")
BASE = [override for override in TEXT if not override.startswith("trainer=")]
CLOSE = float32(terms=256, layers=8)  # each of the steps adds up tokens, in two parts, and goes on from the last
# An override, and a part of the reason.
REFUSED = {
    "token_mixer=conv": "token_mixer=attention or windowed_attention in every block, .* and conv does not",
    "token_mixer=hard_attention": "and hard_attention does not",
    "token_mixer.dropout=0.1": "no dropout on attention weights",
    "model.prefix.registers=2": "does not cut class and register tokens",
    "data.sample=line": "pads sequences",
    "data.packed=true": "packs several documents",
    "trainer.devices=1": "there is one",
    "trainer.attention=sdpa": "trainer.attention=sdpa cannot",
    "trainer.compile=true": "trainer.compile=true",
    "data.context=3": "it has 3 tokens",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_be_cut_is_refused_with_the_reason(override: str) -> None:
    issues = [str(each) for each in check(compose([*BASE, *CONTEXT, "tokenizer=byte", override]))]
    assert len(issues) == 1, issues
    with pytest.raises(ValueError, match=REFUSED[override]):
        raise ValueError(issues[0])


def test_a_sequence_for_all_processes_is_no_sample_for_one() -> None:
    layout = Layout(seed=0, samples=8, batch_size=1, rank=1, world=2, context=True)
    assert (layout.readers, layout.shards) == (1, 1)


@pytest.mark.full
def test_two_processes_follow_one(tmp_path: Path) -> None:
    overrides = (
        "tokenizer=byte",
        "position=t5_bias",
        "trainer.log_every=1",
        "trainer.accumulate=2",
        "callbacks=default",
    )
    overrides = (*overrides, "trainer.max_steps=20", "trainer.eval_every=10", "objective.z_loss=1e-3")
    one = text_run(tmp_path / "one", *overrides)
    process = start(
        tmp_path / "two", "context", *[override for override in BASE if "max_steps" not in override], *overrides
    )
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    two = RunFolder.open(next((tmp_path / "two").glob("*/s0")))
    assert two.identity == one.identity
    assert [each["kernel"] for each in two.summary()["kernels"]] == ["ring", "ring"]
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left == pytest.approx(right, rel=CLOSE["rtol"])
    for name, value in state(two).items():
        torch.testing.assert_close(value, state(one)[name], **CLOSE)
