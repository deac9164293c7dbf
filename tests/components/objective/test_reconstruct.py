"""head=reconstruct: the formula, that nothing but the last token matters, and what it does not go with."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Seq
from tests.support.helpers import LENGTH, tiny, token_ids
from tests.support.tiny import ON_CPU, configured

COMPRESSION = (*ON_CPU, "data=compression", "tokenizer=symbols", "objective=answer", "head=reconstruct", "model.dim=16")


@pytest.mark.parametrize("causal", [False, True])
def test_the_formula(causal: bool) -> None:
    model = tiny(causal=causal, head="reconstruct")
    ids = token_ids(2, LENGTH)
    x, head = model.steps(ids)["normed"], model.head
    for n in range(LENGTH):
        h = (x[:, -1] + head.codes[n]) @ head.hidden.weight.T + head.hidden.bias
        h = h * (1 + torch.erf(h / math.sqrt(2))) / 2
        assert_close(model(ids)[:, n], h @ head.proj.weight.T)
    planted = x[:, 0] + head.codes[0]
    assert not torch.allclose(planted, x[:, -1] + head.codes[0])
    with pytest.raises(ValueError, match="codes of 6 positions, and the sequence has 4"):
        model(ids[:, :4])


@pytest.mark.parametrize("model", ["encoder", "decoder"])
def test_it_trains(model: str) -> None:
    components = Components(configured(*COMPRESSION, f"model={model}", "data.samples=64", "data.eval_samples=8")[0])
    network, split = components.model(0), components.data.load(components.tokenizer).train
    batch = components.objective.ready(split.batch(torch.arange(32), None))
    optimizer, losses = components.optimizer.build(network), []
    for _ in range(30):
        loss = components.objective.loss(network(batch), batch.target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("experiment=gpt_code_small", "head=reconstruct"), "reads the last token for all of them"),
        (("experiment=gpt_code_small", "head=reconstruct", "data.packed=true"), "head"),
        ((*COMPRESSION, "trainer.extrapolate=[2]", "model=decoder"), "extrapolate"),
    ],
)
def test_refusals(overrides: tuple[str, ...], says: str) -> None:
    text = " ".join(map(str, check(compose([*overrides, "logger=none"]))))
    assert says in text


def test_predictions_come_back_in_the_units_of_the_inputs() -> None:
    """As of head=token: times the size that the embedder took out, plus its offset."""
    overrides = (*ON_CPU, "data=digits", "tokenizer=patch", "model=encoder", "model.dim=16", "objective=restore")
    components = Components(configured(*overrides, "head=reconstruct")[0])
    head = components.model(0).head
    assert head.rescaled
    x = torch.randn(2, len(head.codes), 16)
    seq = Seq(torch.arange(x.shape[1]), torch.zeros(2, x.shape[1], 1))
    raw = head(x, seq)
    offset, size = torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([[[3.0]], [[0.5]]])  # (B, 1, C)
    seq = Seq(torch.arange(x.shape[1]), torch.zeros(2, x.shape[1], 1), scale=(offset, size))
    assert_close(head(x, seq), raw * size + offset)
