"""`layers`: kinds of layers that differ in position scheme, mixers, norm and block."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from blockyard.contracts import Inputs, Kind, iter_blocks
from blockyard.layers.pattern import Pattern
from blockyard.model import _block_stack
from blockyard.weight_init import initialise
from tests.components.model.tiny_models import build_tiny, tiny_parts
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.support.helpers import LENGTH, factory, stir, tiny, token_ids

DEPTH = 4
# Schemes that act in the mixers; the second rope has another base.
SCHEMES: dict[str, Any] = {
    "rope": factory("position", "rope"),
    "rope_500": factory("position", "rope", {"base": 500.0}),
    "alibi": factory("position", "alibi"),
    "t5_bias": factory("position", "t5_bias"),
    "none": factory("position", "none"),
}
HYBRID = Pattern(
    first=("base",),
    pattern=("near", "recurrent", "channels"),
    kinds={
        "near": Kind(
            token_mixer=factory("token_mixer", "windowed_attention"),
            position=factory("position", "alibi"),
            norm=factory("norm", "rms"),
        ),
        "recurrent": Kind(
            token_mixer=factory("token_mixer", "linear_recurrence"),
            channel_mixer=factory("channel_mixer", "glu"),
            block=factory("block", "post_norm"),
        ),
        "channels": Kind(token_mixer=factory("token_mixer", "none")),
    },
)


def hybrid(**sizes: Any) -> nn.Module:
    """A decoder of four kinds of layers."""
    return tiny(causal=True, position="rope", replace={"layers": HYBRID}, sizes={"depth": DEPTH, **sizes})


def alternating(own: str, other: str, **picks: Any) -> nn.Module:
    """A model whose layers have two position schemes in turns."""
    layers = Pattern(pattern=("base", "other"), kinds={"other": Kind(position=SCHEMES[other])})
    return tiny(replace={"position": SCHEMES[own], "layers": layers}, sizes={"depth": DEPTH}, **picks)


@pytest.mark.parametrize(("own", "other"), list(permutations(SCHEMES, 2)))
@pytest.mark.parametrize("length", [LENGTH, 4])
def test_each_layer_has_its_scheme(own: str, other: str, length: int) -> None:
    """As if each block ran in a model of its scheme alone, on whole sequences, padded and packed ones."""
    model = alternating(own, other)
    lengths = None if length == LENGTH else torch.tensor([length, LENGTH])
    segment = None if lengths is not None else torch.tensor([[0, 0, 0, 1, 1, 1]]).expand(2, -1)
    inputs = Inputs(token_ids(2, LENGTH), lengths=lengths, segment=segment)
    record: dict[str, Any] = {}
    outputs = model(inputs, None, record)
    x, seq = record["stream"], record["seq"]
    for layer, block in enumerate(model.blocks):
        scheme = model.position if layer % 2 == 0 else model.positions["other"]
        x = block(x, replace(seq, position=scheme, memo={}), None, None)
    assert_close(outputs, model.head(model.final_norm(x), seq))


def test_planted_mask_that_two_schemes_share_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: layers of both schemes keep their masks in one memo."""
    monkeypatch.setattr(_block_stack, "under", lambda seq, position: replace(seq, position=position))
    with pytest.raises(AssertionError):
        test_each_layer_has_its_scheme("alibi", "t5_bias", 4)


@pytest.mark.parametrize(("own", "other"), [("rope", "none"), ("alibi", "rope"), ("none", "t5_bias")])
def test_traits_of_mixers_stay(own: str, other: str) -> None:
    """Causality, padding, packing and a cache, under two position schemes."""
    for causal in (False, True):
        model = alternating(own, other, causal=causal)
        padding(model, LENGTH)
        packing(model, LENGTH)
    causality(model, LENGTH)
    cached_decoding(model, LENGTH)


@pytest.mark.parametrize("sizes", [{}, {"order": (0, 1, 2, 3, 1, 2)}], ids=["once", "looped"])
def test_layers_that_differ_in_everything(sizes: dict[str, Any]) -> None:
    model = hybrid(**sizes)
    assert [type(block).__name__ for block in model.blocks] == ["PreNorm", "PreNorm", "PostNorm", "PreNorm"]
    assert [type(block.token_mixer).__name__ for block in model.blocks] == [
        "Attention",
        "WindowedAttention",
        "LinearRecurrence",
        "NoMixing",
    ]
    assert type(model.blocks[1].token_norm) is not type(model.blocks[0].token_norm)
    assert type(model.blocks[2].channel_mixer) is not type(model.blocks[0].channel_mixer)
    causality(model, LENGTH)
    cached_decoding(model, LENGTH)


def test_every_weight_has_a_gradient() -> None:
    """Also where blocks are checkpointed, with the same values."""
    gradients = []
    for checkpointed in (False, True):
        model = hybrid()
        if checkpointed:
            for block in iter_blocks(model):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
        model(token_ids(2, LENGTH)).square().sum().backward()
        gradients.append({path: parameter.grad for path, parameter in model.named_parameters()})
    for path, gradient in gradients[0].items():
        assert gradient is not None, path
        assert gradient.abs().max() > 0, path
        assert_close(gradients[1][path], gradient)


