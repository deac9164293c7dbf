"""A mixture of experts in training: its shift and loads over micro-batches, processes, resumes and recomputation."""

from __future__ import annotations

import copy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.channel_mixer import experts
from blockyard.channel_mixer.experts import Experts
from blockyard.commands import check as check_command
from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.size_matching import flops_by_module
from blockyard.contracts import HasAuxiliary, auxiliary_loss
from blockyard.engine.context_parallel import model_problems
from blockyard.engine.faults import causality_probe
from blockyard.engine.module import checkpoint_blocks
from blockyard.errors import UserError
from blockyard.optimizer._param_groups import hidden_matrices, split_by_decay
from tests.engine.lightning.process_runs import NO_DROPOUT, trained
from tests.support.engine_runs import assert_same_bits, killed_at, rows, run, state
from tests.support.every import every
from tests.support.tiny import DECODER, configured

BIAS = ("channel_mixer=experts", "channel_mixer.count=4", "channel_mixer.balance=bias", "channel_mixer.bias_rate=0.01")
SMALL = ("logger=none", "trainer=cpu", "data=digits", "model.dim=16", "model.depth=2", "model.heads=2")
OFFSET = "model.blocks.0.channel_mixer.offset"


def components(*overrides: str) -> Components:
    return Components(configured(*SMALL, *overrides)[0])


@pytest.mark.full
def test_a_killed_run_goes_on_with_its_shift(tmp_path: Path) -> None:
    """Also in the middle between two rows of the log, whose loads are those of the last step."""
    overrides = (*BIAS, "callbacks.checkpoint.every=3", "trainer.max_steps=12", "trainer.accumulate=2")
    whole = run(tmp_path / "whole", *overrides)
    assert state(whole)[OFFSET].abs().max() > 0
    assert killed_at(7, tmp_path / "killed", *overrides) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", *overrides), whole)
    last = rows(whole)[-1]
    assert last["train/load_max.0"] >= 1
    assert 0 < last["train/load_entropy.0"] <= 1


def test_micro_batches_shift_as_the_whole_batch_does(tmp_path: Path) -> None:
    short = (*BIAS, *NO_DROPOUT, "trainer.max_steps=3", "trainer.eval_every=3")
    whole = run(tmp_path / "whole", *short)
    parts = run(tmp_path / "parts", *short, "trainer.accumulate=4")
    assert state(whole)[OFFSET].abs().max() > 0
    assert rows(whole)[-1]["train/load_max.0"] >= 1
    assert_close(state(parts)[OFFSET], state(whole)[OFFSET])


@pytest.mark.full
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_shift_as_one_does(tmp_path: Path, kind: str) -> None:
    one = run(tmp_path / "one", *NO_DROPOUT, *BIAS)
    two = trained(tmp_path / "two", kind, *BIAS)
    for left, right in zip(rows(two), rows(one), strict=True):
        losses = {key: value for key, value in right.items() if key.endswith("loss")}
        assert {key: left[key] for key in losses} == pytest.approx(losses, rel=1e-3)
    # A token between two experts may go to the other one by rounding, which moves a shift by two steps of it.
    assert_close(state(two)[OFFSET], state(one)[OFFSET], rtol=0, atol=0.021)


