"""nGPT: the whole decoder against its equations, written out; weights that stay at length one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.model._unit_weights import UnitWeights
from blockyard.ops.projection import Projection, deferred
from blockyard.ops.scaled_vector import ScaledVector
from tests.support.every import every
from tests.support.helpers import stir, token_ids
from tests.support.tiny import TEXT, configured

D, H, DEPTH = 16, 4, 2
NGPT = (
    *("preset=ngpt", "data=code", "tokenizer=char", "data.context=8"),
    *(f"model.dim={D}", f"model.depth={DEPTH}", f"model.heads={H}"),
)


def decoder(*overrides: str) -> nn.Module:
    """nGPT in float64, every trained number away from its first value."""
    model: Any = Components(configured(*NGPT, *overrides)[0]).model(0)
    stir(model).double().eval()
    model.unit_weights.after_step()
    return model


def unit(x: Tensor) -> Tensor:
    return x / x.pow(2).sum(-1, keepdim=True).sqrt()


def rotated(x: Tensor) -> Tensor:
    """x (B, N, H, K): channel c turns with channel c + K / 2 by n 10000^(-2c / K)."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def formula(model: Any, ids: Tensor) -> Tensor:
    """The logits of ids (B, N), by the equations of section 2 with the scales of section 2.5, all but s_u and s_v
    1 / sqrt(D).
    """
    h, root = model.embedder.table[ids], math.sqrt(D)
    later = torch.full((ids.shape[1],) * 2, -torch.inf, dtype=h.dtype).triu(1)
    for block in model.blocks:
        mixer, channels = block.token_mixer, block.channel_mixer
        q, k, v = (h @ w.T for w in mixer.proj_in.weight.chunk(3))
        q, k, v = (part.unflatten(-1, (H, -1)) for part in (q, k, v))
        s_qk = (mixer.scores.channels.weight * root).unflatten(0, (H, -1))
        q, k = unit(rotated(q)) * s_qk, unit(rotated(k)) * s_qk
        scores = torch.einsum("bnhk,bmhk->bhnm", q, k) * math.sqrt(D / H) + later
        attended = torch.einsum("bhnm,bmhk->bnhk", scores.softmax(-1), v).flatten(2) @ mixer.proj_out.weight.T
        alpha = (block.token_finish.rate.weight * 0.05 * root).abs()
        h = unit(h + alpha * (unit(attended) - h))
        w_gate, w_value = channels.proj_in.weight.chunk(2)
        s_gate, s_value = channels.gains.weight.chunk(2)
        hidden = F.silu((h @ w_gate.T) * s_gate * root) * ((h @ w_value.T) * s_value)
        alpha = (block.channel_finish.rate.weight * 0.05 * root).abs()
        h = unit(h + alpha * (unit(hidden @ channels.proj_out.weight.T) - h))
    return (h @ model.head.proj.weight.T) * model.head.gain.weight * root


def test_the_whole_model() -> None:
    model, ids = decoder(), token_ids(2, 8)
    assert_close(model(ids), formula(model, ids))


@pytest.mark.parametrize("part", ["scores.channels", "gains", "token_finish.rate", "head.gain"])
def test_a_planted_difference_is_caught(part: str) -> None:
    model, ids = decoder(), token_ids(2, 8)
    expected = formula(model, ids)
    vectors = [module for path, module in model.named_modules() if path.endswith(part)]
    assert every(isinstance(module, ScaledVector) for module in vectors)
    vectors[0].factor *= 1.1
    assert (model(ids) - expected).abs().max() > 1e-4


def test_first_values() -> None:
    """Every factor is what the paper's is, whatever its parameter."""
    model: Any = Components(configured(*NGPT)[0]).model(0)
    firsts = {path: module() for path, module in model.named_modules() if isinstance(module, ScaledVector)}
    assert len(firsts) == 4 * DEPTH + 1
    for path, value in firsts.items():
        assert_close(value, torch.full_like(value, 0.05 if path.endswith("rate") else 1.0))
    scales = {path: module.scale for path, module in model.named_modules() if isinstance(module, ScaledVector)}
    assert {path.rpartition(".")[2] for path, scale in scales.items() if scale == 1.0} == {"gains"}
    assert {scale for scale in scales.values() if scale != 1.0} == {D**-0.5}


def test_deferred_logits_have_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.ops.projection.LOGITS", 1)
    model, ids = decoder("head.bias=true"), token_ids(2, 8)
    with deferred():
        projection = model(ids)
    assert isinstance(projection, Projection)
    assert_close(projection.logits(), model(ids))


def lengths(model: Any) -> dict[str, Tensor]:
    """The lengths of the vectors of every matrix: rows but for what is written to the stream."""
    matrices = {path: weight for path, weight in model.named_parameters() if weight.ndim == 2}
    return {path: weight.norm(dim=0 if "proj_out" in path else 1) for path, weight in matrices.items()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "soap", "normuon", "dion", "hyperball"])
def test_weights_stay_at_length_one(optimizer: str) -> None:
    components = Components(configured(*NGPT, f"optimizer={optimizer}", "optimizer.lr=0.1")[0])
    model: Any = components.model(0)
    assert len(lengths(model)) == 4 * DEPTH + 2
    before = {path: weight.detach().clone() for path, weight in model.named_parameters()}
    for length in lengths(model).values():
        assert_close(length, torch.ones_like(length))
    step, ids = components.optimizer.build(model), token_ids(2, 8)
    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    step.step()
    assert any((length - 1).abs().max() > 1e-3 for length in lengths(model).values())
    model.unit_weights.after_step()
    for path, length in lengths(model).items():
        assert_close(length, torch.ones_like(length))
        assert not torch.equal(dict(model.named_parameters())[path], before[path])


def test_tables_and_maps_in_front_of_the_blocks() -> None:
    """A pixel's vector is a column, a position's a row; vectors of zeros stay, and one number is left alone."""
    overrides = ("data=digits", "model.unit_weights=true", "position=learned", "model.prefix.class_token=true")
    model: Any = Components(configured(*overrides, "logger=none", "model.dim=16")[0]).model(0)
    assert_close(model.embedder.proj.weight.norm(dim=0), torch.ones(model.embedder.proj.in_features))
    assert_close(model.position.table.norm(dim=-1), torch.ones(model.position.table.shape[:-1]))
    assert_close(model.prefix.class_token.norm(dim=-1), torch.ones(1))
    with torch.no_grad():
        model.head.proj.weight[0] = 0.0
    bias = model.head.proj.bias.clone()
    model.unit_weights.after_step()
    assert model.head.proj.weight[0].abs().sum() == 0
    assert torch.equal(model.head.proj.bias, bias)


def test_a_model_without_it_has_no_such_part() -> None:
    model = Components(configured(*NGPT, "model.unit_weights=false")[0]).model(0)
    assert not any(isinstance(module, UnitWeights) for module in model.modules())


LSTM = ("token_mixer=lstm",)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("parametrization=mup",), "use parametrization=standard, or model.unit_weights=false"),
        (("optimizer=schedule_free", "schedule=constant"), "the average of several is shorter"),
        (LSTM, "LSTM does not say which dimension of"),
        (("token_mixer.score_scale=learned",), "qk_norm=sphere has a trained factor for each channel"),
    ],
)
def test_refusals(overrides: tuple[str, ...], message: str) -> None:
    base = (*TEXT, "tokenizer=char", "model.unit_weights=true") if overrides == LSTM else NGPT
    issues = check(compose([*base, *overrides]))
    assert len(issues) == 1
    assert message in str(issues[0])
