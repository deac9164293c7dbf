"""What a run says of itself for comparisons: which way its metrics are better, and bytes of cache per token."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from blockyard.config import build
from blockyard.config.compose import compose
from blockyard.engine.cost_card import decoding
from blockyard.objective.classify import Classify
from blockyard.objective.next_token import NextToken
from tests.report.report_runs import DIRECTIONS
from tests.support.engine_runs import run
from tests.support.tiny import TEXT


def text_plan(*overrides: str) -> build.Components:
    return build.Components(compose([*TEXT, "tokenizer=byte", *overrides]).config)


@pytest.mark.parametrize("objective", [Classify(), NextToken()])
def test_every_metric_says_which_way_is_better(objective: Classify | NextToken) -> None:
    split = SimpleNamespace(bytes_per_token=2.0)
    result = objective.directions(split)
    assert result.keys() == objective.metrics(split).keys()
    name, mode = objective.best()
    assert result[name] == mode
    assert result["loss"] == "min"
    assert result["accuracy"] == "max"


def test_a_metric_that_declares_nothing_is_left_out_unless_it_chooses() -> None:
    class Odd(Classify):
        def metrics(self, split: object = None) -> dict[str, object]:
            return {"loss": SimpleNamespace(higher_is_better=None), "accuracy": SimpleNamespace(higher_is_better=None)}

    assert Odd().directions() == {"accuracy": "max"}


def test_a_run_records_directions_and_what_chose_it(tmp_path: Path) -> None:
    summary = run(tmp_path, "trainer.max_steps=2").summary()
    assert summary["directions"] == DIRECTIONS | {"train/loss": "min"}
    assert set(summary["metrics"]) <= set(summary["directions"])
    assert summary["monitor"] == ["accuracy", "max"]
    assert summary["cache_bytes_per_token"] is None


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_bytes_of_cache_are_those_of_keys_and_values(kv_heads: int) -> None:
    plan = text_plan(f"token_mixer.num_kv_heads={kv_heads}", "model.dim=32", "model.heads=4", "model.depth=3")
    model = plan.model(0).train()
    result = decoding(model)
    # 3 layers, keys and values, 4 bytes a number
    assert result["cache_bytes_per_token"] == 3 * 2 * kv_heads * 8 * 4
    tokens = min(64, plan.tokens().max_len - 1)
    assert result["cache_bytes"] == tokens * result["cache_bytes_per_token"]
    assert result["decode_tokens_per_second"] > 0
    assert model.training


def test_only_what_decodes_from_a_cache_has_figures() -> None:
    nothing = dict.fromkeys(("decode_tokens_per_second", "cache_bytes_per_token", "cache_bytes"))
    assert decoding(text_plan("token_mixer=pool", "position=none").model(0)) == nothing
    assert decoding(build.Components(compose(["experiment=vit_digits"]).config).model(0)) == nothing
    whole = compose([*TEXT, "tokenizer=byte", "data=code_topics", "head=flatten", "objective=classify"])
    assert decoding(build.Components(whole.config).model(0)) == nothing
    assert decoding(torch.nn.Linear(2, 2)) == nothing


def test_a_broken_decoder_is_no_decoder_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    model = text_plan("model.depth=1").model(0)
    monkeypatch.setattr(type(model), "forward", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decoding(model)


@pytest.mark.full
def test_flops_of_rows_of_different_lengths_are_those_of_a_batch(tmp_path: Path) -> None:
    """Counted by hand at the width to which the first batch is padded; a longer task costs more."""
    overrides = ("data=listops", "tokenizer=symbols", "objective=classify", "head=mean_pool")
    small = ("data.samples=64", "data.eval_samples=8", "data.batch_size=32", "model.dim=8", "model.depth=1")
    for length in (16, 48):
        summary = run(tmp_path, *overrides, *small, f"data.length={length}", "trainer.max_steps=1").summary()
        plan = build.Components(compose([*overrides, *small, f"data.length={length}"]).config)
        batch = plan.data.load(plan.tokenizer).train.batch(torch.arange(32), None)
        depth, width = plan.node("model").depth, batch.inputs.shape[1]
        assert width > 0.7 * length
        mlp, projections = 2 * 8 * 32, 4 * 8 * 8  # numbers; two FLOPs for each and each token
        attention = 2 * 2 * width * 8  # a query against all keys, weights against all values
        wanted = depth * width * (2 * (mlp + projections) + attention) + 2 * 8 * 10
        assert summary["flops_per_sample"]["forward"] == wanted


@pytest.mark.full
def test_the_peak_is_of_this_process_and_not_of_the_one_that_started_it() -> None:
    """Linux's getrusage hands a parent's on: here that of one with 600 MB."""
    own = "from blockyard.engine.system.process import resident_peak; print(resident_peak())"
    large = "held = b'1' * 600_000_000"
    held = f"import subprocess, sys; {large}; subprocess.run([sys.executable, '-c', {own!r}], check=True)"
    peaks = [
        int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for code in (own, held, f"{large}; del held; {own}")
    ]
    assert 5e6 < peaks[0] < 2e8
    assert peaks[1] < peaks[0] + 1e8
    assert peaks[2] > 6e8
