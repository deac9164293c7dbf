"""Masked diffusion writes: against a distribution whose conditionals are known, and by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.generate.api import generate
from blockyard.generate.diffusion import Order, fill
from blockyard.generate.sampling import Sampler
from blockyard.runs.folder import RunFolder
from tests.support.engine_runs import text_run
from tests.support.untrained import untrained

pytestmark = pytest.mark.xdist_group("diffusion")

N, V, MASK = 3, 2, 2
STATES = list(itertools.product(range(V), repeat=N))
JOINT = torch.tensor([0.30, 0.02, 0.03, 0.15, 0.05, 0.10, 0.05, 0.30], dtype=torch.float64)  # of STATES


def exact(token_ids: Tensor) -> Tensor:
    """The scores of the exact conditionals of JOINT: log p(token at a place | the tokens that are there)."""
    scores = torch.zeros(N, V + 1)
    for place, token in itertools.product(range(N), range(V)):
        agree = [
            all(s in (t, MASK) or i == place for i, (t, s) in enumerate(zip(state, token_ids.tolist(), strict=True)))
            and state[place] == token
            for state in STATES
        ]
        scores[place, token] = JOINT[torch.tensor(agree)].sum().log()
    return scores


def drawn(order: Order, steps: int, count: int = 3_000) -> np.ndarray:
    """How often each of STATES is written."""
    sampler, counts = Sampler(1.0, None, 0), np.zeros(len(STATES))
    for _ in range(count):
        token_ids = torch.full((N,), MASK)
        assert fill(exact, token_ids, MASK, sampler, steps, order) == steps
        counts[STATES.index(tuple(token_ids.tolist()))] += 1
    return counts


@pytest.mark.full
def test_a_token_at_a_time_has_the_distribution_of_the_model() -> None:
    counts = drawn("random", N)
    assert stats.chisquare(counts, JOINT.numpy() * counts.sum()).pvalue > 0.001


def test_tokens_of_one_step_are_independent() -> None:
    """So that all at once have the product of the marginals, which is another distribution."""
    counts = drawn("random", 1)
    marginal = [sum(float(p) for p, state in zip(JOINT, STATES, strict=True) if state[i] == 1) for i in range(N)]
    product = [
        float(np.prod([m if t == 1 else 1 - m for m, t in zip(marginal, state, strict=True)])) for state in STATES
    ]
    assert stats.chisquare(counts, np.array(product) * counts.sum()).pvalue > 0.001
    assert stats.chisquare(counts, JOINT.numpy() * counts.sum()).pvalue < 1e-6


def by_confidence(scores_of: Callable[[Tensor], Tensor], token_ids: Tensor, mask: int, steps: int) -> list[int]:
    """Greedy, by the definition: in every step the surest of all places, as many as are due."""
    ids = token_ids.clone()
    size = int((ids == mask).sum())
    for step in range(1, steps + 1):
        due = size * step // steps - (size - int((ids == mask).sum()))
        chances = scores_of(ids)[:, :mask].softmax(-1)
        best = chances.max(-1)
        order = sorted((ids == mask).nonzero()[:, 0].tolist(), key=lambda place: -float(best.values[place]))
        for place in order[:due]:
            ids[place] = best.indices[place]
    return ids.tolist()


@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_the_surest_tokens_come_first(steps: int) -> None:
    """Of models in which every token depends on every other one, so that the order changes what is written."""
    written, mask = set(), 5
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        table = 2 * torch.randn(9, mask + 1, 9, mask + 1, generator=generator)

        def scores_of(token_ids: Tensor, table: Tensor = table) -> Tensor:
            return table[torch.arange(9), token_ids].sum(0)  # (9, V)

        start = torch.tensor([0, 1, *[mask] * 7])
        filled = start.clone()
        fill(scores_of, filled, mask, Sampler(0.0, None, 0), steps, "confidence")
        assert filled.tolist() == by_confidence(scores_of, start, mask, steps)
        assert filled[:2].tolist() == [0, 1]
        written.add(tuple(filled.tolist()))
    assert len(written) > 10


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return text_run(
        tmp_path_factory.mktemp("diffusion"), "tokenizer=byte", "model=encoder", "objective=masked_diffusion"
    )


@pytest.mark.parametrize("order", ["random", "confidence"])
def test_a_gap_is_filled_between_prompt_and_suffix(
    run: RunFolder, order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", f"run={run.path}", "prompt=de", "suffix=end", "max_tokens=6", "steps=3", f"order={order}"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("de")
    assert printed.out.endswith("end\n")
    assert "6 tokens in 3 steps" in printed.err
    assert f"order={order}" in printed.err
    assert main(command) == 0
    assert capsys.readouterr().out == printed.out  # a seed gives one text


def test_what_the_model_reads_is_what_it_was_trained_on(run: RunFolder) -> None:
    """Greedy, all at once: the tokens are the most likely ones of the model called by hand."""
    text = generate(run, "def", suffix="xy", max_tokens=5, steps=1, order="confidence", temperature=0)
    assert len("".join(text)) >= 1
    loaded = text.loaded
    mask = loaded.model.ctx.tokens.mask
    assert mask is not None
    before, after = ([*text_part.encode()] for text_part in ("def", "xy"))
    with torch.no_grad():
        scores = loaded.model(torch.tensor([[*before, *[mask] * 5, *after]]))[0]
    scores[:, mask] = -torch.inf
    assert text.token_ids == scores.argmax(-1)[3:8].tolist()


def test_a_gap_is_no_longer_than_the_model_takes(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    limit = run.config["data"]["context"]
    text = generate(run, "abc", max_tokens=10 * limit, steps=1)
    list(text)
    assert len(text.token_ids) == limit - 3
    assert f"{limit - 3} tokens are written" in caplog.text
    with pytest.raises(UserError, match="no token fits between"):
        generate(run, "x" * limit, max_tokens=4)


@pytest.mark.parametrize("choice", ["token_mixer=gmlp", pytest.param("head=reconstruct", marks=pytest.mark.full)])
def test_a_model_of_one_length_fills_a_gap_of_one_size(choice: str, tmp_path: Path) -> None:
    overrides = ["data=code", "data.context=16", "model=encoder", "objective=masked_diffusion", "tokenizer=byte"]
    sizes = ["model.dim=16", "model.depth=1", "model.heads=2"]
    path = untrained(tmp_path / "run", *overrides, *sizes, "head=token", choice)
    text = generate(path, "the ", suffix="dog", max_tokens=9, steps=1)
    list(text)
    assert len(text.token_ids) == 9
    for count in (5, 8):
        with pytest.raises(UserError, match=f"max_tokens={count}: .* of 16 tokens only, .* have 7; use max_tokens=9"):
            generate(path, "the ", suffix="dog", max_tokens=count)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("beam=2", "beam= has no effect on masked diffusion"),
        ("draft=ngram", "draft= has no effect on masked diffusion"),
        ("cache=false", "cache= has no effect on masked diffusion"),
        ("compile=true", "compile= has no effect on masked diffusion"),
        ("source=x", "source= has no effect on masked diffusion"),
        ("order=size", "order=size: expected one of random, confidence"),
    ],
)
def test_options_of_other_ways_to_write_are_refused(
    run: RunFolder, option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", f"run={run.path}", "prompt=de", option]) == 2
    assert message in capsys.readouterr().err


def test_a_decoder_has_no_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decoder = text_run(tmp_path, "tokenizer=byte")
    for option in ("suffix=x", "steps=3", "order=random"):
        assert main(["generate", f"run={decoder.path}", "prompt=de", option]) == 2
        assert "use a run of objective=masked_diffusion" in capsys.readouterr().err
