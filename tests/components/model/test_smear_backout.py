"""The smear of the token before, and what backout takes out of the stream: the formulas, and what holds of models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Inputs
from blockyard.model._block_stack import loops_problem
from blockyard.model._ngrams import Ngrams
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.ops.cache import cache_bytes
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.generate.decoding import beam, greedy, same_as_plain
from tests.support.helpers import LENGTH, tiny, token_ids
from tests.support.tiny import TEXT, configured

D = 16


def built(*, causal: bool = True, **more: Any) -> Any:
    return tiny(causal=causal, sizes={"packed": True}, **{"position": "none", "smear": True, **more})


@torch.no_grad()
def test_the_smear() -> None:
    """Token by token, and of documents that stay apart."""
    model, ids = built(), token_ids(1, LENGTH)
    plain = model.embedder(ids)[0][0]

    def smeared(start: int, end: int) -> torch.Tensor:
        mixed = []
        for t in range(start, end):
            before = plain[t - 1] if t > start else torch.zeros(D, dtype=plain.dtype)
            mixed.append(plain[t] + model.smear.weight * torch.sigmoid(model.smear.gate @ plain[t]) * before)
        return torch.stack(mixed)

    assert_close(model.steps(ids)["stream"][0], smeared(0, LENGTH))
    segment = torch.tensor([[0, 0, 0, *[1] * (LENGTH - 3)]])
    packed = model.steps(Inputs(ids, segment=segment))["stream"][0]
    assert_close(packed, torch.cat([smeared(0, 3), smeared(3, LENGTH)]))
    planted = smeared(0, LENGTH)
    model.smear.gate[0] += 1.0
    assert (model.steps(ids)["stream"][0] - planted).abs().max() > 1e-4


def test_the_gate_reads_the_first_channels() -> None:
    model = tiny(causal=True, smear=True, sizes={"dim": 32})
    assert model.smear.gate.shape == (24,)


@pytest.mark.parametrize("prefix", [NO_PREFIX, Prefix(registers=2)])
@pytest.mark.parametrize("backout", [None, 1])
def test_properties(prefix: Prefix, backout: int | None) -> None:
    model = built(prefix=prefix, backout=backout, ngrams=Ngrams((2,), 37))
    causality(model, LENGTH)
    cached_decoding(model, LENGTH)
    packing(model, LENGTH)
    padding(model, LENGTH)
    if not prefix:
        padding(built(causal=False, backout=backout), LENGTH)
        packing(built(causal=False, backout=backout), LENGTH)


@torch.no_grad()
@pytest.mark.parametrize("residual", ["add", "x0", "unet", "hyper"])
def test_backout(residual: str) -> None:
    """What the final norm reads is the stream without a multiple of the output of visit 2, of four."""
    sizes = {"depth": 3, "order": (0, 1, 2, 1)}
    model = tiny(causal=True, residual=residual, backout=2, sizes=sizes)
    ids = token_ids(2, LENGTH)
    steps = model.steps(ids)
    weight = model.backout.weight.clone()
    model.backout.weight.zero_()
    read: list[torch.Tensor] = []
    hook = model.final_norm.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    model(ids)
    hook.remove()
    assert_close(steps["normed"], model.final_norm(read[0] - weight * steps["block.1"]))
    assert not torch.allclose(steps["normed"], model.final_norm(read[0] - weight * steps["block.2"]))
    assert loops_problem(model) is not None


def test_a_smeared_model_starts_as_one_without() -> None:
    ids = token_ids(2, 8)
    plain = Components(configured(*TEXT, "tokenizer=char")[0]).model(0)
    smeared = Components(configured(*TEXT, "tokenizer=char", "model.smear=true")[0]).model(0)
    assert torch.equal(smeared(ids), plain(ids))
    out = Components(configured(*TEXT, "tokenizer=char", "model.backout=1")[0]).model(0)
    assert float(out.backout.weight) == pytest.approx(0.2)


def test_decoding() -> None:
    """By beams, with tokens taken back, and with the bytes of one vector beside those of the layers."""
    model, prompts = built(), [[1, 2, 3], [4, 5, 6]]
    assert greedy(model, prompts, cache=True)[0] == greedy(model, prompts, cache=False)[0]
    assert beam(model, prompts, width=3)[0] == beam(model, prompts, width=3, cache=False)[0]
    same_as_plain(model)
    cache, without = model.init_cache(1), tiny(causal=True, position="none").init_cache(1)
    more = []
    for each, of in ((cache, model), (without, tiny(causal=True, position="none"))):
        of(Inputs(token_ids(1, 4)), each)
        more.append(cache_bytes(each))
    assert more[0] - more[1] == (D + 1) * 8  # and a coordinate


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("data=breast_cancer", "tokenizer=columns", "position=none", "model.smear=true"), "a set without an order"),
        (("experiment=gpt_code_small", "model.backout=3"), "use model.backout=1"),
        (("experiment=gpt_code_small", "model.depth=1", "model.backout=1"), "a larger model.depth"),
        (("experiment=gpt_code_small", "model.backout=0"), "model.backout"),
    ],
)
def test_refusals(overrides: tuple[str, ...], says: str) -> None:
    issues = check(compose([*overrides, "logger=none"]))
    assert [issue for issue in issues if says in str(issue)], issues
