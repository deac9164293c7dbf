"""Comparisons of language models for new texts: sums of documents of different lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm

from benchmarks.texts import coverage
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.report.comparison import compare
from blockyard.report.samples.build import samples
from blockyard.report.samples.scores import RunScores, effective_size, gaps
from blockyard.report.stats.crossed import crossed_difference
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.crossed_predictions import predicted
from tests.report.report_runs import norms_sweep

FILE = """\
claim: x
base: [experiment=gpt_code, debug=fast, model.depth=1, model.dim=16, model.heads=2, logger=none, trainer=cpu,
  trainer.limit_test=null, data=text_file, data.path={path}, data.split_by=document, data.test_fraction=0.3,
  data.context=32, data.batch_size=16, tokenizer=byte]
arms: {{plain: [], mlp: [channel_mixer=mlp]}}
seeds: 3
metric: test/bits_per_byte
over: both
"""


def of_documents(sums: np.ndarray, count: np.ndarray) -> dict[int, RunScores]:
    """RunScores of runs, by seed, from the sums (S, D) of documents with `count` tokens each."""
    number = np.arange(len(count))
    return {seed: RunScores(number, count, row, count, documents=True) for seed, row in enumerate(sums)}


def ratio_gaps(sums: np.ndarray, count: np.ndarray) -> np.ndarray:
    return gaps(of_documents(sums, count), of_documents(np.zeros_like(sums), count))


def test_the_mean_is_that_of_all_tokens_and_the_variance_that_of_the_jackknife() -> None:
    """Regressions of single tokens on a constant, each without the tokens of one text."""
    draw = np.random.default_rng(0)
    count = draw.integers(5, 60, size=25)
    text = np.repeat(np.arange(25), count)
    token = draw.normal(size=25)[text] + draw.normal(size=len(text))
    sums = np.bincount(text, weights=token)
    one = ratio_gaps(np.stack([sums, sums]), count.astype(float))
    gap = crossed_difference(one, "samples")
    without = [sm.OLS(token[text != left], np.ones((text != left).sum())).fit().params[0] for left in range(25)]
    assert gap.mean == pytest.approx(token.mean())
    assert gap.error == pytest.approx(float(np.std(without)) * np.sqrt(24))


def test_texts_of_one_length_are_samples() -> None:
    sums = np.random.default_rng(0).normal(size=(3, 7))
    count = np.full(7, 20.0)
    assert ratio_gaps(sums, count) == pytest.approx(sums / 20)
    assert effective_size(of_documents(sums, count)) == pytest.approx(7)
    assert ratio_gaps(sums[:, :1], count[:1]) == pytest.approx(sums[:, :1] / 20)


def test_long_texts_count_for_few() -> None:
    """One of half the tokens and a hundred short ones say as much as about four."""
    count = np.array([100.0, *np.ones(100)])
    assert effective_size(of_documents(np.zeros((1, 101)), count)) == pytest.approx(200**2 / (100**2 + 100))


@pytest.mark.sampled(100)
@pytest.mark.parametrize("texts", [4, 12, 40])
@pytest.mark.parametrize("over", ["samples", "both"])
def test_few_texts_of_lognormal_length_are_covered(texts: int, over: str) -> None:
    """The linearised variance with D - 1 degrees of freedom covered 86 to 93 % here, of three seeds."""
    assert 0.93 <= coverage(1_000, texts, over, of_seed=0.0 if over == "samples" else 0.3)[0] <= 0.985


@pytest.mark.sampled(100)
@pytest.mark.parametrize("over", ["samples", "both"])
def test_intervals_cover_the_mean_of_new_texts(over: str) -> None:
    """Twenty texts of very different lengths; sequences of a text err together, so that sequences alone cover less."""
    draw = np.random.default_rng(1)
    covered, apart = [], []
    for _ in range(1_000):
        count = np.exp(draw.normal(3, 0.7, size=20)).round() + 1
        text = np.repeat(np.arange(20), count.astype(int))
        of_text = draw.normal(size=(1, 20))
        of_seed = (0.3 if over == "both" else 0.0) * draw.normal(size=(5, 1))
        noise = draw.normal(size=(5, len(text)))
        token = of_text[:, text] + of_seed + noise
        sums = np.stack([np.bincount(text, weights=row) for row in token])
        size = effective_size(of_documents(sums, count))
        for values, into, effective in ((ratio_gaps(sums, count), covered, size), (token, apart, None)):
            low, high = crossed_difference(values, over, effective).interval or (0, 0)
            into.append(low <= 0 <= high)
    assert 0.91 <= np.mean(covered) <= 0.99
    assert np.mean(apart) < 0.75


@pytest.mark.full
def test_a_sweep_of_language_models_is_judged_for_new_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(30):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text {number} says {number * 7} words\n" * (number + 4))
    (tmp_path / "texts.yaml").write_text(FILE.format(path=tmp_path / "texts"))
    assert main(["sweep", str(tmp_path / "texts.yaml"), f"outputs={tmp_path / 'out'}", "--workers", "1"]) == 0
    assert "for new seeds and new texts" in capsys.readouterr().out
    plan = SweepPlan.load(tmp_path / "out/sweeps/texts")
    by_texts = compare(plan, changes=False, over="samples")
    gap = by_texts.arm("mlp").difference
    by_seeds = compare(plan, changes=False, over="seeds").arm("mlp").difference
    assert gap is not None
    assert by_seeds is not None
    assert gap.mean == pytest.approx(by_seeds.mean, rel=1e-4)
    assert gap.over == "samples documents"
    assert gap.interval != by_seeds.interval
    with pytest.raises(UserError, match="test/accuracy is not kept of the tokens"):
        compare(plan, changes=False, over="both", metric="test/accuracy")


def test_sums_of_sequences_have_no_table_of_samples(tmp_path: Path) -> None:
    """Nor do they hide those of runs that have one."""
    plan = norms_sweep(tmp_path)
    result = compare(plan, changes=False)
    assert result.samples is None
    for cell in plan.cells[:2]:
        predicted(plan.path(cell), 0.5, 60)
    assert samples([]) is None
