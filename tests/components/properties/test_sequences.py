"""Causality, padding and packing, for every token mixer in conf/ with every position scheme."""

from __future__ import annotations

import pytest
from torch import Tensor

from blockyard.contracts import Context, Seq, TokenSpec
from blockyard.head.mean_pool import MeanPool
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.ops import mask
from blockyard.ops.mask import Visibility
from blockyard.token_mixer.attention import Attention
from tests.components.properties.checks import causality, packing, padding, padding_of_pooled_outputs
from tests.support.helpers import (
    GRIDS,
    LENGTH,
    axes_of,
    blocks,
    choices,
    combinations,
    context,
    node,
    reads_later,
    takes,
    tiny,
    traits,
)
from tests.support.pairwise import in_pairs

Case = tuple[str, str, int, bool, bool]
COLUMNS = ("mixer", "position", "axes", "causal", "prefixed")


def legal_cases(*declared: str) -> list[Case]:
    """Mixer, position, coordinate axes, whether the model is causal, whether it has a prefix: all that are legal."""
    return [
        (mixer, position, axes, causal, prefixed)
        for mixer, position, axes in combinations(*declared)
        for causal in (False, True)
        for prefixed in (False, True)
        if not (causal and (not traits(mixer).causal or reads_later(position)))
        if not (prefixed and not traits(mixer).prefix)
    ]


def can_be_packed(case: Case) -> bool:
    """Text lies on a line or has no coordinates; registers in a bidirectional model would mix its documents."""
    _, _, axes, causal, prefixed = case
    return axes < 2 and (causal or not prefixed)


def prefix_of(prefixed: bool, causal: bool) -> Prefix:
    """What stands before the tokens of a model with a prefix: a class token would see the whole sequence."""
    return Prefix(class_token=not causal, registers=2) if prefixed else NO_PREFIX


@pytest.mark.parametrize(COLUMNS, in_pairs([case for case in legal_cases("causal") if case[3]]))
def test_causality(mixer: str, position: str, axes: int, causal: bool, prefixed: bool) -> None:
    prefix = prefix_of(prefixed, causal)
    causality(tiny(causal=causal, axes=axes, prefix=prefix, token_mixer=mixer, position=position), LENGTH)


@pytest.mark.parametrize(COLUMNS, in_pairs(legal_cases("padding", "any_length")))
def test_padding(mixer: str, position: str, axes: int, causal: bool, prefixed: bool) -> None:
    prefix = prefix_of(prefixed, causal)
    padding(tiny(causal=causal, axes=axes, prefix=prefix, token_mixer=mixer, position=position), LENGTH)


@pytest.mark.parametrize(COLUMNS, in_pairs([*filter(can_be_packed, legal_cases("packing", "any_length"))]))
@pytest.mark.sampled(4)
def test_packing(mixer: str, position: str, axes: int, causal: bool, prefixed: bool) -> None:
    prefix = prefix_of(prefixed, causal)
    packing(tiny(causal=causal, axes=axes, prefix=prefix, token_mixer=mixer, position=position), LENGTH)


def pooling() -> list[str]:
    """Heads that make one prediction per sequence, of any length."""
    heads = {name: node("head", name)[0] for name in choices("head")}
    return [name for name, head in heads.items() if head.gives == "sequence" and not head.fixed_length]


@pytest.mark.parametrize(
    "prefix", [NO_PREFIX, Prefix(class_token=True), Prefix(class_token=True, registers=2)], ids=str
)
@pytest.mark.parametrize("head", pooling())
def test_padding_does_not_reach_pooled_outputs(head: str, prefix: Prefix) -> None:
    if node("head", head)[0].needs_class_token and not prefix.class_token:
        return
    padding_of_pooled_outputs(tiny(head=head, prefix=prefix, position="rope"), LENGTH)


