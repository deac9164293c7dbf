"""DeepSeek's modules for later tokens against their equations, sequence by sequence and document by document."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, auxiliary_loss, blocks_of_heads
from blockyard.model._layer_numbers import layer_numbers
from blockyard.model._prefix import Prefix
from blockyard.objective.next_token import NextToken
from blockyard.ops import projection
from blockyard.ops.projection import Projection, deferred
from blockyard.optimizer.adamw import AdamW
from tests.support.every import every
from tests.support.helpers import tiny, token_ids
from tests.support.tolerances import FLOAT64

IDS = token_ids(3, 9)
SEGMENT = torch.tensor([[0] * 9, [0] * 4 + [1] * 5, [0, 0, 0, 1, 1, 2, 2, 2, 2]])
LENGTHS = torch.tensor([9, 6, 2])


def batch_of(facts: str) -> Batch:
    extra = {"plain": {}, "packed": {"segment": SEGMENT}, "padded": {"lengths": LENGTHS}}[facts]
    return NextToken().prepare(Batch(IDS, **extra))


def built(position: str = "none", facts: str = "plain", *, further: int = 2, **options: Any) -> Any:
    sizes = {"variable": facts == "padded", "packed": facts == "packed"}
    picks = {"head": "mtp_modules", "position": position, "norm": "rms"}
    head = {"further": further, "weight": 0.7, **options}
    return tiny(causal=True, options={"head": head}, sizes=sizes, **picks)


def rms(x: Tensor, norm: Any) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def documents(facts: str) -> list[tuple[int, int, int]]:
    """(row, start, end) of each document of the inputs, which lack the last token of the ids."""
    if facts == "packed":
        segments = SEGMENT[:, :-1].tolist()
        return [(b, row.index(s), len(row) - row[::-1].index(s)) for b, row in enumerate(segments) for s in set(row)]
    return [(b, 0, 8 if facts == "plain" else min(8, int(LENGTHS[b]) - 1)) for b in range(len(IDS))]


def by_loop(model: Any, x: Tensor, facts: str, scale: float = 1.0) -> float:
    """Eq. 21 to 25, on sequences of T - k tokens."""
    costs: dict[int, list[Tensor]] = {k: [] for k in range(1, len(model.head.ahead) + 1)}
    for row, start, end in documents(facts):
        ids, h = IDS[row : row + 1, start:end], x[row : row + 1, start:end]
        for k, module in enumerate(model.head.ahead, start=1):
            if ids.shape[1] <= k:
                break
            later = model.embedder.table[ids[:, k:]]
            h = torch.cat([rms(h[:, : later.shape[1]], module.stream_norm), rms(later, module.token_norm)], -1)
            _, seq = model.embedder(ids[:, : h.shape[1]])
            seq.position = model.position
            h = module.block(h @ module.join.weight.T, seq)
            logs = (scale * rms(h, module.final_norm) @ model.head.proj.weight.T).log_softmax(-1)
            target = ids[:, k + 1 :]
            costs[k] += list(-logs[:, : target.shape[1]].gather(-1, target[..., None]).flatten())
    means = [torch.stack(values).mean() if values else torch.zeros(()) for values in costs.values()]
    return 0.7 * float(sum(means)) / len(means)


@pytest.mark.parametrize(
    ("position", "facts", "options"),
    [
        ("rope", "plain", {}),
        ("alibi", "plain", {"tied": True}),
        ("none", "packed", {"scale": 0.5}),
        ("none", "padded", {"further": 3}),
    ],
)
def test_the_equations(position: str, facts: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = built(position, facts, **options), batch_of(facts)
    plain = model(batch)
    assert model.head.auxiliary is None  # in evaluation
    x = model.steps(batch)["normed"]
    model.train()
    assert torch.equal(model(batch), plain)
    loss = auxiliary_loss(model.modules())
    assert float(loss) == pytest.approx(by_loop(model, x, facts, options.get("scale", 1.0)), rel=1e-9)
    monkeypatch.setattr(projection, "LOGITS", 1)
    with deferred():
        assert isinstance(model(batch), Projection)
    torch.testing.assert_close(auxiliary_loss(model.modules()), loss, **FLOAT64)
    model(batch)
    auxiliary_loss(model.modules()).backward()
    assert every(p.grad.abs().sum() > 0 for p in model.head.ahead.parameters())
    assert model.embedder.table.grad.abs().sum() > 0  # shared


def test_planted_differences_are_caught() -> None:
    """Another order of the two inputs, and a token that is one too late."""
    model, batch = built(), batch_of("plain")
    x = model.steps(batch)["normed"]
    model.train()
    expected = by_loop(model, x, "plain")
    with torch.no_grad():
        weight = model.head.ahead[0].join.weight
        weight.copy_(weight.roll(weight.shape[1] // 2, 1))
    model(batch)
    assert float(auxiliary_loss(model.modules())) != pytest.approx(expected, rel=1e-3)
    with torch.no_grad():
        weight.copy_(weight.roll(weight.shape[1] // 2, 1))
    batch.inputs = batch.inputs.roll(1, 1)
    model(batch)
    assert float(auxiliary_loss(model.modules())) != pytest.approx(expected, rel=1e-3)


def test_no_module_sees_what_it_predicts() -> None:
    """The gradient of each token's loss with respect to later embeddings than that of token i + k is zero."""
    model, ids = built(further=1).train(), token_ids(1, 8)
    _, seq = model.embedder(ids)
    seq.position = model.position
    vectors = model.embedder.table[ids].detach().requires_grad_()
    module = model.head.ahead[0]
    later = F.pad(vectors[:, 1:], (0, 0, 0, 1))
    h = module(torch.zeros_like(vectors), later, seq)
    (gradient,) = torch.autograd.grad(h[0, 3].sum(), vectors)
    assert gradient[0, 4].abs().sum() > 0
    assert gradient[0, 5:].abs().sum() == 0


