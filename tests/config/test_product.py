"""Every combination of choices either trains or is refused with a reason; none crashes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.contracts import ROLES, Inputs, auxiliary_loss, parameter_roles
from tests.config import products
from tests.config.cover import layered_cover, legal_cover, refused_cover
from tests.config.legality import legal
from tests.config.product_batches import rows_of
from tests.support.every import every


def run_or_refuse(row: dict[str, str], updates: int = 1) -> str:
    """Return "refused" where the config is refused with a message, else "ran" after that many updates on real samples.

    Checks that losses are finite, that every weight has a gradient and a role, and that padding changes nothing.
    """
    composed = products.config(row)
    issues = check(composed)
    if issues:
        assert every(str(issue) and issue.text for issue in issues)
        return "refused"
    plan = Components(composed.config)
    variants = rows_of(row, plan)
    model = plan.model(0)
    assert [name for name, _, role in parameter_roles(model) if role not in ROLES] == []
    assert plan.optimizer.build(model).param_groups
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(updates):
        batch = plan.objective.ready(variants)
        loss = plan.objective.loss(model(batch), batch.target)
        auxiliary = auxiliary_loss(model.modules())  # added in training
        loss = loss if auxiliary is None else loss + auxiliary
        assert loss.isfinite()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # without norms a step of any length would diverge
        optimizer.step()
    silent = [name for name, weight in model.named_parameters() if weight.grad is None]
    # A strict mixer shows nothing of a token that is alone, such as the one channel of a series.
    assert not silent or plan.tokens().max_len == 1, f"no gradient reaches {silent}"
    if plan.data.spec.variable:
        blind_to_padding(row, plan, model)
    return "ran"


@torch.no_grad()
def blind_to_padding(row: dict[str, str], plan: Components, model: nn.Module) -> None:
    """Other symbols behind the ends of both rows change nothing."""
    model.eval()
    losses = []
    for padding in range(2):
        batch = plan.objective.ready(rows_of(row, plan, padding))
        losses.append(plan.objective.loss(model(batch), batch.target))
    assert_close(losses[0], losses[1])


DEFAULT_CHOICES = {
    "position": "none",
    "token_mixer": "attention",
    "channel_mixer": "mlp",
    "norm": "layer",
    "block": "pre_norm",
}
LISTOPS = {"data": "listops", "tokenizer": "symbols", "model": "encoder", "head": "mean_pool", "objective": "classify"}
PAIRS = {
    "data": "translation",
    "tokenizer": "byte",
    "model": "encoder_decoder",
    "head": "token",
    "objective": "translate",
}


GROUP = pytest.mark.xdist_group("product")  # which finds the legal rows once


@GROUP
@pytest.mark.parametrize(("row", "lost"), [(LISTOPS, "lengths"), (PAIRS, "source_lengths")])
def test_a_model_that_reads_padding_is_caught(row: dict[str, str], lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted, on either row: lengths that never arrive."""
    assert run_or_refuse(DEFAULT_CHOICES | row) == "ran"
    read = Inputs.of
    monkeypatch.setattr(Inputs, "of", lambda inputs, cache=None: replace(read(inputs, cache), **{lost: None}))
    with pytest.raises(AssertionError, match="not close"):
        run_or_refuse(DEFAULT_CHOICES | row)


@GROUP
@pytest.mark.parametrize("step", [24, pytest.param(1, marks=pytest.mark.full)])
def test_pairs_that_cannot_work_are_refused(step: int) -> None:
    """Every 24th of these pairs, in the full suite all of them."""
    configs = refused_cover(step)
    assert len(configs) > 10
    assert [row for row in configs if run_or_refuse(row) != "refused"] == []


@GROUP
@pytest.mark.parametrize("shard", [0, *(pytest.param(each, marks=pytest.mark.full) for each in range(1, 8))])
def test_legal_pairs_all_run(shard: int):
    """An eighth of the configs, in the full suite all."""
    configs = legal_cover(2)
    seen = {(family, name) for row in configs for family, name in row.items()}
    everything = {(family, name) for family, names in products.names().items() for name in names}
    assert seen == everything, f"every choice is legal somewhere, but {sorted(everything - seen)}"
    assert [row for row in configs[shard::8] if run_or_refuse(row) != "ran"] == []


@GROUP
@pytest.mark.parametrize("strength", [1, pytest.param(2, marks=pytest.mark.full)])
def test_kinds_of_layers_run_in_legal_rows(strength: int) -> None:
    """Every choice beside one choice of layers, in the full suite beside each."""
    rows = layered_cover(strength)
    mixers = {(row["layers"], row["token_mixer"]) for row in rows}
    assert {name for name, _ in mixers} == {*catalog.choices("layers")} - {"same"}
    assert len(mixers) > 40
    assert [row for row in rows if run_or_refuse(row) != "ran"] == []


@pytest.mark.full
@pytest.mark.parametrize("shard", range(8))
def test_legal_triples_all_run(shard: int):
    """The full product has too many rows to run. Rules speak of two choices at a time, most with the data, the
    tokenizer and the head beside; every three choices that can stand together do so in one of these rows, of which
    each makes two updates."""
    configs = legal_cover(3)
    assert every(map(legal, configs))
    assert [row for row in configs[shard::8] if run_or_refuse(row, 2) != "ran"] == []