class Shifted(MeanPool):
    """Planted: the mask starts at the first token, even if it is a prefix token."""

    def forward(self, x: Tensor, seq: Seq) -> Tensor:
        if seq.valid is None:
            return super().forward(x, seq)
        valid = seq.valid[:, : x.shape[1] - seq.num_prefix, None]
        total = x[:, seq.num_prefix :].masked_fill(~valid, 0.0).sum(1)
        return self.proj(total / valid.sum(1).clamp(min=1))


def test_planted_shift_of_the_mask_is_caught() -> None:
    padding_of_pooled_outputs(tiny(replace={"head": Shifted}), LENGTH)
    with pytest.raises(AssertionError):
        padding_of_pooled_outputs(tiny(replace={"head": Shifted}, prefix=Prefix(registers=2)), LENGTH)


ALONE = [name for name in choices("norm") if not getattr(node("norm", name)[0], "across_tokens", False)]
WIRED = [
    (block, channel, norm)
    for block in blocks()
    for channel in choices("channel_mixer")
    for norm in ALONE
    if takes(block, channel)
]


@pytest.mark.parametrize(("block", "channel", "norm"), in_pairs(WIRED))
@pytest.mark.sampled(3)
def test_blocks_keep_the_traits_of_mixers(block: str, channel: str, norm: str) -> None:
    for causal in (False, True):
        model = tiny(causal=causal, block=block, channel_mixer=channel, norm=norm, position="rope")
        padding(model, LENGTH)
        packing(model, LENGTH)
    causality(model, LENGTH)


VARIANTS = [{"num_kv_heads": 1}, {"num_kv_heads": 2, "qk_norm": True}, {"bias": True}]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("position", choices("position"))
@pytest.mark.sampled(3)
def test_variants_of_attention(position: str, options: dict[str, object]) -> None:
    axes = axes_of("position", position)
    for causal in (False,) if reads_later(position) else (False, True):
        model = tiny(causal=causal, axes=axes, position=position, options={"token_mixer": options})
        padding(model, LENGTH)
        packing(model, LENGTH)
    if causal:
        causality(model, LENGTH)


class Leaks(Attention):
    """Planted: ignores that the model is causal."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.causal = False


class Averages(Attention):
    """Planted: adds the mean of all tokens, padding and other documents included."""

    def forward(self, x: Tensor, seq: Seq, cache: object = None, memory: object = None) -> Tensor:
        return super().forward(x, seq, cache, memory) + x.mean(1, keepdim=True)


def test_planted_leak_is_caught() -> None:
    with pytest.raises(AssertionError):
        causality(tiny(causal=True, replace={"token_mixer": Leaks}), LENGTH)


def test_planted_average_is_caught() -> None:
    model = tiny(replace={"token_mixer": Averages})
    with pytest.raises(AssertionError):
        padding(model, LENGTH)
    with pytest.raises(AssertionError):
        packing(model, LENGTH)


def test_planted_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the mask ignores validity and segments."""
    whole = mask.visible

    def forgetful(visibility: Visibility, prefix: int, q: Tensor, k: Tensor, k_row: Tensor, *rest: object) -> Tensor:
        seen = whole(visibility, prefix, q, k, k_row, None, None, None)
        return seen.expand(2 if seen.shape[0] == 2 else seen.shape[0], *seen.shape[1:])

    monkeypatch.setattr(mask, "visible", forgetful)
    with pytest.raises(AssertionError):
        padding(tiny(), LENGTH)
    with pytest.raises(AssertionError):
        packing(tiny(causal=True), LENGTH)


def test_grids_are_full() -> None:
    assert [context(axes=axes).tokens.max_len for axes in GRIDS] == [LENGTH] * 3
    assert [context(axes=axes).tokens.axes for axes in GRIDS] == [0, 1, 2]


def test_a_count_must_match_the_grid() -> None:
    assert TokenSpec((2, 3)).max_len == TokenSpec((2, 3), count=6).max_len == TokenSpec((), count=6).max_len == 6
    for grid, count in (((2, 3), 5), ((), 0)):
        with pytest.raises(ValueError, match="leave count out, or use grid="):
            TokenSpec(grid, count=count)
