"""Statistics of layers while training: their values, by formulas of their own, and that a run stays the same."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import iter_blocks
from blockyard.data.splits.order import take
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.callbacks.layer_stats import LayerStats
from blockyard.engine.module import Learner, LearnerSettings
from blockyard.runs.folder import RunFolder
from tests.support.engine_runs import killed_at, rows, run, state
from tests.support.tiny import TEXT, TINY, configured

STATS = ("callbacks=layer_stats", "callbacks.progress.bar=false", "model.depth=2", "trainer.log_every=5")
NAMES = ("grad_norm", "activation_norm", "attention_logit_max", "attention_entropy", "dead_units")


def run_state(*overrides: str, base: tuple[str, ...] = TINY) -> RunState:
    """Return a run before its first step, in which a step has been computed and not been taken."""
    components = Components(configured(*base, "model.depth=2", *overrides)[0])
    splits = components.data.load(components.tokenizer)
    learner = Learner(
        components.model(0), components.objective, components.optimizer, components.schedule, LearnerSettings(1)
    )
    context = torch.no_grad
    learner._trainer = SimpleNamespace(precision_plugin=SimpleNamespace(forward_context=context))  # type: ignore[assignment]
    return RunState(
        learner, "x", Path("x"), 10, 10, 4, 4, "image", ("accuracy", "max"), validation=splits.validation, log_every=1
    )


def statistics(learner_state: RunState, samples: int = 1) -> dict[str, float]:
    callback = LayerStats(samples=samples)
    callback.on_run_start(learner_state)
    for observe in learner_state.learner.observers:
        observe(learner_state.step)
    learner_state.step += 1
    return callback.metrics(learner_state)


def batch_of(learner_state: RunState, index: int) -> Any:
    assert learner_state.validation is not None
    batch = take(learner_state.validation, torch.tensor([index]), None)
    return learner_state.learner.objective.ready(batch)


def backward(learner_state: RunState) -> None:
    loss, _ = learner_state.learner.loss_and_auxiliary(batch_of(learner_state, 3))
    loss.backward()


@pytest.mark.parametrize("base", [TINY, (*TEXT, "tokenizer=byte")], ids=["encoder", "decoder"])
def test_every_statistic_by_a_formula_of_its_own(base: tuple[str, ...]) -> None:
    live = run_state("position=learned", "channel_mixer.activation=relu", base=base)
    model = live.learner.model
    backward(live)
    with torch.no_grad():
        # Three hidden units of the second block read nothing, and relu leaves them at zero.
        model.get_parameter("blocks.1.channel_mixer.proj_in.weight")[:3] = 0.0
    captured: dict[str, list[torch.Tensor]] = {}

    def keep(name: str, value: torch.Tensor) -> None:
        captured.setdefault(name, []).append(value.detach())

    handles = []
    for layer in (0, 1):
        block = model.get_submodule(f"blocks.{layer}")
        projection = block.get_submodule("token_mixer.proj_in")
        handles.append(block.register_forward_hook(lambda _m, _a, y, layer=layer: keep(f"out.{layer}", y)))
        handles.append(projection.register_forward_hook(lambda _m, _a, y, layer=layer: keep(f"qkv.{layer}", y)))
    with torch.no_grad():
        model.eval()
        for index in (0, 1):
            model(batch_of(live, index))
    model.train()
    for handle in handles:
        handle.remove()
    values = statistics(live, samples=2)
    assert set(values) == {f"train/{name}.{layer}" for name in NAMES for layer in (0, 1)}
    for layer in (0, 1):
        block = model.get_submodule(f"blocks.{layer}")
        squares = sum(float(p.grad.square().sum()) for p in block.parameters() if p.grad is not None)
        assert values[f"train/grad_norm.{layer}"] == pytest.approx(math.sqrt(squares), rel=1e-5)
        norms = [float(x[0].square().sum(-1).sqrt().mean()) for x in captured[f"out.{layer}"]]
        assert values[f"train/activation_norm.{layer}"] == pytest.approx(sum(norms) / 2, rel=1e-5)
        largest, entropies = [], []
        heads = block.get_submodule("token_mixer").heads
        for joined in captured[f"qkv.{layer}"]:
            q, k, _ = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in joined.chunk(3, dim=-1))
            scores = q @ k.mT / math.sqrt(q.shape[-1])  # (1, H, N, N)
            seen = torch.ones_like(scores, dtype=torch.bool)
            if base is not TINY:
                seen = seen.tril()
            largest.append(float(scores[seen].max()))
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            nats = -(weights * weights.clamp_min(1e-30).log()).sum(-1)
            most = seen.sum(-1).float().log()
            entropies.append(float((nats[most > 0] / most[most > 0]).mean()))
        assert values[f"train/attention_logit_max.{layer}"] == pytest.approx(max(largest), rel=1e-4)
        assert values[f"train/attention_entropy.{layer}"] == pytest.approx(sum(entropies) / 2, rel=1e-4)
    hidden = len(model.get_parameter("blocks.1.channel_mixer.proj_in.weight"))
    assert values["train/dead_units.1"] >= 3 / hidden
    assert values["train/dead_units.1"] > values["train/dead_units.0"]


def test_a_fused_block_is_measured_too_and_stays_fused() -> None:
    live = run_state("block=parallel", "channel_mixer.activation=relu")
    backward(live)
    assert len(statistics(live)) == 2 * len(NAMES)
    fused = [block.fused for block in iter_blocks(live.learner.model)]
    assert fused == [True, True]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in live.learner.model.modules())


@pytest.mark.parametrize(
    ("override", "lacking"),
    [
        ("token_mixer=pool", {"attention_logit_max", "attention_entropy"}),
        ("channel_mixer=experts", set()),
        ("channel_mixer=none", {"dead_units"}),
    ],
)
def test_a_block_without_a_part_lacks_the_metrics_of_the_part(override: str, lacking: set[str]) -> None:
    base: tuple[str, ...] = TINY
    if override.startswith("token_mixer"):
        base = tuple(argument for argument in TINY if not argument.startswith("token_mixer"))
    live = run_state(override, base=base)
    backward(live)
    assert set(statistics(live)) == {f"train/{name}.{layer}" for name in set(NAMES) - lacking for layer in (0, 1)}


def test_an_interval_between_rows_is_refused() -> None:
    [issue] = check(compose([*TINY, *STATS, "callbacks.layer_stats.every=12"]))
    assert "every=12" in str(issue)
    assert "use a multiple of it, such as every=15" in str(issue)


def without_statistics(run_folder: RunFolder) -> list[dict[str, float]]:
    """Return metrics.csv without the columns of layers."""
    columns = {f"train/{name}.{layer}" for name in NAMES for layer in (0, 1)}
    return [{name: value for name, value in row.items() if name not in columns} for row in rows(run_folder)]


def assert_same_run(watched: RunFolder, plain: RunFolder) -> None:
    ours, theirs = state(watched), state(plain)
    assert ours.keys() == theirs.keys()
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=0, msg=key)
    assert watched.identity == plain.identity
    assert without_statistics(watched) == rows(plain)
    assert sum("train/dead_units.1" in row for row in rows(watched)) == 6


WAYS = {
    "dropout": ("token_mixer.dropout=0.1", "channel_mixer=experts"),
    "accumulated, recomputed": ("trainer.accumulate=2", "trainer.checkpoint_blocks=true", "model.dropout=0.1"),
    "nesterov": ("optimizer=sgd", "optimizer.nesterov=true"),
    "compiled": ("trainer.compile=true",),
}


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_a_run_keeps_its_bits(tmp_path: Path, way: str) -> None:
    plain = ("callbacks=default", *STATS[1:])
    watched = run(tmp_path / "watched", *STATS, *WAYS[way])
    assert_same_run(watched, run(tmp_path / "plain", *plain, *WAYS[way]))


@pytest.mark.full
def test_a_killed_run_resumes_with_the_same_statistics(tmp_path: Path) -> None:
    options = (*STATS, "callbacks.checkpoint.every=3")
    whole = run(tmp_path / "whole", *options)
    assert killed_at(11, tmp_path / "killed", *options) == -9
    resumed = run(tmp_path / "killed", *options)
    assert rows(resumed) == rows(whole)


def test_gradients_are_those_before_the_update(tmp_path: Path) -> None:
    """SGD with momentum in Nesterov's form adds to the gradients in place."""
    watched = run(tmp_path, *STATS, *WAYS["nesterov"], "trainer.gradient_clip=0.01")
    for row in rows(watched):
        if "train/grad_norm.1" in row:
            of_blocks = math.hypot(row["train/grad_norm.0"], row["train/grad_norm.1"])
            assert 0.1 * row["train/grad_norm"] < of_blocks < row["train/grad_norm"]