def gradients(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """The gradient of each parameter, auxiliary losses included."""
    loss = model(batch).square().mean()
    extra = auxiliary_loss(model.modules())
    assert extra is not None
    (loss + extra).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_recomputed_blocks_count_loads_and_losses_once() -> None:
    """A second pass in the backward pass changes no gradient, no load, and leaves no loss behind."""
    parts = components("channel_mixer=experts", "channel_mixer.z_loss=0.1", "channel_mixer.weight=1")
    batch = parts.objective.ready(parts.load().train.batch(torch.arange(4), 1))
    plain = parts.model(0).train()
    again = copy.deepcopy(plain)
    checkpoint_blocks(again)
    expected, computed = gradients(plain, batch), gradients(again, batch)
    assert expected.keys() == computed.keys()
    for name, gradient in computed.items():
        assert torch.equal(gradient, expected[name]), name
    loads = [dict(model.named_buffers())["blocks.0.channel_mixer.loads"] for model in (plain, again)]
    assert torch.equal(*loads)
    assert every(module.auxiliary is None for module in again.modules() if isinstance(module, HasAuxiliary))
    copy.deepcopy(again)  # which a loss that stays behind would prevent


@pytest.mark.parametrize("checkpointed", [False, True])
def test_every_visit_of_a_block_has_a_loss(checkpointed: bool) -> None:
    """A block that is visited twice adds both losses, as two blocks with its weights do."""
    overrides = ("channel_mixer=experts", "channel_mixer.weight=1", "model.depth=1", "model.order=[0,0]")
    parts = components(*overrides)
    batch = parts.objective.ready(parts.load().train.batch(torch.arange(4), 1))
    model = parts.model(0).train()
    twice = components(*overrides[:2], "model.depth=2").model(0).train()
    for block in twice.blocks:
        block.load_state_dict(model.blocks[0].state_dict())
    rest = {name: value for name, value in model.state_dict().items() if not name.startswith("blocks.")}
    twice.load_state_dict(rest, strict=False)
    if checkpointed:
        checkpoint_blocks(model)
    expected, computed = gradients(twice, batch), gradients(model, batch)
    name = "channel_mixer.router.weight"
    assert_close(computed[f"blocks.0.{name}"], expected[f"blocks.0.{name}"] + expected[f"blocks.1.{name}"])


def test_muon_and_weight_decay_take_every_matrix_of_every_expert() -> None:
    model = components("channel_mixer=experts", "channel_mixer.shared=1").model(0)
    muon = {id(p) for p in hidden_matrices(model)}
    decayed = {id(p) for p in split_by_decay(model)[0]}
    for name, parameter in model.named_parameters():
        if ".channel_mixer." in name:
            assert parameter.ndim == 2, name
            assert id(parameter) in muon & decayed, name


@pytest.mark.parametrize(("option", "refused"), [("capacity=1.5", True), ("balance=bias", False)])
def test_sequences_that_are_cut_among_processes_need_no_capacity(option: str, refused: bool) -> None:
    overrides = ("data=code", "data.context=12", "tokenizer=byte", *DECODER, *SMALL[3:], "logger=none")
    model = Components(configured(*overrides, "channel_mixer=experts", f"channel_mixer.{option}")[0]).meta_model()
    assert any("capacity" in problem for problem in model_problems(model, 2)) == refused


@pytest.mark.parametrize(
    "options", [(), ("channel_mixer.shared=1",), ("channel_mixer.route=expert", "channel_mixer.balance=none")]
)
def test_flops_on_the_meta_device_are_those_that_are_computed(options: tuple[str, ...]) -> None:
    parts = components("channel_mixer=experts", *options)
    counts = [flops_by_module(model, parts.context())[""] for model in (parts.meta_model(), parts.model(0))]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("mixer", ["channel_mixer=experts", "token_mixer=beside", "token_mixer=cycle"])
def test_the_table_counts_flops_of_parts_in_a_list_once(mixer: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = ("data=code", "tokenizer=byte", "position=none", *DECODER, "data.context=16")
    overrides = [*SMALL, *text, mixer]
    assert check_command.check(*overrides) == 0
    (total,) = (line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.startswith("sum"))
    built = Components(configured(*overrides)[0])
    assert int(total.replace(",", "")) == flops_by_module(built.meta_model(), built.context())[""]


def test_a_causal_model_refuses_experts_that_choose_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rule before anything is computed; where it is bypassed, the look at the start of a run catches it."""
    overrides = ("data=code", "data.context=12", "tokenizer=byte", *DECODER, "channel_mixer=experts", *SMALL[3:])
    overrides = (*overrides, "channel_mixer.route=expert", "channel_mixer.balance=none", "logger=none")
    (issue,) = check(compose(overrides))
    assert "lets later tokens decide about earlier ones" in issue.text
    monkeypatch.setattr(Experts, "mixes_tokens", lambda options: False)
    monkeypatch.setattr(experts, "_check_route", lambda *_: None)
    monkeypatch.setattr(causality_probe, "_foreign", lambda _: ["blockyard.channel_mixer.experts.Experts"])
    parts = Components(compose(overrides).config)
    with pytest.raises(UserError, match="reads later tokens"):
        causality_probe.check_foreign(parts, parts.model(0), parts.load().train)
    parts = Components(compose([*overrides, "channel_mixer.route=token"]).config)
    causality_probe.check_foreign(parts, parts.model(0), parts.load().train)
    equal = (
        "data=associative_recall",
        "tokenizer=symbols",
        *DECODER,
        "channel_mixer=experts",
        *SMALL[3:],
        "logger=none",
    )
    parts = Components(compose([*equal, "objective=answer"]).config)  # a split whose lengths are None: all are equal
    causality_probe.check_foreign(parts, parts.model(0), parts.load().train)