def test_registers_are_no_tokens() -> None:
    """In front of a sequence they change what is read, and no token is looked up for them."""
    options = {"head": {"further": 1, "weight": 0.7}}
    model = tiny(causal=True, head="mtp_modules", prefix=Prefix(registers=2), options=options).train()
    model(token_ids(2, 6))
    loss = auxiliary_loss(model.modules())
    loss.backward()
    assert torch.isfinite(loss)


def test_too_short_sequences_add_nothing() -> None:
    model = built().train()
    model(token_ids(2, 2))
    loss = auxiliary_loss(model.modules())
    assert float(loss) == 0
    loss.backward()
    assert every(p.grad is not None and not p.grad.any() for p in model.head.ahead.parameters())


def test_layer_decay_counts_the_blocks_of_the_model() -> None:
    model = built()
    assert len(blocks_of_heads(model)) == 2
    numbers = layer_numbers(model)
    assert numbers["blocks.1.token_mixer.proj_in.weight"] == 2
    assert numbers["head.ahead.0.block.token_mixer.proj_in.weight"] == numbers["head.proj.weight"] == 3
    rates = {group["lr"] for group in AdamW(lr=1.0, layer_decay=0.5).build(model).param_groups}
    assert max(rates) == 1.0


def test_refusals() -> None:
    small = ["experiment=gpt_code_small", "head=mtp_modules", "logger=none"]
    assert check(compose(small)) == []
    concat = [*small, "position=sinusoidal", "position.combine=concat", "position.width=8", "head.tied=false"]
    assert "without concatenated positions" in " ".join(map(str, check(compose(concat))))
    last = [*small, "model.depth=2", "layers.pattern=[base,late]", "layers.kinds.late=[token_mixer.kv_every=0]"]
    assert "token_mixer" in " ".join(map(str, check(compose(last))))
    ring = [*small, "trainer=context", "trainer.accelerator=cpu"]
    assert "head=token" in " ".join(map(str, check(compose(ring))))
    source = ["experiment=translate_dates", "head=mtp_modules", "logger=none"]
    assert "does not build them" in " ".join(map(str, check(compose(source))))
