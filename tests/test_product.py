"""Every combination of choices either trains or is refused with a reason; none crashes."""

from __future__ import annotations

import pytest
import torch

from blockyard.assemble import Plan
from blockyard.check import check
from tests import products


def run_or_refuse(row: dict[str, str]) -> str:
    """Refused with words, or two updates with finite losses and a gradient for every weight."""
    composed = products.config(row)
    issues = check(composed)
    if issues:
        assert all(str(issue) and issue.text for issue in issues)
        return "refused"
    plan = Plan(composed.config)
    model = plan.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        batch = plan.objective.prepare(products.batch_for(plan))
        loss = plan.objective.loss(model(batch.inputs, batch.lengths, batch.segment), batch.target)
        assert loss.isfinite()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    silent = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not silent, f"no gradient reaches {silent}"
    return "ran"


def legal(row: dict[str, str]) -> bool:
    return not check(products.config(row))


def test_pairs_of_choices_run_or_are_refused():
    rows = products.pairwise()
    outcomes = [run_or_refuse(row) for row in rows]
    assert "refused" in outcomes
    assert len(rows) >= max(len(a) * len(b) for a in products.names().values() for b in products.names().values() if a is not b)


@pytest.mark.full
def test_full_product_runs_or_is_refused():
    outcomes = [run_or_refuse(row) for row in products.everything()]
    assert outcomes.count("ran") > 500


@pytest.mark.full
def test_legal_pairs_all_run():
    assert all(run_or_refuse(row) == "ran" for row in products.pairwise(legal))
