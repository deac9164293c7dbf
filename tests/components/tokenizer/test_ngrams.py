"""Vectors of n-grams: the formula, and what holds of models that have them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Inputs
from blockyard.errors import UserError
from blockyard.generate.compiled_step import check_compiles
from blockyard.model._ngrams import MULTIPLIERS, Ngrams
from blockyard.model._prefix import NO_PREFIX, Prefix
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.generate.decoding import beam, greedy, same_as_plain
from tests.support.helpers import LENGTH, VOCABULARY, tiny, token_ids

ROWS = 37
BOTH = Ngrams((2, 3), ROWS)


def built(ngrams: Ngrams = BOTH, *, causal: bool = True, **more: object) -> nn.Module:
    return tiny(causal=causal, position="none", ngrams=ngrams, sizes={"packed": True}, **more)


def added(model: nn.Module, ids: list[int | None]) -> torch.Tensor:
    """The sum of the rows of each token, written out; None stands for a token without an id. -> (N, D)"""
    vectors = []
    for t in range(len(ids)):
        vector = torch.zeros(model.ngrams.table.shape[-1], dtype=torch.float64)
        for table, size in zip(model.ngrams.table, (2, 3), strict=True):
            number = 0
            for back in range(size):
                before = ids[t - back] if t >= back else None
                number += MULTIPLIERS[back] * (0 if before is None else before + 1)
            vector = vector + table[number % ROWS]
        vectors.append(vector)
    return torch.stack(vectors)


@torch.no_grad()
def test_the_formula() -> None:
    """Of a plain sequence, of documents that stay apart, of padding, and of a hidden token."""
    model, ids = built(), token_ids(1, LENGTH)
    plain = model.embedder(ids)[0][0]
    own = ids[0].tolist()
    assert_close(model.steps(ids)["stream"][0], plain + added(model, own))
    segment = torch.tensor([[0, 0, 0, *[1] * (LENGTH - 3)]])
    packed = model.steps(Inputs(ids, segment=segment))["stream"][0]
    assert_close(packed, plain + torch.cat([added(model, own[:3]), added(model, own[3:])]))
    padded = model.steps(Inputs(ids, lengths=torch.tensor([4])))["stream"][0]
    assert_close(padded[:4], (plain + added(model, own))[:4])


@torch.no_grad()
def test_a_hidden_token_tells_nobody_its_id() -> None:
    model = built(causal=False)
    hides = tiny(causal=False, position="none", ngrams=BOTH, sizes={"hides": True})
    ids = token_ids(1, LENGTH)
    hidden = torch.zeros_like(ids, dtype=torch.bool)
    hidden[0, 2] = True
    other = ids.clone()
    other[0, 2] = (ids[0, 2] + 1) % VOCABULARY
    assert_close(hides(Inputs(ids, hidden=hidden)), hides(Inputs(other, hidden=hidden)), rtol=0, atol=0)
    assert not torch.equal(model(ids), model(other))


@pytest.mark.parametrize("prefix", [NO_PREFIX, Prefix(registers=2)])
def test_properties(prefix: Prefix) -> None:
    model = built(prefix=prefix)
    causality(model, LENGTH)
    cached_decoding(model, LENGTH)
    packing(model, LENGTH)
    padding(model, LENGTH)
    if not prefix:
        packing(built(causal=False), LENGTH)
        padding(built(causal=False), LENGTH)


@torch.no_grad()
def test_models_start_as_without() -> None:
    """The table starts at zero, so that initial outputs are those of a model without it."""
    model, plain = built(), built(Ngrams())
    model.ngrams.table.zero_()
    state = {name: value for name, value in model.state_dict().items() if name != "ngrams.table"}
    plain.load_state_dict(state)
    ids = token_ids(2, LENGTH)
    assert torch.equal(model(ids), plain(ids))


def test_decoding() -> None:
    """Greedy, by a beam that reorders sequences, and speculatively, which takes tokens back: as without a cache."""
    model = built()
    prompts = [[1, 2, 3, 4], [5, 6, 7, 8]]
    expected, _ = greedy(model, prompts, cache=False)
    assert greedy(model, prompts, cache=True)[0] == expected
    assert beam(model, prompts, width=3)[0] == beam(model, prompts, width=3, cache=False)[0]
    same_as_plain(model)
    with pytest.raises(UserError, match="not InputCache"):
        check_compiles(model)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("experiment=vit_digits", "model.ngrams=[2]"), "looks up token ids"),
        (("experiment=gpt_code_small", "model.ngram_rows=9"), "no effect without model.ngrams"),
        (("experiment=gpt_code_small", "model.ngrams=[2,2]"), "each size once"),
        (("experiment=gpt_code_small", "model.ngrams=[1]"), "expected a list of int >= 2"),
        (("experiment=gpt_code_small", "model.ngram=[2]"), "has no option"),
    ],
)
def test_refusals(overrides: tuple[str, ...], says: str) -> None:
    issues = check(compose([*overrides, "logger=none"]))
    assert [issue for issue in issues if says in str(issue)], issues
