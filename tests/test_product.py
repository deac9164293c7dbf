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
        loss = plan.objective.loss(model(**batch.arguments()), batch.target)
        assert loss.isfinite()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    silent = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not silent, f"no gradient reaches {silent}"
    return "ran"


def test_pairs_of_choices_run_or_are_refused():
    outcomes = [run_or_refuse(row) for row in products.pairwise()]
    assert "refused" in outcomes


def test_legal_pairs_all_run():
    rows = products.pairwise(products.legal)
    seen = {(family, name) for row in rows for family, name in row.items()}
    everything = {(family, name) for family, names in products.names().items() for name in names}
    assert seen == everything, "every choice is legal somewhere"
    assert [row for row in rows if run_or_refuse(row) != "ran"] == []


@pytest.mark.full
@pytest.mark.parametrize("shard", range(8))
def test_full_product_runs_or_is_refused(shard: int):
    """Every row that no rule refuses goes through `check` and trains; of the others, which are refused by
    rules of two families each and so met by the pairs above, every hundredth goes through `check` too."""
    legal, refused = [], []
    for row in products.everything():
        (legal if products.legal(row) else refused).append(row)
    outcomes = [run_or_refuse(row) for row in legal[shard::8]]
    assert outcomes.count("ran") > 100
    assert {run_or_refuse(row) for row in refused[shard::800]} == {"refused"}
