"""Several targets of one token: of the same logits, and with a head for each, against loops over tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, auxiliary_loss
from blockyard.objective.next_token import NextToken
from blockyard.ops import projection
from blockyard.ops.projection import Projection, deferred
from tests.support.every import every
from tests.support.helpers import VOCABULARY, tiny, token_ids
from tests.support.tolerances import FLOAT64

IDS = token_ids(3, 9)
SEGMENT = torch.tensor([[0] * 9, [0] * 4 + [1] * 5, [0, 0, 0, 1, 1, 2, 2, 2, 2]])
LENGTHS = torch.tensor([9, 6, 2])


def expected(logs: Tensor, ids: Tensor, k: int, ends: list[list[int]]) -> float:
    """The mean over sequences and tokens n of what token n + k costs, where it is of the document of token n.

    logs: (B, N - 1, V); ends: for each token id the end of its document
    """
    costs = [
        -float(logs[row, n, ids[row, n + k]])
        for row in range(len(ids))
        for n in range(logs.shape[1])
        if n + k < ends[row][n]
    ]
    return sum(costs) / len(costs) if costs else 0.0


def ends_of(facts: str) -> list[list[int]]:
    if facts == "packed":
        return [[max(m for m in range(9) if row[m] == row[n]) + 1 for n in range(9)] for row in SEGMENT.tolist()]
    return [[9] * 9 if facts == "plain" else [int(length)] * 9 for length in LENGTHS]


def batch_of(facts: str) -> Batch:
    extra = {"plain": {}, "packed": {"segment": SEGMENT}, "padded": {"lengths": LENGTHS}}[facts]
    return NextToken().prepare(Batch(IDS, **extra))


FACTS = ["plain", "packed", "padded"]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("facts", FACTS)
def test_same_logits_for_several_targets(facts: str, chunked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3, 8, 5), (VOCABULARY, 5)))
    logits, batch = x @ weight.T, batch_of(facts)
    prediction = Projection(x, weight) if chunked else logits
    for ahead, share in ((1, 0.5), (3, 0.5), (4, 0.25), (20, 1.0)):
        loss = NextToken(ahead=ahead, ahead_weight=share).loss(prediction, batch.target)
        by_loop = sum(
            share ** (k - 1) * expected(logits.log_softmax(-1), IDS, k, ends_of(facts))
            for k in range(1, min(ahead, 8) + 1)
        )
        assert float(loss) == pytest.approx(by_loop, rel=1e-9)
    planted = NextToken(ahead=3).loss(prediction, batch.target.roll(1, 1))
    assert float(planted) != pytest.approx(float(NextToken(ahead=3).loss(prediction, batch.target)), rel=1e-3)


def test_metrics_are_of_the_next_token_and_gradients_of_all() -> None:
    logits = torch.randn(2, 6, VOCABULARY, dtype=torch.float64, requires_grad=True)
    target = token_ids(2, 6)
    (one,) = torch.autograd.grad(NextToken().loss(logits, target), logits)
    (three,) = torch.autograd.grad(NextToken(ahead=3).loss(logits, target), logits)
    assert not torch.allclose(one, three)
    metric = NextToken(ahead=3).metrics()["loss"]
    metric.update(logits.detach(), target)
    assert float(metric.compute()) == pytest.approx(float(F.cross_entropy(logits.flatten(0, 1), target.flatten())))


@pytest.mark.parametrize("facts", FACTS)
@pytest.mark.parametrize("options", [{}, {"scale": 0.5, "softcap": 2.0, "bias": True}, {"tied": True}])
def test_a_head_for_each_target(options: dict[str, float], facts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token of a sequence is no input, so further losses end one token earlier."""
    sizes = {"variable": facts == "padded", "packed": facts == "packed"}
    model = tiny(
        causal=True, head="multi_token", options={"head": {"further": 3, "weight": 0.7, **options}}, sizes=sizes
    )
    batch, head = batch_of(facts), model.head
    plain = model(batch)
    assert head.auxiliary is None  # in evaluation
    x = model.steps(batch)["normed"]
    model.train()
    assert torch.equal(model(batch), plain)
    by_loop = 0.0
    for k, layer in enumerate(head.further, start=2):
        h = x + F.silu(x @ layer.weight.T + layer.bias)
        logits = options.get("scale", 1.0) * F.linear(h, head.proj.weight, head.proj.bias)
        cap = options.get("softcap")
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        last = [[min(end, 8) for end in row] for row in ends_of(facts)]
        if facts == "padded":
            last = [[min(end, int(length) - 1) for end in row] for row, length in zip(last, LENGTHS, strict=True)]
        by_loop += 0.7 / 3 * expected(logits.log_softmax(-1), IDS, k, last)
    loss = auxiliary_loss(model.modules())
    assert float(loss) == pytest.approx(by_loop, rel=1e-9)
    monkeypatch.setattr(projection, "LOGITS", 1)
    with deferred():
        assert isinstance(model(batch), Projection)
    torch.testing.assert_close(auxiliary_loss(model.modules()), loss, **FLOAT64)
    model(batch)
    auxiliary_loss(model.modules()).backward()
    assert every(p.grad.abs().sum() > 0 for p in head.further.parameters())


def test_a_sequence_too_short_for_a_further_target_adds_nothing() -> None:
    model = tiny(causal=True, head="multi_token").train()
    model(token_ids(2, 2))
    loss = auxiliary_loss(model.modules())
    assert float(loss) == 0
    loss.backward()
    assert every(p.grad is not None and not p.grad.any() for p in model.head.further.parameters())
    model.zero_grad()
    model = tiny(causal=True, head="multi_token", sizes={"variable": True}).train()
    model(Batch(token_ids(2, 6), lengths=torch.tensor([1, 2])))
    auxiliary_loss(model.modules()).backward()
    assert every(p.grad is not None and not p.grad.any() for p in model.head.further.parameters())
    assert math.isfinite(float(NextToken(ahead=3).loss(torch.zeros(1, 1, 5), torch.tensor([[2]]))))


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="use model=decoder"):
        tiny(head="multi_token")
    text = " ".join(map(str, check(compose(["experiment=vit_digits", "head=multi_token", "logger=none"]))))
    assert "head" in text
    context = ["experiment=gpt_code_small", "trainer=context", "trainer.accelerator=cpu", "logger=none"]
    text = " ".join(map(str, check(compose([*context, "objective.ahead=2"]))))
    assert "objective.ahead=2 reads later targets" in text
    assert "head=token" in " ".join(map(str, check(compose([*context, "head=multi_token"]))))
