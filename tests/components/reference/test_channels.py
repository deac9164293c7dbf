"""Channel mixers and norms against timm, transformers and torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from timm.layers import GluMlp, Mlp
from torch import nn
from torch.testing import assert_close
from transformers import GptOssConfig, LlamaConfig
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.llama.modeling_llama import LlamaMLP

from blockyard.channel_mixer.glu import GLU
from blockyard.channel_mixer.memory import Memory
from blockyard.channel_mixer.mlp import MLP
from blockyard.norm.batch import Batch
from blockyard.norm.dyt import DyT
from blockyard.norm.layer import Layer
from blockyard.norm.layer_plain import LayerPlain
from blockyard.norm.none import NoNorm
from blockyard.norm.rms import RMS
from blockyard.weight_init import initialise
from tests.support.helpers import context, stir
from tests.support.tolerances import FLOAT32_STEPS, FLOAT64

D = 16
X = torch.randn(2, 5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LAYERS = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "relu": nn.ReLU(),
    "silu": nn.SiLU(),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", LAYERS)
def test_mlp_equals_timm(activation: str, bias: bool) -> None:
    ours = stir(MLP(context(), activation=activation, bias=bias)).double()
    theirs = Mlp(D, 4 * D, act_layer=lambda: LAYERS[activation], bias=bias).double()
    theirs.fc1.load_state_dict(ours.proj_in.state_dict())
    theirs.fc2.load_state_dict(ours.proj_out.state_dict())
    assert_close(ours(X), theirs(X))


def test_squared_relu() -> None:
    ours = stir(MLP(context(), activation="relu2")).double()
    assert_close(ours(X), torch.relu(X @ ours.proj_in.weight.T) ** 2 @ ours.proj_out.weight.T)


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu"])
def test_glu(activation: str) -> None:
    ours = stir(GLU(context(), activation=activation, bias=True)).double()
    hidden = ours.proj_out.in_features
    theirs = GluMlp(D, 2 * hidden, act_layer=lambda: LAYERS[activation], gate_last=False).double()
    theirs.fc1.load_state_dict(ours.proj_in.state_dict())
    theirs.fc2.load_state_dict(ours.proj_out.state_dict())
    assert_close(ours(X), theirs(X))


def test_swiglu_is_llamas() -> None:
    ours = stir(GLU(context(dim=64))).double()
    hidden = ours.proj_out.in_features
    assert hidden == 168
    theirs = LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=hidden)).double()
    gate, up = ours.proj_in.weight.chunk(2)
    with torch.no_grad():
        theirs.gate_proj.weight.copy_(gate)
        theirs.up_proj.weight.copy_(up)
        theirs.down_proj.weight.copy_(ours.proj_out.weight)
    x = torch.randn(2, 5, 64, dtype=torch.float64)
    assert_close(ours(x), theirs(x))


@torch.no_grad()
def test_clamped_swiglu_is_that_of_gpt_oss() -> None:
    """Of one of their experts, with inputs of which the limit bounds about half."""
    ours = stir(GLU(context(), activation="quick_gelu", bias=True, limit=0.5, offset=1.0)).double()
    hidden = ours.proj_out.in_features
    config = GptOssConfig(hidden_size=D, intermediate_size=hidden, num_local_experts=1)
    theirs = GptOssExperts(config).double()
    theirs.limit = 0.5
    theirs.gate_up_proj[0, :, ::2], theirs.gate_up_proj[0, :, 1::2] = ours.proj_in.weight.T.chunk(2, -1)
    theirs.gate_up_proj_bias[0, ::2], theirs.gate_up_proj_bias[0, 1::2] = ours.proj_in.bias.chunk(2)
    theirs.down_proj[0], theirs.down_proj_bias[0] = ours.proj_out.weight.T, ours.proj_out.bias
    x = X.flatten(0, 1)
    expected = theirs(x, torch.zeros(len(x), 1, dtype=torch.int64), torch.ones(len(x), 1, dtype=torch.float64))
    assert_close(ours(x), expected, **FLOAT64)
    beyond = (ours.proj_in(x) > 0.5).double().mean()
    assert 0.1 < beyond < 0.9
    theirs.limit = 0.6
    with pytest.raises(AssertionError):
        assert_close(ours(x), theirs(x, torch.zeros(len(x), 1, dtype=torch.int64), torch.ones(len(x), 1)))


@torch.no_grad()
def test_a_zero_centred_gain_is_gemmas() -> None:
    """Theirs is in float32. Before training it is the plain norm."""
    fresh = initialise(RMS(context(), zero_centred=True), 0).double()
    assert_close(fresh(X), initialise(RMS(context()), 0).double()(X), rtol=0, atol=0)
    ours, theirs = stir(fresh), Gemma2RMSNorm(D, eps=1e-6)
    theirs.weight.copy_(ours.weight)
    assert_close(ours(X), theirs(X), **FLOAT32_STEPS)
    ours.zero_centred = False
    with pytest.raises(AssertionError):
        assert_close(ours(X), theirs(X), **FLOAT32_STEPS)


def test_norms() -> None:
    layer, rms = stir(Layer(context())).double(), stir(RMS(context())).double()
    centred = X - X.mean(-1, keepdim=True)
    plain = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    assert_close(LayerPlain(context())(X), plain)
    assert_close(layer(X), plain * layer.weight + layer.bias)
    assert_close(rms(X), X / torch.sqrt(X.square().mean(-1, keepdim=True) + 1e-6) * rms.weight)
    assert_close(NoNorm(context())(X), X, rtol=0, atol=0)
    assert not list(LayerPlain(context()).parameters())


def test_planted_swap_of_gate_and_value_is_caught() -> None:
    ours = stir(GLU(context())).double()
    gate, up = (X @ ours.proj_in.weight.T).chunk(2, -1)
    wrong = (gate * nn.functional.silu(up)) @ ours.proj_out.weight.T
    with pytest.raises(AssertionError):
        assert_close(ours(X), wrong)


def test_dynamic_tanh() -> None:
    norm = initialise(DyT(context(), start=0.8), 0).double()
    assert_close(norm(X), torch.tanh(0.8 * X))
    stir(norm)
    expected = [norm.weight[c] * torch.tanh(norm.alpha * X[..., c]) + norm.bias[c] for c in range(D)]
    assert_close(norm(X), torch.stack(expected, -1))


def batch_norms() -> tuple[Batch, nn.BatchNorm1d]:
    """Ours and torch's, with the same weights."""
    ours, theirs = initialise(Batch(context()), 0).double(), nn.BatchNorm1d(D).double()
    stir(ours)
    theirs.load_state_dict({**ours.state_dict(), "num_batches_tracked": torch.tensor(0)})
    return ours, theirs


