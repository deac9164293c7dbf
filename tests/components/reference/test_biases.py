"""Position biases against libraries and loops, and inside a FlexAttention score function."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from timm.layers import RelPosBias
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from blockyard.contracts import Position, Seq
from blockyard.ops.flex import READS_TWICE, flex, refusal_of_scheme
from blockyard.ops.mask import CAUSAL, Visibility, bias_table
from blockyard.ops.reference import eager
from blockyard.position.alibi import Alibi
from blockyard.position.bias_offset import BiasOffset
from blockyard.position.bias_table import BiasTable
from blockyard.position.fire import Fire
from blockyard.position.t5_bias import T5Bias
from blockyard.weight_init import initialise
from tests.components.properties.checks import cached_decoding, relative
from tests.components.reference.inputs import lattice, line
from tests.ops.attention_inputs import qkv
from tests.support.helpers import GRIDS, choices, context, factory, node, tiny, token_ids
from tests.support.pairwise import in_pairs
from tests.support.tolerances import FLOAT64

BIASES = [name for name in choices("position") if "bias" in node("position", name)[0].acts_on]


def sequence(position: Position, coords: Tensor, prefix: int = 0) -> Seq:
    """The `Seq` of tokens at coords (1, N, A)."""
    return Seq(torch.arange(coords.shape[1]), coords, num_prefix=prefix, position=position)


def table(position: Position, coords: Tensor) -> Tensor:
    """The table (H, N, N) of a scheme, as `attend` builds it."""
    seq = sequence(position, coords)
    return bias_table(seq, seq, 4)[0].detach()


def randomised(position: Position) -> Position:
    """The scheme with random parameters, in float64."""
    for number in position.parameters():
        nn.init.normal_(number)
    return position.double()


@pytest.mark.parametrize("threshold", [0.0, 3.5, 40.0])
def test_fire_is_its_formula(threshold: float) -> None:
    """f(psi(i - j) / psi(max(L, i))) of Li et al. 2024 for a query i and a key j, pair by pair."""
    own = randomised(Fire(context(causal=True), hidden=5))
    with torch.no_grad():
        own.threshold.fill_(-threshold)  # its sign does not count
        own.scale.fill_(0.3)
    mlp = nn.Sequential(nn.Linear(1, 5), nn.ReLU(), nn.Linear(5, 4)).double()
    weights = {"0.weight": own.into[:, None], "0.bias": own.into_bias, "2.weight": own.out, "2.bias": own.out_bias}
    mlp.load_state_dict(weights)
    biases = table(own, line(9))
    for i in range(1, 9):
        for j in range(i + 1):
            share = math.log(0.3 * (i - j) + 1) / math.log(0.3 * max(threshold, i) + 1)
            expected = mlp(torch.tensor([share], dtype=torch.float64)).detach()
            assert_close(biases[:, i, j], expected, rtol=1e-5, atol=1e-5)  # 1e-6 is added to the divisor


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (16, 20), (8, 300)])
def test_t5(buckets: int, far: int, causal: bool) -> None:
    """As in transformers, over 400 positions."""
    config = T5Config(
        d_model=16, d_kv=4, num_heads=4, relative_attention_num_buckets=buckets, relative_attention_max_distance=far
    )
    config.is_decoder = causal
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    ours = randomised(T5Bias(context(causal=causal), buckets=buckets, far=far))
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(ours.table[0].T)
    expected, got = theirs.compute_bias(400, 400)[0].detach(), table(ours, line(400))
    if causal:  # what lies ahead is never seen
        expected, got = expected.tril(), got.tril()
    assert_close(got, expected)


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_t5_attention(causal: bool) -> None:
    """A layer of transformers, which does not divide scores by sqrt(K): our queries are larger by that factor."""
    model = tiny(causal=causal, position="t5_bias")
    config = T5Config(d_model=16, d_kv=4, num_heads=4, attn_implementation="eager")
    config.is_decoder = causal
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double().eval()
    mixer = model.blocks[0].token_mixer
    theirs.relative_attention_bias.weight.copy_(model.position.table[0].T)
    generator = torch.Generator().manual_seed(0)
    for part in (theirs.q, theirs.k, theirs.v, theirs.o):
        nn.init.normal_(part.weight, std=0.3, generator=generator)
    mixer.proj_in.weight.copy_(torch.cat([theirs.q.weight * 4**0.5, theirs.k.weight, theirs.v.weight]))
    mixer.proj_out.weight.copy_(theirs.o.weight)
    x = torch.randn(2, 40, 16, dtype=torch.float64, generator=generator)
    ahead = torch.full((40, 40), -torch.inf, dtype=torch.float64).triu(1) if causal else None
    expected = theirs(x, mask=None if ahead is None else ahead[None, None])[0]
    assert_close(mixer(x, sequence(model.position, line(40))), expected)
    model.position.table[0, 0, 0] += 1.0  # of one head, the bucket of a token itself
    with pytest.raises(AssertionError):
        assert_close(mixer(x, sequence(model.position, line(40))), expected)


def test_t5_on_a_grid_sums_over_axes() -> None:
    ours, positions = randomised(T5Bias(context(axes=2))), lattice(3, 5)
    expected = torch.zeros(4, 15, 15, dtype=torch.float64)
    for axis in (0, 1):
        single = randomised(T5Bias(context()))
        with torch.no_grad():
            single.table.copy_(ours.table[[axis]])
        expected += table(single, positions[..., [axis]])
    assert_close(table(ours, positions), expected)


def test_t5_refuses_invalid_buckets() -> None:
    with pytest.raises(ValueError, match=r"position\.buckets=7 must be even: half are for later tokens"):
        T5Bias(context(), buckets=7)
    with pytest.raises(ValueError, match=r"position\.far=16 is within the 16 distances"):
        T5Bias(context(causal=True), far=16)


@pytest.mark.parametrize("axes", [1, 2])
def test_full_table(axes: int) -> None:
    """The table itself on its own grid; fractional coordinates are rounded."""
    ours = randomised(BiasTable(context(axes=axes)))
    positions = line(6) if axes == 1 else lattice(2, 3)
    assert_close(table(ours, positions), ours.table.detach(), rtol=0, atol=0)
    assert_close(table(ours, positions + 0.3), ours.table.detach(), rtol=0, atol=0)


def test_full_table_on_larger_grids_takes_the_nearest_position() -> None:
    """A model built for 6 positions reads each entry for two of 12; causal models refuse."""
    model = tiny(position="bias_table")
    seq = model.steps(token_ids(1, 12))["seq"]
    got = bias_table(seq, seq, 4)[0]
    assert_close(got, model.position.table.repeat_interleave(2, 1).repeat_interleave(2, 2))
    with pytest.raises(ValueError, match="BiasTable supports 6 positions and the sequence has 12"):
        tiny(causal=True, position="bias_table")(token_ids(1, 12))


def test_offsets_on_a_grid() -> None:
    """As in timm, whose index orders offsets in the same way."""
    theirs = RelPosBias((3, 5), num_heads=4)
    nn.init.normal_(theirs.relative_position_bias_table)
    ours = BiasOffset(context(axes=2, grid=(3, 5)))
    with torch.no_grad():
        ours.table.copy_(theirs.relative_position_bias_table.T)
    assert_close(table(ours, lattice(3, 5)), theirs.get_bias()[0].detach())


@pytest.mark.parametrize("causal", [False, True])
def test_offsets_are_clipped(causal: bool) -> None:
    """By a loop over pairs."""
    ours = randomised(BiasOffset(context(causal=causal), clip=3))
    got = table(ours, line(9))
    low = 0 if causal else -3
    assert ours.table.shape == (4, 4 - low)
    for i in range(9):
        for j in range(i + 1 if causal else 9):
            assert_close(got[:, i, j], ours.table[:, max(low, min(3, i - j)) - low].detach())


@pytest.mark.parametrize("clip", [1, 2])
def test_offsets_are_clipped_on_a_grid(clip: int) -> None:
    """By a loop over pairs: rows and columns have the same clip, whatever the side."""
    ours = randomised(BiasOffset(context(axes=2, grid=(3, 5)), clip=clip))
    side = 2 * clip + 1
    assert ours.table.shape == (4, side**2)
    numbers = ours.table.detach().unflatten(1, (side, side))
    for rows, columns in ((3, 5), (4, 6)):
        positions = lattice(rows, columns)
        got = table(ours, positions)
        for i, here in enumerate(positions[0].long().tolist()):
            for j, there in enumerate(positions[0].long().tolist()):
                down, along = (max(-clip, min(clip, a - b)) + clip for a, b in zip(here, there, strict=True))
                assert_close(got[:, i, j], numbers[:, down, along])


def test_trained_slopes_start_at_the_papers_and_learn() -> None:
    fixed, trained = tiny(position="alibi"), tiny(position="alibi", options={"position": {"slopes": "trained"}})
    initialise(trained, 0)
    positions = line(6)
    assert_close(table(trained.position, positions), table(fixed.position, positions), **FLOAT64)
    seq = sequence(trained.position, positions)
    bias_table(seq, seq, 4).sum().backward()
    assert (trained.position.steps.grad > 0).all()
    assert not list(fixed.position.parameters())
    relative(trained, 6)


VARIANTS = [(name, {}) for name in BIASES] + [("alibi", {"slopes": "trained"}), ("bias_offset", {"clip": 2})]
INSIDE = [
    (variant, axes, causal)
    for variant, axes, causal in product(range(len(VARIANTS)), (1, 2), (False, True))
    if axes in (scheme := node("position", VARIANTS[variant][0])[0]).axes and (causal or not scheme.needs_causal)
]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("variant", "axes", "causal"), in_pairs(INSIDE))
@pytest.mark.sampled(3)
def test_inside_a_score_function(variant: int, axes: int, causal: bool) -> None:
    """Entries computed one at a time inside FlexAttention equal the table."""
    name, options = VARIANTS[variant]
    scheme = randomised(factory("position", name, options)(context(axes=axes, causal=causal)))
    coords = torch.arange(6).double()[None, :, None] if axes == 1 else lattice(*GRIDS[2])
    coords = torch.cat([torch.zeros(1, 2, axes, dtype=torch.float64), coords], 1)
    seq = sequence(scheme, coords, prefix=2)
    q, k, v = qkv(torch.float64, 2, n=8, m=8)
    with torch.no_grad():
        wanted = eager(q, k, v, seq, seq, Visibility(causal))
        assert_close(flex(q, k, v, seq, seq, Visibility(causal), compiled=False), wanted, **FLOAT64)


@pytest.mark.parametrize(
    ("name", "axes", "fits"), [("alibi", 2, True), ("t5_bias", 1, True), ("t5_bias", 2, False), ("fire", 1, False)]
)
def test_flex_attention_takes_a_bias_that_reads_each_tensor_once(name: str, axes: int, fits: bool) -> None:
    position = factory("position", name)(context(axes=axes, causal=True))
    assert refusal_of_scheme(position) == (None if fits else READS_TWICE)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention has gradients on a GPU only")
@pytest.mark.parametrize(("name", "options"), [each for each in VARIANTS if each[0] != "fire"], ids=str)
def test_gradients_inside_a_score_function(name: str, options: dict[str, object]) -> None:
    """A learned table has the same gradient through the fused kernel as through the table."""
    torch._dynamo.reset()  # torch compiles a function for so many cases in a process
    scheme = randomised(factory("position", name, options)(context(causal=True, grid=(64,)))).float().cuda()
    seq = sequence(scheme, line(64).float().cuda())
    seq.index = seq.index.cuda()
    grads = []
    for path in (flex, eager):
        tensors = [t.cuda().requires_grad_() for t in qkv(torch.float32, n=64, m=64, width=32)]
        path(*tensors, seq, seq, CAUSAL).square().sum().backward()
        grads.append([t.grad for t in (*tensors, *scheme.parameters())])
        scheme.zero_grad()
    for fused, whole in zip(*grads, strict=True):
        assert_close(fused, whole, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("name", "options"), VARIANTS[len(BIASES) :], ids=str)
def test_options_have_the_declared_properties(name: str, options: dict[str, object]) -> None:
    cached_decoding(tiny(causal=True, position=name, options={"position": options}), 6)
    relative(tiny(position=name, options={"position": options}), 6)


class KeysOnly(Alibi):
    """Planted: a bias that depends on keys only."""

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        return super().bias(head, tuple(torch.zeros_like(axis) for axis in q_coords), k_coords)


def test_planted_bias_of_keys_only_is_caught() -> None:
    coords = line(6)
    with pytest.raises(AssertionError):
        assert_close(table(KeysOnly(context()), coords), table(Alibi(context()), coords))
