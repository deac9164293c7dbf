"""The numbers of `inspect` against plain definitions in float64: Jacobians and patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blockyard.inspect.kinds.mixing import mixing_layers, pattern
from blockyard.inspect.samples import Sample
from blockyard.ops.observed import unfused
from tests.inspect.small_models import build_model
from tests.support.every import every


def jacobian_norms(model: nn.Module, path: str, sample: Sample) -> Tensor:
    """The definition: the whole Jacobian of one module at one sample, block by block."""
    module = model.get_submodule(path)
    calls: list[Any] = []
    handle = module.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    with unfused(model), torch.no_grad():
        model(sample.batch)
    handle.remove()
    (x, *rest), kwargs = calls[0]
    jacobian = torch.autograd.functional.jacobian(lambda tokens: module(tokens, *rest, **kwargs)[0], x)
    return jacobian[:, :, 0].permute(0, 2, 1, 3).flatten(2).norm(dim=-1) / x.shape[-1] ** 0.5  # (N, N)


CASES = {
    "attention": ("block=pre_norm",),
    "grouped, class token": ("token_mixer.num_kv_heads=1", "head=class_token", "model.prefix.class_token=true"),
    "parallel, rope": ("block=parallel", "position=rope"),
    "post_norm": ("block=post_norm",),
    "token_mlp": ("token_mixer=token_mlp",),
    "fourier": ("token_mixer=fourier",),
    "pool": ("token_mixer=pool",),
    "causal": ("model=decoder", "position=alibi"),
    "causal, recurrent": ("model=decoder", "token_mixer=gru", "position=none"),
}


SHORT = ("grouped, class token", "parallel, rope", "token_mlp", "causal")


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.full] * (c not in SHORT)) for c in CASES])
def test_norms_are_those_of_the_whole_jacobian(tmp_path: Path, case: str) -> None:
    model, samples = build_model(tmp_path, *CASES[case])
    for of in ("mixer", "block"):
        (layer,) = mixing_layers(model, samples, of=of, probes=0, layers=(1,))
        expected = torch.stack([jacobian_norms(model, layer.path, sample) for sample in samples]).mean(0)
        torch.testing.assert_close(layer.norms, expected)
        assert (layer.probes, layer.error) == (0, 0.0)


def test_the_standard_error_of_random_directions_is_right(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "block=pre_norm")
    exact = mixing_layers(model, samples[:1], probes=0)[0].norms
    estimate = mixing_layers(model, samples[:1], probes=400)[0]
    assert estimate.probes == 400
    assert 0.001 < estimate.error < 0.05
    assert float(((estimate.norms - exact) / exact).abs().median()) < 3 * estimate.error
    with pytest.raises(AssertionError):  # a wrong weight of the directions fails
        torch.testing.assert_close(estimate.norms * 2**0.5, exact, rtol=0.2, atol=0)


PATTERNS = {
    "band: 2 before and itself": ("token_mixer=conv", "position=none", "token_mixer.kernel=3"),
    "causal: itself and all previous tokens": ("position=rope",),
    "band: 3 before and itself": ("position=rope", "token_mixer=windowed_attention", "token_mixer.window=4"),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_pattern_of_a_text_model(tmp_path: Path, name: str) -> None:
    model, samples = build_model(tmp_path, "model=decoder", *PATTERNS[name])
    layers = mixing_layers(model, samples, probes=0, layers=(0,))
    assert [pattern(layer.norms, layer.grid, layer.prefix) for layer in layers] == [name]
    assert layers[0].norms.triu(1).abs().max() == 0


LONG = {
    "gru": ("causal, fading: below 1e-5 beyond", ("token_mixer=gru",)),
    "linear_recurrence": ("causal, fading: below 1e-5 beyond", ("token_mixer=linear_recurrence",)),
    "long_conv": ("causal: itself and all previous tokens", ("token_mixer=long_conv",)),
    "long_conv, cut": ("band: 4 before and itself", ("token_mixer=long_conv", "token_mixer.cutoff=5")),
    "conv": ("band: 2 before and itself", ("token_mixer=conv", "token_mixer.kernel=3")),
    "windowed": ("band: 3 before and itself", ("token_mixer=windowed_attention", "token_mixer.window=4")),
}


@pytest.mark.parametrize("case", LONG)
@pytest.mark.sampled(100)
def test_a_fading_pattern_is_not_a_band(tmp_path: Path, case: str) -> None:
    start, overrides = LONG[case]
    model, samples = build_model(tmp_path, "model=decoder", "data.context=48", "position=none", *overrides)
    (exact,) = mixing_layers(model, samples[:1], probes=0, layers=(0,))
    name = pattern(exact.norms, exact.grid)
    assert name.startswith(start)
    if "fading" in start:  # entries beyond the stated distance are small, not zero
        far = int(name.rpartition(" ")[2])
        assert 4 < far < 47
        assert exact.norms.diagonal(-far - 1).max() > 1e-12 * exact.norms.max()
    (single,) = mixing_layers(model.float(), samples[:1], probes=0, layers=(0,))
    assert pattern(single.norms, single.grid) == name


def test_a_strict_head_reads_itself_by_its_query_alone(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "model=decoder", "token_mixer=strict_attention")
    (layer, _) = mixing_layers(model, samples[:1], probes=0)
    own = layer.norms.diagonal()
    assert own[:2].max() < 1e-12  # the first sees no key, the second a single one
    assert own[2:].min() > 1e-6
    assert layer.norms.triu(1).max() == 0


def test_a_mask_that_leaks_changes_the_picture(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "model=decoder", "position=rope")
    for mixer in model.mixers:
        mixer.causal = False
    (layer, _) = mixing_layers(model, samples[:1], probes=0)
    assert pattern(layer.norms) == "all"


def test_pattern_names() -> None:
    full = torch.ones(16, 16)
    band = full.triu(-1).tril(1)
    assert pattern(band) == "band: 1 before to 1 after"
    assert pattern(full.tril().triu(-2)) == "band: 2 before and itself"
    assert pattern(full.tril(-1).triu(-2)) == "band: 2 before"
    assert pattern(torch.eye(16)) == "itself only"
    assert pattern(0 * full) == "nothing"
    assert pattern(full[:, :4]) == "all"
    cells = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    near = (cells[:, None] - cells).abs().amax(-1) <= 1
    assert pattern(near.float(), (4, 4)) == "window of 3 x 3"
    assert pattern(near.float() + 1e-7, (4, 4)) == "window of 3 x 3"
    assert pattern(near.float() + 1e-3, (4, 4)) == "all"
    far = (cells[:, None] - cells).abs().sum(-1).double()
    assert pattern(1e-3**far, (4, 4)) == "all, fading: below 1e-5 beyond 1 rows and 1 columns"
    distance = (torch.arange(16)[:, None] - torch.arange(16)).double()
    assert pattern(0.2 ** distance.abs()) == "all, fading: below 1e-5 beyond 7 before and 7 after"
    assert pattern(0.2 ** distance.tril() * full.tril()) == "causal, fading: below 1e-5 beyond 7"
    assert pattern(0.2 ** distance.tril() * full.tril(-1)) == "strictly causal, fading: below 1e-5 beyond 8"
    assert pattern(1e-4 ** distance.abs() * full.triu(-1).tril(1)) == "band: 1 before to 1 after"
    holes = full.tril()
    holes[9, 3] = 1e-7
    assert pattern(holes) == "causal, below 1e-5 in 1% of its pairs"


@pytest.mark.parametrize(
    ("overrides", "name", "depends"),
    [
        (("token_mixer=attention",), "all", True),
        (("token_mixer=fourier",), "all", False),
        (("token_mixer=fully_connected",), "all", False),
        (("token_mixer=pool",), "window of 3 x 3", False),
        (("token_mixer=token_mlp",), "all", True),
    ],
)
def test_what_depends_on_the_data(tmp_path: Path, overrides: tuple[str, ...], name: str, depends: bool) -> None:
    model, samples = build_model(tmp_path, *overrides)
    for layer in mixing_layers(model, samples, probes=0):
        assert pattern(layer.norms, layer.grid, layer.prefix) == name
        assert layer.variation is not None
        assert (layer.variation > 1e-3) == depends, layer.variation


def test_a_linear_token_mlp_does_not_depend_on_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = build_model(tmp_path, "token_mixer=token_mlp")
    monkeypatch.setattr("blockyard.token_mixer.token_mlp.F.gelu", lambda x: x)
    assert every(layer.variation < 1e-12 for layer in mixing_layers(model, samples, probes=0))
