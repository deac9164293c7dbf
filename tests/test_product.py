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


def test_pairs_that_cannot_work_are_refused():
    assert [row for row in products.refused_cover() if run_or_refuse(row) != "refused"] == []


@pytest.mark.parametrize("shard", range(4))
def test_legal_pairs_all_run(shard: int):
    rows = products.legal_cover(2)
    seen = {(family, name) for row in rows for family, name in row.items()}
    everything = {(family, name) for family, names in products.names().items() for name in names}
    assert seen == everything, f"every choice is legal somewhere, but {sorted(everything - seen)}"
    assert [row for row in rows[shard::4] if run_or_refuse(row) != "ran"] == []


@pytest.mark.full
@pytest.mark.parametrize("shard", range(8))
def test_legal_triples_all_run(shard: int):
    """The full product has too many rows to run. Rules speak of two choices at a time, most with the data, the
    tokenizer and the head beside; every three choices that can stand together do so in one of these rows."""
    rows = products.legal_cover(3)
    assert all(map(products.legal, rows))
    assert [row for row in rows[shard::8] if run_or_refuse(row) != "ran"] == []
