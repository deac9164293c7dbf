"""`blockyard inspect masking`: the two wrong ways to mask by hand, and that the right one leaks nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.inspect.kinds import masking
from blockyard.inspect.kinds.masking import AFTER, RIGHT, WAYS, ZEROED, masked_layers, masked_weights
from blockyard.ops import maps
from tests.inspect.small_models import build_model
from tests.support import engine_runs
from tests.support.every import every
from tests.support.tiny import TEXT


def by_hand(scores: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Weights and leaks of one head (N, N), row by row."""
    count = len(scores)
    weights, leaks = torch.zeros(2, count, count, dtype=torch.float64)
    for i in range(count):
        row = [math.exp(float(s)) for s in scores[i]]
        if rule == ZEROED:
            row = [value if j <= i else 1.0 for j, value in enumerate(row)]
        total = sum(row[: i + 1]) if rule == RIGHT else sum(row)
        for j in range(count):
            share = row[j] / total
            if j <= i:
                weights[i, j] = share
            elif rule == ZEROED:
                weights[i, j] = leaks[i, j] = share
            elif rule == AFTER:
                leaks[i, j] = share
    return weights, leaks


@pytest.mark.parametrize("order", WAYS)
def test_weights_and_leaks(order: str, tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "model=decoder", "position=rope")
    (call, *_), (layer, *_) = maps.attention(model, samples[0].batch), masked_layers(model, samples[:1], None, (1,))
    scores = call.q[0, 1] @ call.k[0, 1].T / call.q.shape[-1] ** 0.5
    weights, leaks = by_hand(scores, order)
    assert_close(layer.weights[order], weights)
    assert_close(layer.leaks[order], leaks)
    assert layer.leak[order] == pytest.approx(float(leaks.sum(-1).mean()))


@pytest.mark.parametrize("order", [AFTER, ZEROED])
def test_the_change_is_the_share_of_earlier_outputs_that_later_keys_move(order: str, tmp_path: Path) -> None:
    """By hand: keys and values of the second half become those of the first, and outputs of the first half move."""
    model, samples = build_model(tmp_path, "model=decoder", "position=rope")
    (call, *_), (layer, *_) = maps.attention(model, samples[0].batch), masked_layers(model, samples[:1], None, (1,))
    q, k, v = (part[0, 1].double() for part in (call.q, call.k, call.v))
    half = len(q) // 2
    others = [*range(half), *(index % half for index in range(len(q) - half))]
    scores = q @ k.T / q.shape[-1] ** 0.5
    own = (by_hand(scores, order)[0] @ v)[:half]
    moved = (by_hand(scores[:, others], order)[0] @ v[others])[:half]
    assert layer.change[order] == pytest.approx(float((moved - own).norm() / own.norm()))
    assert float(own.norm()) != pytest.approx(float(moved.norm()), rel=1e-3)


def test_a_layer_that_runs_again_is_averaged_over_its_visits(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "model=decoder", "model.depth=1", "model.order=[0,0,0]")
    (layer,) = masked_layers(model, samples, None, (1,))
    calls = [call for sample in samples for call in maps.attention(model, sample.batch)]
    assert len(calls) == 3 * len(samples)
    leaks = [by_hand(call.q[0, 1] @ call.k[0, 1].T / call.q.shape[-1] ** 0.5, AFTER)[1] for call in calls]
    assert layer.leak[AFTER] == pytest.approx(sum(float(leak.sum(-1).mean()) for leak in leaks) / len(leaks))


@pytest.mark.parametrize("options", [(), ("token_mixer=windowed_attention", "token_mixer.window=3")], ids=str)
def test_the_right_way_leaks_nothing_and_the_wrong_ones_do(options: tuple[str, ...], tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "model=decoder", "position=alibi", *options)
    for layer in masked_layers(model, samples, None, None):
        assert layer.leak[RIGHT] == layer.change[RIGHT] == 0
        for rule in (AFTER, ZEROED):
            assert layer.leak[rule] > 0.05
            assert layer.change[rule] > 1e-3


def test_rows_lack_what_the_softmax_gave_to_later_tokens(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "model=decoder", "position=rope")
    for layer in masked_layers(model, samples[:1], None, None):
        count = len(layer.weights[AFTER])
        assert_close(layer.weights[AFTER].sum(-1) + layer.leaks[AFTER].sum(-1), torch.ones(count).double())
        assert_close(layer.weights[ZEROED].sum(-1), torch.ones(count).double())


def test_a_planted_leak_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Planted: the right way, too, zeroes scores."""

    def wrong(call: maps.Seen, q: Tensor, k: Tensor, after: str | None) -> Tensor:
        return masked_weights(call, q, k, ZEROED if after == RIGHT else after)

    monkeypatch.setattr(masking, "masked_weights", wrong)
    with pytest.raises(AssertionError):
        test_the_right_way_leaks_nothing_and_the_wrong_ones_do((), tmp_path)


@pytest.mark.parametrize("overrides", [(), ("model=decoder", "token_mixer=conv", "position=none")], ids=str)
def test_models_without_a_mask_are_refused(overrides: tuple[str, ...], tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, *overrides)
    with pytest.raises(UserError, match="no layer of this model is causal softmax attention without a sink"):
        masked_layers(model, samples, None, None)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = engine_runs.run(tmp_path, "tokenizer=byte", base=TEXT)
    assert main(["inspect", f"run={run_folder.path}", "log=false", "masking", "samples=2"]) == 0
    numbers = read_json(run_folder.path / "inspect" / "masking.json")
    assert numbers["pictures"] == ["masking.png"]
    assert every(layer["leak"][RIGHT] == 0 < layer["leak"][ZEROED] for layer in numbers["layers"])
    assert "what the first reads by up to 0," in capsys.readouterr().out
