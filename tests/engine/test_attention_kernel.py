"""`trainer.attention`: the same training by another kernel, one folder for all of them, and refusals before a step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.ops.kernel import selected
from blockyard.runs.identity import identity
from tests.support.engine_runs import config, folder, run, state
from tests.support.tiny import TINY
from tests.support.tolerances import float32

SHORT = ("trainer.max_steps=3", "trainer.eval_every=3", "token_mixer.dropout=0", "position=alibi")


@pytest.mark.full
def test_training_by_another_kernel_is_the_same(tmp_path: Path) -> None:
    plain = state(run(tmp_path / "auto", *SHORT))
    for name in ("online", "eager"):
        run_folder = run(tmp_path / name, *SHORT, f"trainer.attention={name}")
        assert [entry["kernel"] for entry in run_folder.summary()["kernels"]] == [name]
        for key, value in state(run_folder).items():
            torch.testing.assert_close(value, plain[key], **float32(terms=64, layers=8))
    assert selected() == "auto"


def test_the_kernel_is_no_part_of_the_identity(tmp_path: Path) -> None:
    names = ("auto", "sdpa", "flex", "online", "eager")
    assert len({identity(config(tmp_path, *SHORT, f"trainer.attention={name}")[0]) for name in names}) == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("trainer.attention=flex",), "flex cannot serve: FlexAttention is used on CUDA only"),
        (("trainer.attention=online", "token_mixer.dropout=0.1"), "the online softmax has no dropout on the weights"),
        (("trainer.attention=online", "token_mixer=hard_attention"), "are not a plain softmax"),
        (("trainer.attention=sdpa", "token_mixer=conv"), "has no effect: no token mixer of this model attends"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_refused_before_the_first_step(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    base = tuple(each for each in TINY if not each.startswith("token_mixer."))
    with folder(tmp_path, *overrides, base=base) as run_folder, pytest.raises(UserError) as refused:
        train(run_folder)
    assert message in str(refused.value)
    assert run_folder.status.exit_code == 2


def test_online_and_compile_exclude_each_other() -> None:
    issues = check(compose(["trainer.attention=online", "trainer.compile=true"]))
    assert any("does not work with trainer.compile=true" in str(issue) for issue in issues)


@pytest.mark.parametrize(
    ("overrides", "unserved"),
    [
        ((), set()),
        (("token_mixer.softcap=5",), {"sdpa"}),
        (("token_mixer=forgetting_attention", "position=none"), {"sdpa", "online"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) and value else "",
)
def test_check_refuses_a_kernel_that_cannot_shape_the_scores(overrides: tuple[str, ...], unserved: set[str]) -> None:
    refused = set()
    for name in ("auto", "eager", "sdpa", "online"):
        issues = check(compose(["experiment=gpt_code_small", f"trainer.attention={name}", *overrides]))
        assert len(issues) <= 1
        refused |= {name for issue in issues if f"trainer.attention={name} cannot serve" in str(issue)}
    assert refused == unserved
