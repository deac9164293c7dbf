"""Channel mixers and norms against timm, transformers and torch."""

from __future__ import annotations

import pytest
import torch
from timm.layers import GluMlp, Mlp
from torch import nn
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from blockyard.channel_mixer.glu import GLU
from blockyard.channel_mixer.mlp import MLP
from blockyard.norm.layer import Layer
from blockyard.norm.layer_plain import LayerPlain
from blockyard.norm.none import NoNorm
from blockyard.norm.rms import RMS
from tests.helpers import context, stir

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
def test_mlp(activation: str, bias: bool) -> None:
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