def test_one_graph() -> None:
    """torch.export takes the whole model, and its program gives the same outputs."""
    model = hybrid().float()
    inputs = token_ids(2, LENGTH)
    program = torch.export.export(model, (inputs,), strict=False)
    assert_close(program.module()(inputs), model(inputs))


@pytest.mark.full
def test_blocks_compile_whole() -> None:
    model = alternating("rope", "alibi").float()
    inputs = token_ids(2, LENGTH)
    expected = model(inputs)
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    assert_close(model(inputs), expected)


@pytest.mark.parametrize("last", ["pre_norm", "post_norm"])
def test_the_last_block_decides_on_the_final_norm(last: str) -> None:
    """The last that a stream passes, which `order` may have put earlier."""
    other = {"pre_norm": "post_norm", "post_norm": "pre_norm"}[last]
    layers = Pattern(pattern=("base", "other"), kinds={"other": Kind(block=factory("block", last))})
    for order in ((0, 1), (1, 0, 1)):
        model = tiny(block=other, replace={"layers": layers}, sizes={"order": order})
        assert isinstance(model.final_norm, nn.Identity) == (last == "post_norm")
    model = tiny(block=other, replace={"layers": layers}, sizes={"order": (0, 1, 0)})
    assert isinstance(model.final_norm, nn.Identity) == (other == "post_norm")


@pytest.mark.parametrize("name", ["encoder", "decoder", "joint", "joint_encoder", "perceiver", "encoder_decoder"])
def test_every_model_with_blocks_has_it(name: str) -> None:
    """Both stacks of an encoder-decoder have it, each over its own depth."""
    layers = Pattern(pattern=("base", "lean"), kinds={"lean": Kind(channel_mixer=factory("channel_mixer", "none"))})
    model = stir(build_tiny(name, layers=layers))
    towers = [model, *([model.encoder] if name == "encoder_decoder" else [])]
    for tower in towers:
        assert tower.kinds == ("base", "lean")
        assert [block.channel_norm is None for block in tower.blocks] == [False, True]


def test_weights_of_other_layers_stay() -> None:
    """A layer that is as the config says has the weights that it has where all layers are alike."""
    layers = Pattern(pattern=("base", "glu"), kinds={"glu": Kind(channel_mixer=factory("channel_mixer", "glu"))})
    plain = initialise(tiny(sizes={"depth": DEPTH}), 0)
    differing = initialise(tiny(sizes={"depth": DEPTH}, replace={"layers": layers}), 0)
    own = plain.state_dict()
    for name, value in differing.state_dict().items():
        if not name.startswith(("blocks.1.channel_mixer", "blocks.3.channel_mixer")):
            assert torch.equal(value, own[name]), name


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ({"pattern": ("base", "far")}, "the kind 'far', which is not in layers.kinds"),
        ({"kinds": {"far": Kind()}}, "layers.kinds.far is in none of"),
        ({"pattern": ("base",), "kinds": {"base": Kind()}}, "use another name"),
    ],
)
def test_names_that_mean_nothing(pattern: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pattern(**pattern)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ({"pattern": ("base",) * 4 + ("far",)}, "none of the 4 layers; use a depth of 5"),
        ({"first": ("far",) * 3, "last": ("base",) * 2}, "name 5 layers and the model has 4"),
    ],
)
def test_a_pattern_that_does_not_fit_the_depth(pattern: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pattern(**pattern, kinds={"far": Kind()}).names(4)


@pytest.mark.parametrize(
    ("scheme", "message"), [("learned", "before the first layer"), ("bias_table", "made for one grid")]
)
def test_schemes_that_do_not_act_in_single_layers(scheme: str, message: str) -> None:
    layers = Pattern(pattern=("base", "other"), kinds={"other": Kind(position=factory("position", scheme))})
    with pytest.raises(ValueError, match=message):
        tiny(replace={"layers": layers})


def test_a_scheme_that_no_layer_has_is_refused() -> None:
    layers = Pattern(pattern=("other",), kinds={"other": Kind(position=SCHEMES["none"])})
    with pytest.raises(ValueError, match="no layer has this scheme"):
        tiny(position="rope", replace={"layers": layers})


def test_a_class_token_needs_a_layer_that_mixes() -> None:
    with pytest.raises(ValueError, match="no layer has another"):
        build_tiny("encoder", token_mixer="none", prefix=_class_token())
    mixing = Pattern(
        pattern=("base", "mixing"), kinds={"mixing": Kind(token_mixer=factory("token_mixer", "attention"))}
    )
    build_tiny("encoder", token_mixer="none", prefix=_class_token(), layers=mixing)


def _class_token() -> Any:
    from blockyard.model._prefix import Prefix

    return Prefix(class_token=True)


def test_parts_without_kinds_are_one_kind() -> None:
    parts = tiny_parts()
    assert parts.kinds(3) == ("base",) * 3
    assert parts.of_kind("base") is parts
