"""Cached decoding, permutation and translation, for every token mixer and position scheme in conf/."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blockyard.contracts import Seq
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.ops.cache import KVCache
from blockyard.position.rope import Rope
from blockyard.token_mixer.attention import Attention
from tests.components.properties.checks import cached_decoding, permutation, relative
from tests.support.helpers import (
    GRIDS,
    LENGTH,
    blocks,
    choices,
    combinations,
    context,
    factory,
    has,
    node,
    reads_later,
    tiny,
    traits,
)
from tests.support.pairwise import in_pairs


def cacheable() -> list[tuple[str, str, int, Prefix]]:
    """Legal combinations whose mixer decodes from a cache, with and without registers."""
    return [
        (mixer, position, axes, prefix)
        for mixer, position, axes in combinations("causal")
        for prefix in (NO_PREFIX, Prefix(registers=2))
        if has(mixer, "init_cache") and (prefix == NO_PREFIX or traits(mixer).prefix)
    ]


@pytest.mark.parametrize(("mixer", "position", "axes", "prefix"), in_pairs(cacheable()), ids=str)
@pytest.mark.sampled(3)
def test_cached_decoding(mixer: str, position: str, axes: int, prefix: Prefix) -> None:
    cached_decoding(tiny(causal=True, axes=axes, prefix=prefix, token_mixer=mixer, position=position), LENGTH)


@pytest.mark.parametrize("options", [{"num_kv_heads": 1}, {"num_kv_heads": 2, "qk_norm": True, "bias": True}])
@pytest.mark.parametrize("block", blocks())
def test_cached_decoding_in_every_block(block: str, options: dict[str, object]) -> None:
    model = tiny(causal=True, block=block, position="alibi", options={"token_mixer": options})
    cached_decoding(model, LENGTH)


def test_the_cache_grows_beyond_its_initial_storage() -> None:
    model = tiny(causal=True, position="rope", sizes={"grid": (150,)})
    cached_decoding(model, 150)


@pytest.mark.parametrize("axes", GRIDS)
@pytest.mark.parametrize("mixer", choices("token_mixer"))
def test_permutation(mixer: str, axes: int) -> None:
    declared = traits(mixer)
    if axes not in declared.axes:
        with pytest.raises(ValueError, match=f"coordinate axes, the tokens have {axes}"):
            tiny(token_mixer=mixer, axes=axes)
        return
    if not declared.equivariant:
        with pytest.raises(AssertionError):
            permutation(tiny(token_mixer=mixer, axes=axes), LENGTH)
        return
    permutation(tiny(token_mixer=mixer, axes=axes), LENGTH)
    if declared.prefix:
        permutation(tiny(token_mixer=mixer, axes=axes, prefix=Prefix(True, 1)), LENGTH)


def schemes() -> list[tuple[str, int]]:
    """(position, axes) for every number of axes that a scheme declares."""
    return [(p, axes) for p in choices("position") for axes in GRIDS if axes in node("position", p)[0].axes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("position", "axes"), schemes())
def test_relative(position: str, axes: int, causal: bool) -> None:
    declared = node("position", position)[0]
    if causal and reads_later(position):
        return
    # Prefix keys are not rotated, so a rotated query would reveal its absolute position there.
    prefix = NO_PREFIX if "rotate" in declared.acts_on else Prefix(registers=2)
    model = tiny(causal=causal, axes=axes, position=position, prefix=prefix)
    if declared.relative:
        relative(model, LENGTH)
    else:
        with pytest.raises(AssertionError):
            relative(model, LENGTH)


@pytest.mark.parametrize(("position", "axes"), [(p, axes) for p, axes in schemes() if p != "none" and axes])
def test_positions_matter(position: str, axes: int) -> None:
    """Every scheme breaks the permutation symmetry of a model without one."""
    with pytest.raises(AssertionError):
        permutation(tiny(position=position, axes=axes), LENGTH)


@pytest.mark.parametrize(("position", "axes"), schemes())
def test_hooks_are_declared_in_acts_on(position: str, axes: int) -> None:
    """A hook is the identity unless it is named in `acts_on`."""
    scheme = factory("position", position)(context(axes=axes)).double()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    coords = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 2.0]], dtype=torch.float64)[None, :, :axes]
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    q, k = torch.randn(2, 4, 3, 4, dtype=torch.float64), torch.randn(2, 2, 3, 4, dtype=torch.float64)
    rotated = scheme.rotate(q, k, coords, coords)
    assert torch.equal(scheme.embed(x, coords), x) == ("embed" not in scheme.acts_on)
    assert torch.equal(rotated[0], q) == torch.equal(rotated[1], k) == ("rotate" not in scheme.acts_on)
    for hook in ("bias", "embed_pairs", "embed_neighbours", "relate"):
        assert (hook in scheme.acts_on) == (hook in vars(type(scheme)))


class QueriesOnly(Rope):
    """Planted: rotates queries only, so scores depend on absolute positions."""

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        return super().rotate(q, k, q_coords, k_coords)[0], k


class LosesValue(KVCache):
    """Planted: loses the value of the oldest key."""

    def append(self, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        k, v, k_seq = super().append(k, v, seq)
        return k, torch.cat([torch.zeros_like(v[:, :, :1]), v[:, :, 1:]], 2), k_seq


class Forgetful(Attention):
    """Planted: decodes from a cache that loses a value."""

    def init_cache(self, batch_size: int) -> KVCache:
        return LosesValue(batch_size, self.kv_heads, self.head_dim)


class Ordered(Attention):
    """Planted: depends on the order without a position scheme."""

    def forward(self, x: Tensor, seq: Seq, cache: object = None, memory: object = None) -> Tensor:
        return super().forward(x + x.cumsum(1), seq, cache, memory)


def test_planted_half_rotation_is_caught() -> None:
    with pytest.raises(AssertionError):
        relative(tiny(replace={"position": QueriesOnly}), LENGTH)


def test_planted_lost_value_is_caught() -> None:
    with pytest.raises(AssertionError):
        cached_decoding(tiny(causal=True, replace={"token_mixer": Forgetful}), LENGTH)


def test_planted_order_is_caught() -> None:
    with pytest.raises(AssertionError):
        permutation(tiny(replace={"token_mixer": Ordered}), LENGTH)
