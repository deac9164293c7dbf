"""Training and evaluation, half precision, the meta device, the compiler: every YAML goes through."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.block._base import BranchDropout
from blockyard.contracts import Inputs, Parts, Seq
from blockyard.model._prefix import Prefix
from blockyard.model._transformer import Transformer
from blockyard.ops.flex import flex
from blockyard.ops.mask import CAUSAL
from blockyard.ops.reference import eager
from tests.ops.attention_inputs import facts, qkv
from tests.support.every import every
from tests.support.helpers import (
    TinyEmbedder,
    axes_of,
    blocks,
    choices,
    combinations,
    context,
    factory,
    node,
    tiny,
    token_ids,
    traits,
)
from tests.support.tolerances import float32

FAMILIES = ["token_mixer", "channel_mixer", "norm", "block", "position"]
EACH = [(family, name) for family in FAMILIES for name in choices(family)]


@pytest.mark.parametrize(("family", "name"), EACH)
def test_half_precision(family: str, name: str) -> None:
    """Under bf16 autocast outputs and gradients are finite and near those of float32."""
    model = tiny(axes=axes_of(family, name), **{family: name}).float().train()
    inputs = token_ids(2, 6)
    exact = model(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(inputs)
    rough.float().square().mean().backward()
    assert every(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    spread = exact.std().item()
    assert (rough.float() - exact).abs().mean().item() < 0.1 * spread


class Projects(TinyEmbedder):
    """Ends in a matmul, as embedders of images do; autocast makes that half precision."""

    def forward(self, *args: object) -> tuple[torch.Tensor, Seq]:
        x, seq = super().forward(*args)
        return x @ torch.eye(x.shape[-1]), seq


@pytest.mark.parametrize("block", blocks())
def test_the_stream_keeps_single_precision(block: str, recwarn: pytest.WarningsRecorder) -> None:
    model = tiny(block=block, norm="rms", options={"token_mixer": {"qk_norm": True}}, prefix=Prefix(True, 1)).float()
    model.embedder.__class__ = Projects
    with torch.autocast("cpu", dtype=torch.bfloat16):
        steps = model.steps(token_ids(2, 6))
    for name in ("embedded", "stream", "block.0", "block.1"):
        assert steps[name].dtype == torch.float32, name
    assert not [warning for warning in recwarn if "rms" in str(warning.filename) or "Mismatch" in str(warning.message)]


def _apart(cases: list[Any]) -> list[Any]:
    """Every mixer with two positions, and every position with one mixer; the others are for the full suite."""
    return [
        case if case[0] == "attention" or case[1] in ("none", "rope") else pytest.param(*case, marks=pytest.mark.full)
        for case in cases
    ]


@pytest.mark.parametrize(("mixer", "position", "axes"), _apart(combinations("bidirectional")))
@pytest.mark.sampled(2)
def test_meta_device(mixer: str, position: str, axes: int) -> None:
    """Nothing is computed, shapes and parameters are those of the real model; lengths included."""
    picks = {"channel_mixer": "glu", "norm": "rms", "block": "pre_norm", "head": "token"}
    factories = {family: factory(family, name) for family, name in picks.items()}
    factories |= {"token_mixer": factory("token_mixer", mixer), "position": factory("position", position)}
    mixes = not node("token_mixer", mixer)[0].empty  # else no layer reads the registers, and they are refused
    prefix = Prefix(registers=int(traits(mixer).prefix and mixes))
    # Each of the two maps of differential attention has half of a head's channels, which are rotated in pairs.
    sizes = {"heads": 2} if mixer == "differential_attention" else {}
    ctx = context(axes=axes, prefix=prefix, **sizes)
    with torch.device("meta"):
        meta_model = Transformer(ctx, Parts(embedder=TinyEmbedder, **factories), prefix=prefix, dropout=0.0)
        out = meta_model(torch.zeros(2, 6, dtype=torch.long))
        if traits(mixer).padding:
            meta_model(Inputs(torch.zeros(2, 6, dtype=torch.long), lengths=torch.tensor([6, 3])))
    assert out.device.type == "meta"
    assert out.shape == (2, 6, 11)
    assert every(parameter.is_meta for parameter in meta_model.parameters())
    real = tiny(axes=axes, prefix=prefix, sizes=sizes, token_mixer=mixer, position=position, **picks)
    shapes = [{k: v.shape for k, v in model.state_dict().items()} for model in (real, meta_model)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("option", ["dropout", "drop_path"])
@pytest.mark.parametrize("block", blocks())
def test_evaluation_is_without_chance(block: str, option: str) -> None:
    if option not in node("block", block)[1]:
        return
    plain = tiny(block=block)
    model = tiny(block=block, options={"block": {option: 0.5}})
    inputs = token_ids(8, 6)
    assert_close(model(inputs), plain(inputs))
    model.train()
    assert not torch.allclose(model(inputs), plain(inputs))


@pytest.mark.parametrize("family", ["token_mixer", "channel_mixer"])
def test_dropout_inside_mixers_is_for_training(family: str) -> None:
    for name in choices(family):
        if "dropout" not in node(family, name)[1]:
            continue
        model = tiny(options={family: {"dropout": 0.5}}, **{family: name})
        inputs = token_ids(2, 6)
        assert_close(model(inputs), tiny(**{family: name})(inputs))
        assert not torch.allclose(model.train()(inputs), model.eval()(inputs))


RATE = 0.3
# Where each draws: the part of a model, and the tensor that it drops from, by shape.
DRAWS = {
    ("token_mixer", "hard_attention", ()): (2, 4, 6, 6),
    ("token_mixer", "sigmoid_attention", ()): (2, 4, 6, 6),
    ("token_mixer", "gated_attention_unit", ()): (2, 1, 6, 6),
    ("token_mixer", "non_local", (("score", "dot_product"),)): (2, 1, 6, 6),
    ("token_mixer", "token_mlp", ()): (2, 16, 8),
    ("token_mixer", "gmlp", ()): (2, 6, 96),
    ("channel_mixer", "memory", ()): (2, 6, 64),
    ("channel_mixer", "memory", (("activation", "gelu"),)): (2, 6, 64),
    ("channel_mixer", "mlp", ()): (2, 6, 64),
}


@pytest.mark.parametrize("place", DRAWS, ids=str)
def test_dropout_is_on_what_is_said(place: tuple[str, str, tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    """At its rate, which keeps the mean, on the weights or the hidden channels, and on nothing else."""
    family, name, options = place
    model = tiny(options={family: {"dropout": RATE, **dict(options)}}, **{family: name}).train()
    drop, seen = F.dropout, []

    def spy(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if p:
            seen.append((tuple(x.shape), p, training, drop(torch.ones(4000), p, training)))
        return drop(x, p, training, inplace)

    monkeypatch.setattr(F, "dropout", spy)
    model(token_ids(2, 6))
    assert [each[:3] for each in seen] == [(DRAWS[place], RATE, True)] * 2
    for *_, ones in seen:
        assert ones.mean().item() == pytest.approx(1.0, abs=0.05)
        assert ones.eq(0).float().mean().item() == pytest.approx(RATE, abs=0.05)


@pytest.mark.parametrize("score", ["gaussian", "embedded_gaussian", "dot_product", "concatenation"])
def test_dropout_of_every_similarity(score: str) -> None:
    options = {"score": score, "dropout": 0.5}
    model = tiny(token_mixer="non_local", options={"token_mixer": options})
    plain = tiny(token_mixer="non_local", options={"token_mixer": {"score": score}})
    assert_close(model(token_ids(2, 6)), plain(token_ids(2, 6)))
    assert not torch.allclose(model.train()(token_ids(2, 6)), plain(token_ids(2, 6)))


def test_stochastic_depth_grows_and_keeps_the_mean() -> None:
    rates = [BranchDropout(context(depth=5).at(layer), 0.0, 0.4).drop_path for layer in range(5)]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert BranchDropout(context(depth=1), 0.0, 0.4).drop_path == 0.4
    branch = BranchDropout(context(depth=2).at(1), 0.0, 0.25)
    torch.manual_seed(0)
    out = branch(torch.ones(4000, 3, 2))
    kept = out[:, 0, 0]
    assert torch.equal(out, kept[:, None, None].expand_as(out))
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert kept.mean().item() == pytest.approx(1.0, abs=0.05)


def test_steps_name_what_a_forward_pass_goes_through() -> None:
    model = tiny(position="learned", prefix=Prefix(True, 1))
    steps = model.steps(token_ids(2, 6))
    assert list(steps) == [
        "embedded", "placed", "seq", "stream", "block.0", "block.1", "normed", "prediction",
    ]  # fmt: skip
    assert_close(steps["prediction"], model(token_ids(2, 6)))
    assert steps["stream"].shape == (2, 8, 16)
    assert steps["seq"].num_prefix == 2
    assert torch.equal(steps["seq"].index, torch.arange(8))


@pytest.mark.full
@pytest.mark.parametrize(("family", "name"), EACH)
def test_compiled_blocks(family: str, name: str) -> None:
    """Each block compiles into one graph and gives what it gives uncompiled."""
    compiled_equals_plain(tiny(axes=axes_of(family, name), **{family: name}).float().train())


@pytest.mark.full
def test_a_compiled_block() -> None:
    model = tiny(causal=True, position="rope", block="parallel").float().train()
    compiled_equals_plain(model)
    # Rows of other lengths, which the compiler then takes as unknown, and pieces after a cache.
    inputs, cache = token_ids(2, 9), model.init_cache(2)
    whole = tiny(causal=True, position="rope", block="parallel").float()(inputs)
    for length in (5, 4, 3, 9):
        assert_close(model(inputs[:, :length]), whole[:, :length], **float32(terms=64, layers=8))
    torch._dynamo.reset()  # the compiler stops at eight graphs of one block
    with torch.no_grad():
        chunks = [model(chunk, cache=cache) for chunk in inputs.split([3, 2, 1, 1, 2], dim=1)]
    assert_close(torch.cat(chunks, 1), whole, **float32(terms=64, layers=8))


def compiled_equals_plain(model: nn.Module) -> None:
    """Outputs and gradients, plain and where a mask is needed."""
    torch._dynamo.reset()
    inputs = token_ids(2, 6)
    for lengths in [None, torch.tensor([6, 4])][: 1 + all(mixer.traits.padding for mixer in model.mixers)]:
        grads = []
        for compiled in (False, True):
            model.zero_grad()
            for block in model.blocks:
                block._compiled_call_impl = None
                if compiled:
                    # The compiler leaves torch's recurrent cells to torch.
                    whole = not any(isinstance(part, nn.RNNBase) for part in block.modules())
                    block.compile(fullgraph=whole, backend="aot_eager")
            out = model(Inputs(inputs, lengths=lengths))
            out.square().mean().backward()
            grads.append([out, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        for plain, fast in zip(*grads, strict=True):
            assert_close(fast, plain, **float32(terms=64, layers=8))


@pytest.mark.full
@pytest.mark.parametrize("axes", [1, 2])
def test_compiled_flex_attention(axes: int) -> None:
    """The kernel that is made for a GPU, made for the CPU: bias, prefix, padding and segments."""
    seq = facts("both", factory("position", "alibi")(context(axes=axes)), 2, 40)
    seq.coords = torch.cat([seq.coords.float()] * axes, -1)
    q, k, v = qkv(torch.float32, 2, 40, 40, 16)
    with torch.no_grad():
        assert_close(flex(q, k, v, seq, seq, CAUSAL), eager(q, k, v, seq, seq, CAUSAL), rtol=1e-4, atol=1e-4)
