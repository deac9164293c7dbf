"""Attention weights are worked out again, while fused kernels stay on, and match what attention gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockyard.atomic_files import read_json, write_json
from blockyard.config import build
from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import TokenMixer
from blockyard.engine.callbacks.attention_maps import FILE, AttentionMaps
from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.ops import maps
from blockyard.ops.attend import attend
from blockyard.ops.kernel import record
from blockyard.ops.mask import FULL
from blockyard.report.arms.attention_maps import maps as reported
from blockyard.report.load.run_record import read_run
from blockyard.runs.start import create_run
from tests.support.engine_runs import assert_same_bits, config, folder, killed_at, run
from tests.support.tiny import TEXT, TINY
from tests.support.tolerances import float32

CLOSE = float32(terms=64, layers=2, size=4.0)  # scores add up channels, outputs add up tokens

LINE = ("data=parity", "tokenizer=symbols", "objective=classify", "position=learned", "model.depth=2", "logger=none")
KINDS = {
    "image": ("position=learned",),
    "class token": ("head=class_token", "model.prefix.class_token=true"),
    "grouped, rope": ("position=rope", "token_mixer.num_kv_heads=1"),
    "alibi": ("position=alibi",),
    "parallel": ("block=parallel",),
    "causal": (*TEXT, "tokenizer=byte"),
    "causal, alibi": (*TEXT, "tokenizer=byte", "position=alibi"),
}


def model_and_batch(tmp_path: Path, *arguments: str) -> tuple[torch.nn.Module, Any]:
    base = () if arguments[:1] in (TEXT[:1], LINE[:1]) else (*TINY, "model.depth=2", "token_mixer.dropout=0")
    composed = compose([*base, *arguments, f"outputs={tmp_path}"])
    problems = check(composed)
    assert not problems, [str(problem) for problem in problems]
    plan = build.Components(composed.config)
    splits = plan.data.load(plan.tokenizer)
    batch = plan.objective.prepare(splits.validation.batch(torch.tensor([0, 1]), None))
    return plan.model(0), batch


@pytest.mark.parametrize("kind", KINDS)
def test_weights_times_values_are_what_attention_gave(tmp_path: Path, kind: str) -> None:
    model, batch = model_and_batch(tmp_path, *KINDS[kind])
    model.eval()
    captured: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        if isinstance(module, TokenMixer):
            inner = module._attend

            def kept(*arguments: Any, inner: Any = inner, path: str = path) -> Tensor:
                captured[path] = inner(*arguments)
                return captured[path]

            module._attend = kept
    seen = maps.attention(model, batch.inputs, batch.lengths, batch.segment)
    assert [one.layer for one in seen] == ["blocks.0.token_mixer", "blocks.1.token_mixer"] == list(captured)
    for one in seen:
        weights = one.weights()  # (B, H, N, M)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        if one.causal:
            torch.testing.assert_close(weights, weights.tril(), rtol=0, atol=0)
        else:
            assert weights.triu(1).sum() > 0
        v = one.v.repeat_interleave(one.q.shape[1] // one.v.shape[1], dim=1)  # (B, H, M, K)
        attended = (weights @ v).transpose(1, 2).flatten(2)  # (B, N, H K)
        torch.testing.assert_close(attended, captured[one.layer], **CLOSE)
        again = attend(one.q, one.k, one.v, one.seq, one.k_seq, one.visibility, scale=one.scale)
        torch.testing.assert_close(weights @ v, again, **CLOSE)


OTHER = {
    "windowed": (*LINE, "token_mixer=windowed_attention", "token_mixer.window=2"),
    "windowed, class token": (
        *(*LINE, "token_mixer=windowed_attention", "token_mixer.window=2", "head=class_token"),
        "model.prefix.class_token=true",
    ),
    "windowed, causal": (*TEXT, "tokenizer=byte", "token_mixer=windowed_attention", "token_mixer.window=3"),
    "strict": ("token_mixer=strict_attention", "token_mixer.layers=all"),
    "strict, causal": (*TEXT, "tokenizer=byte", "token_mixer=strict_attention", "token_mixer.layers=all"),
    "hard": ("token_mixer=hard_attention",),
    "memory": (*TEXT, "tokenizer=byte", "token_mixer=memory_attention", "token_mixer.slots=3", "position=alibi"),
    "widths": ("token_mixer.key_dim=3", "token_mixer.value_dim=7"),
}


@pytest.mark.parametrize("kind", OTHER)
def test_maps_of_every_kind_of_attention(tmp_path: Path, kind: str) -> None:
    """What the file says of itself: a band, an empty diagonal, one key, slots first. Sums are of what was given."""
    model, batch = model_and_batch(tmp_path, *OTHER[kind])
    outputs: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, TokenMixer):
            module.proj_out.register_forward_pre_hook(lambda _module, args: outputs.append(args[0]))
    seen = maps.attention(model, batch.inputs, batch.lengths, batch.segment)
    assert len(seen) == len(outputs) == 2
    for one, args in zip(seen, outputs, strict=True):
        weights = one.weights()  # (B, H, N, M)
        torch.testing.assert_close((weights @ one.v).transpose(1, 2).flatten(2), args, **CLOSE)
        sums, (n, m) = weights.sum(-1), weights.shape[-2:]
        first = 1 if kind == "strict, causal" else 0
        torch.testing.assert_close(sums[..., first:], torch.ones_like(sums[..., first:]))
        assert sums[..., :first].sum() == 0
        apart = torch.arange(n)[:, None] - torch.arange(m)
        if kind.startswith("windowed"):
            prefix = one.seq.num_prefix
            far = (apart.abs() >= one.visibility.window)[prefix:, prefix:]
            assert far.any()
            assert weights[..., prefix:, prefix:][..., far].abs().max() == 0
            assert prefix == 0 or weights[..., :prefix, :].min() > 0 < weights[..., :prefix].min()
        if kind.startswith("strict"):
            assert weights[..., apart == 0].abs().max() == 0
        if kind == "hard":
            assert set(weights.unique().tolist()) == {0.0, 1.0}
        if kind == "memory":
            assert m == n + 3
            assert weights[..., :3].min() > 0


def test_a_mask_that_leaks_would_be_seen(tmp_path: Path) -> None:
    model, batch = model_and_batch(tmp_path, *KINDS["causal"])
    (one, _) = maps.attention(model, batch.inputs, batch.lengths, batch.segment)
    one.visibility = FULL
    weights = one.weights()
    with pytest.raises(AssertionError):
        torch.testing.assert_close(weights, weights.tril())


def test_looking_changes_neither_the_model_nor_the_kernels(tmp_path: Path) -> None:
    model, batch = model_and_batch(tmp_path)
    model.train()
    state = torch.get_rng_state()
    maps.attention(model, batch.inputs, batch.lengths, batch.segment)
    torch.testing.assert_close(torch.get_rng_state(), state, rtol=0, atol=0)
    assert model.training
    assert not maps.listening()
    with maps.listen(model):
        assert [one["kernel"] for one in record(model.eval(), batch.inputs)] == ["flash", "flash"]
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(("count", "side"), [(5, 8), (64, 64), (65, 64), (100, 7)])
def test_a_smaller_map_keeps_the_rows_sums_and_the_triangle(count: int, side: int) -> None:
    weights = torch.rand(2, count, count).tril()
    weights = weights / weights.sum(-1, keepdim=True)
    small = maps.smaller(weights, side)
    assert small.shape == (2, min(count, side), min(count, side))
    torch.testing.assert_close(small.sum(-1), torch.ones(2, min(count, side)))
    torch.testing.assert_close(small, small.tril(), rtol=0, atol=0)
    if count <= side:
        torch.testing.assert_close(small, weights)


WATCHED = ("callbacks=attention_maps", "callbacks.progress.bar=false", "model.depth=2")


@pytest.mark.full
def test_a_run_keeps_its_maps_at_the_end(tmp_path: Path) -> None:
    run_folder = run(tmp_path, *WATCHED)
    kept = read_json(run_folder.path / FILE)
    assert (kept["tokens"], kept["prefix"], kept["grid"]) == (4, 0, [2, 2])
    assert [(one["step"], one["layer"], one["head"]) for one in kept["maps"]] == [(30, 0, None), (30, 1, None)]
    for one in kept["maps"]:
        table = torch.tensor(one["map"])
        assert table.shape == (4, 4)
        torch.testing.assert_close(table.sum(-1), torch.ones(4), rtol=0, atol=2e-3)
    assert (run_folder.path / FILE).stat().st_size < 20_000
    # It only watches: the run is the one that is made without it, bit by bit.
    plain = run(tmp_path / "plain", "model.depth=2", "callbacks=default", "callbacks.progress.bar=false")
    assert plain.identity == run_folder.identity
    assert_same_bits(run_folder, plain)


@pytest.mark.full
def test_chosen_layers_heads_and_evaluations_and_a_resume(tmp_path: Path) -> None:
    overrides = (
        *WATCHED,
        "callbacks.attention_maps.layers=[1]",
        "callbacks.attention_maps.heads=each",
        "callbacks.attention_maps.side=3",
        "callbacks.attention_maps.every_evaluation=true",
    )
    assert killed_at(20, tmp_path, *overrides) == -9
    run_folder = run(tmp_path, *overrides)
    kept = read_json(run_folder.path / FILE)["maps"]
    assert [(one["step"], one["layer"], one["head"]) for one in kept] == [
        (step, 1, head) for step in (8, 16, 24, 30) for head in (0, 1)
    ]
    assert {len(one["map"]) for one in kept} == {3}


def test_a_sample_that_is_not_there_is_said_before_the_first_step(tmp_path: Path) -> None:
    override = "callbacks.attention_maps.sample=99999"
    with folder(tmp_path, *WATCHED, override) as run_folder, pytest.raises(UserError, match="validation has"):
        train(run_folder)
    assert run_folder.status.state == "queued"


def test_a_layer_that_is_not_there_is_refused_by_the_check() -> None:
    [issue] = check(compose([*TINY, *WATCHED, "callbacks.attention_maps.layers=[0,7]"]))
    assert str(issue).startswith("callbacks.attention_maps: layers=[7]: the model has blocks 0 to 1")


def test_layers_are_numbered_within_their_stack() -> None:
    """The bound was the number of blocks of both, so that layers that match nothing passed."""
    model = Components(compose(["experiment=translate_dates", "model.depth=2"]).config).meta_model()
    assert AttentionMaps(layers=[0, 1]).model_problems(model, None) == []
    assert AttentionMaps(layers=[1, 2, 3]).model_problems(model, None) == ["layers=[2, 3]: the model has blocks 0 to 1"]


def test_it_is_off_by_default_and_a_mixer_without_attention_has_no_map(tmp_path: Path) -> None:
    assert "attention_maps" not in config(tmp_path, "callbacks=default")[0]["callbacks"]
    overrides = [override for override in (*TINY, *WATCHED) if not override.startswith("token_mixer")]
    composed = compose([*overrides, "token_mixer=pool", f"outputs={tmp_path}"])
    with create_run(composed.config, choices=composed.choices) as run_folder:
        assert train(run_folder) == 0
    assert read_json(run_folder.path / FILE)["maps"] == []


def test_a_comparison_shows_the_first_run_of_each_arm(tmp_path: Path) -> None:
    run_folder = run(tmp_path, *WATCHED)
    records = [read_run(run_folder.path, arm="pre", seed=0), read_run(tmp_path / "nothing" / "s1", arm="post", seed=1)]
    result = reported(records)
    assert [(row.arm, row.seed, row.layer) for row in result] == [("pre", 0, "block 0"), ("pre", 0, "block 1")]
    assert len(result[0].map) == 4
    write_json(run_folder.path / FILE, {"maps": [{"step": 1}]})
    assert reported(records) == []
