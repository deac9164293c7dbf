"""Speculative decoding: greedily the tokens of plain decoding, sampled with their distribution, and its statistics."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor, nn

from blockyard.config.build import Components
from blockyard.contracts import Inputs, Kind, Seq
from blockyard.errors import UserError
from blockyard.generate import speculative
from blockyard.generate.draft import ModelDraft, NgramDraft, follow
from blockyard.generate.sampling import Sampler
from blockyard.generate.speculative import SpeculativeStats, expected_tokens, residual, speculate, verify
from blockyard.layers.pattern import Pattern
from blockyard.model._prefix import Prefix
from blockyard.ops.cache import KVCache, WindowCache
from blockyard.token_mixer._caches import InputCache
from tests.generate.decoding import PROMPT, HalfRight, greedy, same_as_plain, written
from tests.support.helpers import choices, combinations, cycle_model, factory, tiny, traits
from tests.support.tiny import configured


def decoders() -> list[Any]:
    """Every mixer of a decoder of text with a scheme of positions, attention with three; the other pairs are `full`."""
    cases, pairs = [], combinations("causal")
    for mixer in choices("token_mixer"):
        if not traits(mixer).causal or 1 not in traits(mixer).axes:
            continue
        legal = [position for name, position, axes in pairs if name == mixer and axes == 1]
        positions = [position for position in ("rope", "learned", "none") if position in legal]
        for number, position in enumerate(positions):
            marks = [pytest.mark.full] if number and mixer != "attention" else []
            cases.append(pytest.param(mixer, position, marks=marks))
    return cases


@pytest.mark.parametrize(("mixer", "position"), decoders())
@pytest.mark.sampled(3)
def test_greedy_tokens_are_those_of_plain_decoding(mixer: str, position: str) -> None:
    model = tiny(causal=True, token_mixer=mixer, position=position)
    same_as_plain(model)
    same_proposals(model)


def test_a_model_that_sees_the_source_reads_it_in_one_pass() -> None:
    """Of a cache that cannot be cropped, with nothing behind the source but the start token."""
    overrides = ["data=translation", "data.joined=true", "tokenizer=byte", "model=decoder", "model.sees=source"]
    sizes = ["model.dim=16", "model.depth=1", "model.heads=2", "token_mixer.conv=3"]
    config, _ = configured(*overrides, *sizes, "objective=next_token", "head=token", "logger=none")
    model = Components(config).model(0).eval()
    assert model.ctx.tokens.start is not None
    prompt, sampler, stats = [*b"Monday", model.ctx.tokens.start], Sampler(0.0, None, 0), SpeculativeStats()
    expected, _ = greedy(model, [prompt], cache=True, max_tokens=8)
    draft = HalfRight(expected[0], 2)
    rounds = speculate(model, prompt, draft, sampler, draft_tokens=3, max_tokens=8, cache=True, stats=stats)
    assert list(chain(*rounds)) == expected[0]
    assert 0 < stats.accepted < sum(stats.proposals)


def same_proposals(model: nn.Module) -> None:
    """A draft whose tokens were taken back proposes what a new one does, before a cut and after it."""
    sequence, sampler = list(PROMPT), Sampler(0.0, None, 0)
    draft = ModelDraft(model, sequence, 3, cache=True, memory=None, end=None)
    for kept in (1, 0, 2, 0):
        fresh = ModelDraft(model, sequence, 3, cache=False, memory=None, end=None)
        proposed, _ = draft.propose(3, sampler, 0)
        if len(sequence) <= (draft._stepper.limit or 99):
            assert fresh.propose(3, sampler, 0)[0] == proposed
        kept = min(kept, len(proposed))
        sequence += [*proposed[:kept], 5]
        draft.accept(kept, 5)


def test_registers_mixed_layers_and_no_cache() -> None:
    same_as_plain(tiny(causal=True, position="rope", prefix=Prefix(registers=2)))
    same_as_plain(cycle_model("conv", "linear_recurrence", "attention", causal=True, depth=3))
    same_as_plain(tiny(causal=True, position="rope"), cache=False)


@pytest.mark.parametrize("stream", choices("residual"))
@pytest.mark.sampled(2)
def test_layers_that_differ_and_run_twice(stream: str) -> None:
    """Kinds with schemes and caches of their own, a block that is visited twice, and every way to join outputs."""
    kinds = {
        "near": Kind(token_mixer=factory("token_mixer", "windowed_attention"), position=factory("position", "alibi")),
        "fast": Kind(token_mixer=factory("token_mixer", "linear_recurrence"), norm=factory("norm", "rms")),
    }
    layers = Pattern(pattern=("base", "near", "fast"), kinds=kinds)
    sizes = {"depth": 4, "order": (0, 1, 2, 1, 3)}
    model = tiny(causal=True, position="rope", residual=stream, replace={"layers": layers}, sizes=sizes)
    same_as_plain(model)
    same_proposals(model)


class Kept(KVCache):
    """Planted: rejected tokens stay in the cache."""

    def crop(self, count: int) -> None:
        if self.seq is not None and count:
            super().crop(count)
            self.length += count
            self._k = torch.zeros_like(self._k)


def test_planted_stale_tokens_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.token_mixer.attention.KVCache", Kept)
    with pytest.raises((AssertionError, RuntimeError)):
        same_as_plain(tiny(causal=True, position="rope"))


def test_a_cache_is_cropped_only_by_what_it_kept() -> None:
    model = tiny(causal=True, token_mixer="windowed_attention", position="none")
    cache, tokens = model.init_cache(1), torch.arange(6)[None]
    model(tokens, cache=cache)
    assert isinstance(cache.layers[0], WindowCache)
    with pytest.raises(ValueError, match="set spare=1"):
        cache.crop(1)
    with pytest.raises(ValueError, match="fewer than 1"):
        KVCache(1, 2, 8).crop(1)
    inputs = InputCache(1, 2)
    inputs.append(torch.zeros(1, 3, 4), Seq(torch.arange(3), torch.zeros(1, 3, 1)))
    with pytest.raises(ValueError, match="set spare=1"):
        inputs.crop(1)
    cache.keep_spare(2)
    out = [model(tokens[:, :1], cache=cache) for _ in range(2)]
    cache.crop(1)
    torch.testing.assert_close(model(tokens[:, :1], cache=cache), out[1])


def test_a_cache_that_cannot_be_taken_back_is_refused() -> None:
    model = tiny(causal=True, position="rope")
    model.init_cache = lambda batch: SimpleNamespace(  # type: ignore[assignment]
        croppable=False, keep_spare=lambda count: None, snapshot=_refused, layers=[], bytes=0
    )
    with pytest.raises(UserError, match="taken back: Mine has neither"):
        written(model, NgramDraft(PROMPT))


def _refused() -> None:
    raise ValueError("Mine has neither `crop` nor `snapshot`")


class Bigram(nn.Module):
    """Scores of the next token by the last one: a model whose texts have known probabilities."""

    def __init__(self, seed: int, outputs: int = 4) -> None:
        super().__init__()
        scores = torch.randn(outputs, outputs, generator=torch.Generator().manual_seed(seed))
        self.scores = nn.Parameter(scores)
        tokens = SimpleNamespace(max_len=64, start=None, mask=None, end=None, predicted=None)
        self.ctx, self.mixers = SimpleNamespace(tokens=tokens, outputs=outputs), []
        self.position = SimpleNamespace(bounded=False, length_scale=1)

    def forward(self, inputs: Inputs | Tensor) -> Tensor:
        return self.scores[Inputs.of(inputs).inputs]


def pairs_p_value(draws: int = 1200) -> float:
    """Chi-square test of two sampled tokens against p(a) p(b|a); the draft has another distribution."""
    target, other = Bigram(1), Bigram(2)
    temperature, counts, sampler = 1.3, Counter[tuple[int, ...]](), Sampler(1.3, None, 7)
    for _ in range(draws):
        draft = ModelDraft(other, [0], 2, cache=False, memory=None, end=None)
        settings: dict[str, Any] = {"draft_tokens": 2, "max_tokens": 2, "cache": False, "stats": SpeculativeStats()}
        counts[tuple(chain(*speculate(target, [0], draft, sampler, **settings)))] += 1
    p = torch.softmax(target.scores.detach().double() / temperature, -1)
    expected = p[0][:, None] * p  # (V, V)
    actual = [counts[a, b] for a in range(4) for b in range(4)]
    return float(chisquare(actual, (draws * expected.flatten()).tolist()).pvalue)


def test_sampled_tokens_have_the_distribution_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pairs_p_value() > 0.001
    monkeypatch.setattr(speculative, "residual", lambda p, q: p)  # planted: a rejected token is drawn again from p
    assert pairs_p_value() < 1e-6


class OneProposal:
    """A stepper whose model gives p after the prompt, and a sampler that takes a set number and draws nothing."""

    def __init__(self, p: Tensor, uniform: float) -> None:
        self.p, self.number = p, uniform
        self.drawn: Tensor | None = None

    def append(self, token_ids: list[int]) -> None:
        pass

    def retract(self, count: int) -> None:
        pass

    def last_scores(self, count: int) -> Tensor:
        return self.p.log().expand(1, count, -1)

    def distribution(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def uniform(self) -> float:
        return self.number

    def draw(self, distribution: Tensor) -> int:
        self.drawn = distribution
        return 0


def one_proposal(token_id: int, p: Tensor, q: Tensor, uniform: float) -> tuple[bool, Tensor]:
    """Whether a token that q proposed is accepted, and the distribution that the next token is drawn from."""
    model: Any = OneProposal(p, uniform)
    stats = SpeculativeStats()
    verify(model, [token_id], [q], model, stats)
    assert model.drawn is not None
    return stats.accepted == 1, model.drawn


def test_a_token_has_the_distribution_of_the_model_exactly() -> None:
    """Over all pairs of a proposed token and an outcome, without drawing: accepted below min(1, p / q) alone."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        p, q = torch.randn(2, 6, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
        outcome = torch.zeros(6, dtype=torch.float64)
        for token_id in range(6):
            accepted = min(1.0, float(p[token_id] / q[token_id]))
            for factor in (0.5, 1 - 1e-9):
                assert one_proposal(token_id, p, q, factor * accepted)[0]
            outcome[token_id] += q[token_id] * accepted
            if accepted < 1:
                for factor in (1 + 1e-9, (1 + 1 / accepted) / 2):
                    was_accepted, again = one_proposal(token_id, p, q, factor * accepted)
                    assert not was_accepted
                outcome += q[token_id] * (1 - accepted) * again
        torch.testing.assert_close(outcome, p)


