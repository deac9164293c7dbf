"""Components refuse what they do not declare, by name and with an alternative; for every choice in conf/."""

from __future__ import annotations

import pytest
import torch

from blockyard.contracts import Embedder, Inputs, Memory, Seq
from blockyard.head.mean_pool import MeanPool
from blockyard.model._prefix import Prefix
from blockyard.token_mixer.attention import Attention
from tests.support.helpers import GRIDS, axes_of, choices, context, factory, has, node, stir, tiny, token_ids, traits


def build(mixer: str, **settings: object) -> torch.nn.Module:
    """A mixer in a Context that its traits allow, changed by `settings`."""
    declared = traits(mixer)
    axes = 1 if 1 in declared.axes else min(declared.axes)
    return factory("token_mixer", mixer)(context(**{"causal": not declared.bidirectional, "axes": axes, **settings}))


SETTINGS = {
    "causal": {"causal": True},
    "bidirectional": {"causal": False},
    "prefix": {"prefix": Prefix(registers=1)},
    "padding": {"variable": True},
    "packing": {"packed": True},
}


@pytest.mark.parametrize("trait", SETTINGS)
@pytest.mark.parametrize("mixer", choices("token_mixer"))
def test_a_context_is_accepted_only_where_declared(mixer: str, trait: str) -> None:
    target = node("token_mixer", mixer)[0]
    if getattr(traits(mixer), trait):
        build(mixer, **SETTINGS[trait])
        return
    with pytest.raises(ValueError, match=f"token_mixer {target.__name__} .*use"):
        # Another layer may mix prefix tokens where a mixer is empty, which the whole model knows.
        build(mixer, **SETTINGS[trait]) if not target.empty else tiny(token_mixer=mixer, **SETTINGS[trait])


@pytest.mark.parametrize("axes", GRIDS)
@pytest.mark.parametrize("family", ["token_mixer", "position"])
def test_axes_are_checked(family: str, axes: int) -> None:
    for name in choices(family):
        target = node(family, name)[0]
        declared = target.axes if family == "position" else traits(name).axes
        ctx = context(axes=axes)
        if axes in declared:
            factory(family, name)(ctx)
        else:
            with pytest.raises(ValueError, match="coordinate axes"):
                factory(family, name)(ctx)


@pytest.mark.parametrize("trait", ["padding", "packing", "cross", "cache"])
@pytest.mark.parametrize("mixer", choices("token_mixer"))
def test_a_call_is_accepted_only_where_declared(mixer: str, trait: str) -> None:
    causal = trait == "cache" and traits(mixer).causal
    part = stir(build(mixer, causal=causal)).double()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    features = torch.rand(2, 6, 3, dtype=torch.float64)
    seq = Seq(torch.arange(6), torch.arange(6).double()[None, :, None], grid=(6,), features=features)
    seq.pairs = (torch.arange(36).view(1, 6, 6).expand(2, -1, -1) % 3,)
    extra: dict[str, object] = {}
    if trait == "padding":
        seq.valid = torch.arange(6) < torch.tensor([[6], [3]])
    if trait == "packing":
        seq.segment = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    if trait == "cross":
        extra["memory"] = Memory(torch.randn(2, 4, 16, dtype=torch.float64), Seq(torch.arange(4), torch.zeros(1, 4, 1)))
    supported = hasattr(part, "init_cache") if trait == "cache" else getattr(part.traits, trait)
    if trait == "cache":
        extra["cache"] = part.init_cache(2) if supported else object()
    if supported:
        assert part(x, seq, **extra).shape == x.shape
        return
    with pytest.raises(ValueError, match=f"token_mixer {type(part).__name__} "):
        part(x, seq, **extra)


@pytest.mark.parametrize("mixer", choices("token_mixer"))
def test_positions_that_a_mixer_would_ignore_are_refused(mixer: str) -> None:
    declared = traits(mixer)
    for position in choices("position"):
        scheme = node("position", position)[0]
        axes = max(declared.axes & scheme.axes & {0, 1}, default=None)
        if axes is None:
            continue
        ports = {scheme.needs[hook] for hook in scheme.acts_on if hook in scheme.needs}
        if ports <= declared.ports:
            tiny(token_mixer=mixer, position=position, axes=axes)
        else:
            with pytest.raises(ValueError, match=f"position {scheme.__name__} acts on"):
                tiny(token_mixer=mixer, position=position, axes=axes)


