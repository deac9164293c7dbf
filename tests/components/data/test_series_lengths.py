"""Series of different lengths: a padded one is what it is alone, whatever stands behind its end."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import DataSpec, Inputs, Parts, TokenSpec
from blockyard.model._example_batch import example
from blockyard.model._prefix import Prefix
from blockyard.model._transformer import Transformer
from blockyard.tokenizer import series_patch
from blockyard.tokenizer._series import standardize
from blockyard.tokenizer.series_channel import SeriesChannel
from blockyard.tokenizer.series_patch import SeriesPatch
from blockyard.tokenizer.trend_season import TrendSeason
from blockyard.weight_init import initialise
from tests.support.helpers import DEFAULT_PARTS, context, factory, stir

STEPS, CHANNELS = 23, 2
DATA = DataSpec("series", (STEPS, CHANNELS), variable=True, target="class", classes=5)
LENGTHS = torch.tensor([STEPS, 17, 6, 5, 1, 0])
EXACT = {"rtol": 1e-9, "atol": 1e-9}
NO_PREFIX = Prefix()


def model(tokenizer: SeriesPatch, data: DataSpec = DATA, prefix: Prefix = NO_PREFIX, **picks: str) -> nn.Module:
    sizes = {"tokens": tokenizer.spec(data), "data": data, "outputs": 5, "num_prefix": len(prefix)}
    families = {**DEFAULT_PARTS, "position": "sinusoidal", "head": "mean_pool", **picks}
    parts = Parts(embedder=tokenizer.embedder, **{family: factory(family, name) for family, name in families.items()})
    built = Transformer(replace(context(), **sizes), parts, prefix=prefix, dropout=0.0)
    return stir(initialise(built, 0)).double().eval()


def series() -> Tensor:
    x = torch.randn(len(LENGTHS), STEPS, CHANNELS, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 2
    x[0, 3, 1] = x[1, 16, 0] = x[2, 5] = torch.nan
    return x


@torch.no_grad()
def check_alone(network: nn.Module, size: int) -> None:
    """Predictions of padded series are those of each alone; what stands behind the end changes nothing."""
    x = series()
    padded = network(Inputs(x, lengths=LENGTHS))
    assert padded.isfinite().all()
    behind = torch.arange(STEPS) >= LENGTHS[:, None]
    for filling in (7.0, torch.nan):
        assert_close(network(Inputs(x.masked_fill(behind[..., None], filling), lengths=LENGTHS)), padded, **EXACT)
    for sample, length in enumerate(LENGTHS.tolist()):
        if length >= size:
            alone = network(x[sample : sample + 1, :length])
            assert_close(padded[sample : sample + 1], alone, **EXACT)
            changed = x[sample : sample + 1].clone()
            changed[:, length - 2] += 1.0  # the last step, or the one before it where that is missing
            assert (network(Inputs(changed, lengths=LENGTHS[sample : sample + 1])) - alone).abs().max() > 1e-9


OPTIONS = list(
    product(["none", "instance", "last", "first"], ["zero", "flag"], [True, False], [(6, 3), (4, 4), (5, 7)])
)


@pytest.mark.parametrize(("normalise", "missing", "pad_end", "sizes"), OPTIONS)
def test_a_padded_series_is_what_it_is_alone(
    normalise: str, missing: str, pad_end: bool, sizes: tuple[int, int]
) -> None:
    size, stride = sizes
    options = {"normalise": normalise, "missing": missing}
    check_alone(model(SeriesPatch(size=size, stride=stride, pad_end=pad_end, **options)), size)  # type: ignore[arg-type]


HEADS = ["mean_pool", "sum_pool", "last", "attention_pool", "class_token"]
PAIRS = [pair for pair in product(HEADS, ["attention", "conv", "linear_attention"]) if pair != ("class_token", "conv")]


@pytest.mark.parametrize(("head", "mixer"), PAIRS)
def test_in_every_head_and_several_mixers(head: str, mixer: str) -> None:
    prefix = Prefix(class_token=True) if head == "class_token" else NO_PREFIX
    check_alone(model(SeriesPatch(size=4, stride=3), prefix=prefix, head=head, token_mixer=mixer), 4)


def test_statistics_that_count_padding_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: padded steps count as zeros in the mean and the standard deviation."""
    monkeypatch.setattr(series_patch, "standardize", lambda x, how, first: standardize(x.nan_to_num(), how, first))
    with pytest.raises(AssertionError):
        check_alone(model(SeriesPatch(size=4, stride=4, normalise="instance")), 4)


@pytest.mark.parametrize("pad_end", [True, False])
@pytest.mark.parametrize("sizes", [(6, 3), (4, 4), (5, 7)])
def test_full_series_are_those_of_data_of_one_length(pad_end: bool, sizes: tuple[int, int]) -> None:
    tokenizer = SeriesPatch(size=sizes[0], stride=sizes[1], pad_end=pad_end, missing="flag")
    fixed = model(tokenizer, replace(DATA, variable=False))
    x = series()
    expected = fixed(x)
    assert_close(model(tokenizer)(x), expected, **EXACT)
    assert_close(model(tokenizer)(Inputs(x, lengths=torch.full((len(x),), STEPS))), expected, **EXACT)
    with pytest.raises(ValueError, match="omit lengths"):
        fixed(Inputs(x, lengths=LENGTHS))
    with pytest.raises(ValueError, match="this model reads histories"):
        fixed(x[:, :-1])


def test_the_embedder_leaves_zeros_at_padding_and_says_where() -> None:
    network = model(SeriesPatch(size=6, stride=3, pad_end=False))
    x, seq = network.embedder(series(), LENGTHS)
    assert seq.valid is not None
    assert seq.valid.sum(1).tolist() == [6, 4, 1, 0, 0, 0]
    assert not x[~seq.valid].any()
    assert x[seq.valid].any(1).all()


def test_token_counts_are_those_of_convolutions() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        stages = torch.randint(1, 5, (2, 3), generator=generator).tolist()
        stages = [(kernel + 1, stride, 2 * min(padding - 1, kernel)) for kernel, stride, padding in stages]
        tokens = TokenSpec((100,), variable=True, shrink=tuple(stages))
        for length in range(30, 60):
            x = torch.zeros(1, 1, length)
            for kernel, stride, added in stages:
                x = F.conv1d(x, torch.zeros(1, 1, kernel), stride=stride, padding=added // 2)
            assert tokens.tokens_of(torch.tensor([length])).tolist() == [x.shape[2]]
    assert TokenSpec((5,)).tokens_of(LENGTHS) is LENGTHS
    assert TokenSpec((5,), shrink=((4, 4, 0),)).tokens_of(torch.tensor([0, 3, 4])).tolist() == [0, 0, 1]


def test_an_example_is_as_long_as_the_input() -> None:
    network = model(SeriesPatch(size=6, stride=3))
    inputs = example(network.ctx, "cpu", 2)
    assert inputs.lengths.tolist() == [STEPS, STEPS]
    assert network.double()(replace(inputs, inputs=inputs.inputs.double())).shape == (2, 5)


@pytest.mark.parametrize("tokenizer", [SeriesChannel(), TrendSeason()])
def test_whole_histories_are_of_one_length(tokenizer: SeriesChannel | TrendSeason) -> None:
    with pytest.raises(ValueError, match="reads histories of one length; use tokenizer=series_patch"):
        tokenizer.spec(DATA)