def test_the_residual_and_its_end() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
    torch.testing.assert_close(residual(p, q), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(residual(p, p), p)


def test_tokens_of_a_pass_are_as_expected() -> None:
    for acceptance, count in ((0.0, 4), (0.5, 1), (0.8, 5)):
        closed = (1 - acceptance ** (count + 1)) / (1 - acceptance)
        assert expected_tokens(acceptance, count) == pytest.approx(closed)
    assert expected_tokens(1.0, 4) == 5
    model, other = Bigram(1), Bigram(2)
    with torch.no_grad():  # every token has the same distribution, so acceptance is independent of the past
        model.scores.copy_(model.scores[:1].expand(4, 4))
        other.scores.copy_(other.scores[:1].expand(4, 4))
    draft = ModelDraft(other, [0], 4, cache=False, memory=None, end=None)
    stats, sampler = SpeculativeStats(draft="draft=small"), Sampler(1.0, None, 0)
    settings: dict[str, Any] = {"draft_tokens": 4, "max_tokens": 600, "cache": False, "stats": stats}
    assert sum(map(len, speculate(model, [0], draft, sampler, **settings))) == 600 == stats.tokens
    p, q = (torch.softmax(each.scores[0].detach(), -1) for each in (model, other))
    assert stats.acceptance == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.05)
    assert stats.tokens / stats.rounds == pytest.approx(stats.expected, rel=0.1)
    assert f"acceptance {stats.acceptance:.2f}, {600 / stats.rounds:.2f} tokens a pass (expected " in str(stats)


def test_what_followed_before_is_proposed() -> None:
    assert follow([1, 2, 3, 9, 8, 1, 2, 3], 2) == [9, 8]
    assert follow([1, 2, 5, 2, 7, 2], 4) == [7, 2]  # the last time, and no more than there is
    assert follow([1, 2, 3], 4) == []
    model = tiny(causal=True, position="rope")
    expected, _ = greedy(model, [PROMPT], cache=True)
    tokens, stats = written(model, NgramDraft(PROMPT))
    assert tokens == expected[0]
    assert stats.rounds < len(tokens)  # the text repeats itself