def test_batch_norm() -> None:
    ours, theirs = batch_norms()
    for scale in (1.0, 3.0):
        x = scale * X + 0.5
        assert_close(ours(x).flatten(0, 1), theirs(x.flatten(0, 1)))
    for name in ("running_mean", "running_var"):
        assert_close(getattr(ours, name), getattr(theirs, name))
    ours.eval()
    theirs.eval()
    assert_close(ours(X).flatten(0, 1), theirs(X.flatten(0, 1)))
    again = Batch(context()).double().eval()
    again.load_state_dict(ours.state_dict())
    assert_close(again(X), ours(X))
    ours.train()
    with pytest.raises(AssertionError):
        assert_close(ours(X).flatten(0, 1), theirs(X.flatten(0, 1)))


def in_one_of_two(rank: int, port_file: str, output: str) -> None:
    """Writes one process's outputs, gradients and running statistics to a file."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{port_file}", rank=rank, world_size=2)
    ours, _ = batch_norms()
    x = torch.cat([X, 2 * X])[rank::2].clone().requires_grad_()
    y = ours(x)
    (y.square() * torch.arange(D)).sum().backward()
    torch.save([y.detach(), x.grad, ours.weight.grad, ours.running_mean, ours.running_var], f"{output}{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.full
def test_batch_norm_over_two_processes(tmp_path: Path) -> None:
    """Two processes with half the batch each equal one with the whole batch."""
    torch.multiprocessing.spawn(in_one_of_two, (str(tmp_path / "meet"), str(tmp_path / "output")), nprocs=2)
    parts = [torch.load(tmp_path / f"output{rank}") for rank in (0, 1)]
    _, theirs = batch_norms()
    x = torch.cat([X, 2 * X]).clone().requires_grad_()
    y = theirs(x.flatten(0, 1)).view_as(x)
    (y.square() * torch.arange(D)).sum().backward()
    for rank, (out, grad, _, mean, var) in enumerate(parts):
        assert_close(out, y[rank::2].detach())
        assert_close(grad, x.grad[rank::2])
        assert_close((mean, var), (theirs.running_mean, theirs.running_var))
    assert_close(parts[0][2] + parts[1][2], theirs.weight.grad)


@pytest.mark.parametrize("sizes", [{"causal": True}, {"variable": True}, {"packed": True}])
def test_batch_norm_refuses_contexts_where_it_would_leak(sizes: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match=r"norm Batch .* or norm=layer"):
        Batch(context(**sizes))


def test_gates_of_shazeer() -> None:
    """GLU and bilinear, eq. 5; the others are tested against timm above."""
    for activation, gate in (("sigmoid", lambda h: 1 / (1 + torch.exp(-h))), ("identity", lambda h: h)):
        ours = stir(GLU(context(), activation=activation)).double()
        first, second = (X @ ours.proj_in.weight.T).chunk(2, -1)
        assert_close(ours(X), (gate(first) * second) @ ours.proj_out.weight.T)


@pytest.mark.parametrize("expansion", [0.5, 3.0, 3.3, 4.0])
def test_any_expansion(expansion: float) -> None:
    assert MLP(context(), expansion=expansion).proj_in.out_features == round(expansion * D)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu2", "silu"])
def test_memory_with_an_elementwise_activation_is_an_mlp(activation: str, bias: bool) -> None:
    ours = stir(Memory(context(), activation=activation, bias=bias)).double()
    mlp = MLP(context(), activation=activation, bias=bias).double()
    mlp.load_state_dict(ours.state_dict())
    assert_close(ours(X), mlp(X), rtol=0, atol=0)
    softmax = Memory(context(), bias=bias).double()
    softmax.load_state_dict(ours.state_dict())
    with pytest.raises(AssertionError):
        assert_close(softmax(X), mlp(X))


def test_memory_is_attention_to_trained_keys_and_values() -> None:
    ours = stir(Memory(context(), expansion=1.5)).double()
    keys, values = ours.proj_in.weight, ours.proj_out.weight.T
    assert keys.shape == values.shape == (24, D)
    looked_up = nn.functional.scaled_dot_product_attention(X, keys.expand(2, -1, -1), values.expand(2, -1, -1))
    assert_close(ours(X), looked_up * 24**0.5)


def memory_by_formula(x: torch.Tensor, ours: Memory, scale: float) -> torch.Tensor:
    """scale softmax(x W_Q K^T / sqrt(D)) V."""
    assert ours.keys is not None
    scores = x @ ours.proj_in.weight.T @ ours.keys.weight.T / D**0.5
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return scale * weights @ ours.proj_out.weight.T


@pytest.mark.parametrize("gain", [False, True])
def test_memory_with_queries(gain: bool) -> None:
    """With query=true gain=false it is softmax(X W_Q K^T / sqrt(D)) V."""
    ours = stir(Memory(context(), expansion=1.5, query=True, gain=gain)).double()
    assert ours.proj_in.weight.shape == (D, D)
    assert_close(ours(X), memory_by_formula(X, ours, 24**0.5 if gain else 1.0))


def test_memory_without_a_factor_needs_softmax() -> None:
    with pytest.raises(ValueError, match="gain=false: activation=gelu has no factor to leave out"):
        Memory(context(), activation="gelu", gain=False)