def test_the_error_names_the_mixer_without_a_cache() -> None:
    for mixer in choices("token_mixer"):
        target = node("token_mixer", mixer)[0]
        if traits(mixer).causal and not has(mixer, "init_cache"):
            with pytest.raises(ValueError, match=f"token_mixer {target.__name__} cannot decode"):
                tiny(causal=True, token_mixer=mixer).init_cache(1)
    with pytest.raises(ValueError, match="bidirectional model cannot decode"):
        tiny().init_cache(1)


@pytest.mark.parametrize("kv_heads", [0, 3, 8])
def test_key_heads_must_divide(kv_heads: int) -> None:
    with pytest.raises(ValueError, match=rf"num_kv_heads={kv_heads} does not divide model.heads=4.*1, 2, 4"):
        Attention(context(), num_kv_heads=kv_heads)


def test_heads_must_divide() -> None:
    with pytest.raises(ValueError, match=r"heads=4 does not divide model\.dim=18"):
        tiny(sizes={"dim": 18})


@pytest.mark.parametrize(("position", "sizes"), [("rope", {"dim": 12}), ("sinusoidal", {"dim": 15, "heads": 3})])
def test_channels_must_pair_up(position: str, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"position {position} divides .* must be a multiple of 2"):
        tiny(position=position, sizes=sizes)


def test_rope_on_a_grid_needs_multiples_of_four() -> None:
    with pytest.raises(ValueError, match="among 2 axes, so it must be a multiple of 4, not 6"):
        tiny(position="rope", axes=2, sizes={"dim": 24})


@pytest.mark.parametrize("mixer", [m for m in choices("token_mixer") if not has(m, "mix")])
def test_fusing_needs_projections(mixer: str) -> None:
    axes = axes_of("token_mixer", mixer)
    with pytest.raises(ValueError, match=r"block.fused=true joins .* use block.fused=false"):
        tiny(block="parallel", token_mixer=mixer, axes=axes)
    tiny(block="parallel", token_mixer=mixer, axes=axes, options={"block": {"fused": False}})


def test_invalid_prefixes_are_refused() -> None:
    with pytest.raises(ValueError, match="the class token is the first"):
        tiny(causal=True, prefix=Prefix(class_token=True))
    with pytest.raises(ValueError, match="head ClassToken reads the class token"):
        tiny(head="class_token", prefix=Prefix(registers=2))
    with pytest.raises(ValueError, match="head=class_token reads a class token"):
        tiny(head="class_token")
    packed = torch.tensor([[0, 0, 0, 1, 1, 1]])
    with pytest.raises(ValueError, match="would carry one document into another"):
        tiny(prefix=Prefix(registers=1))(Inputs(token_ids(1, 6), segment=packed))


@pytest.mark.parametrize("head", [h for h in choices("head") if node("head", h)[0].gives == "sequence"])
def test_one_prediction_for_several_documents_is_refused(head: str) -> None:
    prefix = Prefix(class_token=node("head", head)[0].needs_class_token)
    part = factory("head", head)(context(prefix=prefix))
    seq = Seq(torch.arange(6), torch.zeros(1, 6, 1), segment=torch.zeros(1, 6), num_prefix=len(prefix))
    with pytest.raises(ValueError, match="packs several documents"):
        part(torch.randn(1, 6, 16), seq)


def test_invalid_ties_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shares an embedding table of 11 token ids, but the head has 5"):
        tiny(options={"head": {"tied": True}}, sizes={"outputs": 5})
    head = factory("head", "token", {"tied": True})(context())
    with pytest.raises(ValueError, match=r"needs an embedding table of shape \(11, 16\).*none"):
        head.tie(Embedder())


def test_a_cache_needs_sequences_of_one_length() -> None:
    model = tiny(causal=True)
    with pytest.raises(ValueError, match="sequences of one length"):
        model(Inputs(token_ids(2, 3), lengths=torch.tensor([3, 2])), cache=model.init_cache(2))
    with pytest.raises(ValueError, match="the cache takes keys of shape"):
        model(token_ids(3, 3), cache=model.init_cache(2))


def test_an_even_neighbourhood_is_refused() -> None:
    with pytest.raises(ValueError, match=r"token_mixer\.size=2 must be odd"):
        factory("token_mixer", "pool", {"size": 2})(context())


def test_mean_pool_of_an_empty_sequence_is_finite() -> None:
    head = stir(MeanPool(context()))
    seq = Seq(torch.arange(3), torch.zeros(1, 3, 1), valid=torch.tensor([[False] * 3, [True, True, False]]))
    x = torch.randn(2, 3, 16)
    out = head(x, seq)
    torch.testing.assert_close(out[0], head.proj.bias)
    torch.testing.assert_close(out[1], head.proj(x[1, :2].mean(0)))
