"""The numbers of `inspect` against plain definitions in float64: Jacobians, circuits, entropies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blockyard.config import build
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.errors import UserError
from blockyard.inspect.attention_weights import attention_layers, query_weights
from blockyard.inspect.circuits import head_circuits
from blockyard.inspect.mixing import LayerMixing, mixing_layers
from blockyard.inspect.pattern import pattern
from blockyard.inspect.recorded_calls import unfused
from blockyard.inspect.samples import Sample
from blockyard.inspect.spectrum import spectrum
from blockyard.ops import maps
from tests.tiny import TEXT, TINY

IMAGE = tuple(override for override in TINY if "token_mixer" not in override and "depth" not in override)
IMAGE = (*IMAGE, "model.depth=2", "tokenizer.size=2")


def build_model(outputs: Path, *overrides: str) -> tuple[nn.Module, list[Sample]]:
    """A model in float64 with trained-looking weights, and two samples."""
    base = (*TEXT, "tokenizer=byte") if "model=decoder" in overrides else IMAGE
    composed = compose([*base, *overrides, f"outputs={outputs}"])
    problems = check(composed)
    assert not problems, [str(problem) for problem in problems]
    components = build.Components(composed.config)
    splits = components.data.load(components.tokenizer)
    model = components.model(0).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight") or "finish" in name:
                weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    samples = []
    for index in (0, 5):
        batch = components.objective.prepare(splits.validation.batch(torch.tensor([index]), None))
        if batch.inputs.is_floating_point():
            batch.inputs = batch.inputs.double()
        samples.append(Sample(batch, index))
    return model, samples


def jacobian_norms(model: nn.Module, path: str, sample: Sample) -> Tensor:
    """The definition: the whole Jacobian of one module at one sample, block by block."""
    module = model.get_submodule(path)
    calls: list[Any] = []
    handle = module.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    with unfused(model), torch.no_grad():
        model(**sample.batch.arguments())
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


@pytest.mark.parametrize("case", CASES)
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
    assert all(layer.variation < 1e-12 for layer in mixing_layers(model, samples, probes=0))


CIRCUITS = {
    "layer": ("norm=layer",),
    "rms, grouped": ("norm=rms", "token_mixer.num_kv_heads=1"),
    "four heads, two of keys": ("model.heads=4", "token_mixer.num_kv_heads=2"),
    "no gain": ("norm=layer_plain",),
    "parallel": ("block=parallel",),
    "post_norm": ("block=post_norm",),
    "layer_scale": ("block=layer_scale",),
    "widths": ("token_mixer.key_dim=3", "token_mixer.value_dim=5", "token_mixer.output_dim=4"),
}


def record_layer(model: nn.Module, sample: Sample, layer: int) -> tuple[Tensor, Tensor, maps.Seen, Tensor]:
    """Returns one layer's stream (N, D), the divisors (N, 1) of its norm, its call of `attend`, its output (N, D)."""
    block = model.blocks[layer]
    stream, added = [], []
    handles = [block.register_forward_pre_hook(lambda _, args: stream.append(args[0]))]
    finish = getattr(block, "token_finish", nn.Identity())
    last = block.token_mixer if isinstance(finish, nn.Identity) else finish
    handles.append(last.register_forward_hook(lambda _, args, y: added.append(y)))
    with unfused(model):
        call = maps.attention(model, **sample.batch.arguments())[layer]
    for handle in handles:
        handle.remove()
    x, norm = stream[0][0], block.token_norm
    if type(block).__name__ == "PostNorm":
        return x, torch.ones(len(x), 1), call, added[0][0]
    middle = x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else 0
    return x, ((x - middle).square().mean(-1, keepdim=True) + norm.eps).sqrt(), call, added[0][0]


@pytest.mark.parametrize("case", CIRCUITS)
def test_circuits_are_what_the_layer_computes(tmp_path: Path, case: str) -> None:
    model, samples = build_model(tmp_path, *CIRCUITS[case])
    circuits = head_circuits(model, samples[0].batch)
    assert [(one.path, one.head) for one in circuits] == [
        (f"blocks.{layer}.token_mixer", head) for layer in (0, 1) for head in range(model.ctx.heads)
    ]
    for layer in (0, 1):
        x, size, call, added = record_layer(model, samples[0], layer)
        heads = [one for one in circuits if one.path.startswith(f"blocks.{layer}.")]
        k = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
        scores = (call.q @ k.transpose(-1, -2))[0] * call.q.shape[-1] ** -0.5  # (H, N, N)
        actual = torch.stack([(x / size) @ one.qk @ (x / size).T for one in heads])
        torch.testing.assert_close(actual, scores)
        weights = torch.softmax(scores, -1)
        torch.testing.assert_close(sum(w @ (x / size) @ one.ov.T for w, one in zip(weights, heads, strict=True)), added)
        with pytest.raises(AssertionError):  # queries and keys swapped
            torch.testing.assert_close(torch.stack([(x / size) @ one.qk.T @ (x / size).T for one in heads]), scores)


def test_spectra_are_those_of_the_large_matrices(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "token_mixer.num_kv_heads=1")
    for head in head_circuits(model, samples[0].batch):
        for left, right, whole in ((head.q.T, head.k, head.qk), (head.o, head.v, head.ov)):
            thin, rank = spectrum(left, right), len(right)
            torch.testing.assert_close(thin.singular, torch.linalg.svdvals(whole)[:rank])
            assert thin.norm == pytest.approx(float(whole.norm()))
            values = torch.linalg.eigvals(whole)
            values = values[values.abs().argsort(descending=True)][:rank]
            assert thin.positive == pytest.approx(float(values.sum().real / values.abs().sum()), abs=1e-6)
    copy = spectrum(torch.eye(8).double()[:, :3], torch.eye(8).double()[:3])
    assert (copy.positive, copy.effective_rank) == pytest.approx((1.0, 3.0))
    assert spectrum(-torch.eye(8).double()[:, :3], torch.eye(8).double()[:3]).positive == pytest.approx(-1)


def test_circuits_are_refused_for_other_mixers(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "token_mixer=fourier")
    with pytest.raises(UserError, match=r"the token mixer of block 0 is Fourier\. `blockyard inspect mixing` works"):
        head_circuits(model, samples[0].batch)


def test_left_out_parts_are_listed(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "position=rope", "token_mixer.qk_norm=true", "block=sandwich", "norm=layer")
    (head, *_) = head_circuits(model, samples[0].batch, layers=(1,), heads=(1,))
    left_out = "; ".join(head.left_out)
    for part in ("factor by which Layer divides", "bias of Layer", "q/k norm", "rotation"):
        assert part in left_out


def test_a_trained_query_is_left_out(tmp_path: Path) -> None:
    overrides = ("token_mixer=strict_attention", "token_mixer.layers=first", "token_mixer.asks=learned")
    model, samples = build_model(tmp_path, *overrides)
    strict, plain = (head_circuits(model, samples[0].batch, layers=(n,), heads=(0,))[0] for n in (0, 1))
    assert "the trained query vector" in "; ".join(strict.left_out)
    assert "the trained query vector" not in "; ".join(plain.left_out)


def test_a_vocabulary_of_a_model_without_text_is_refused() -> None:
    from types import SimpleNamespace

    from blockyard.contracts import DataSpec
    from blockyard.inspect._token_circuits import select_tokens
    from blockyard.tokenizer.symbols import Symbols

    data = SimpleNamespace(spec=DataSpec("symbols", (8,), vocabulary=4))
    loaded = SimpleNamespace(tokenizer=Symbols(), data=data, folder=SimpleNamespace(name="recall"))
    with pytest.raises(UserError, match="recall reads symbols, not text"):
        select_tokens(loaded, [], "abc")


def test_a_memory_is_not_on_the_grid_of_the_sequence() -> None:
    """With as many latents as patches, what the latents read is not a window on the grid of patches."""
    from blockyard.inspect.views.mixing_view import layer_pattern

    norms = torch.eye(9)
    norms[0, 1] = 1.0
    layer = LayerMixing("read", "Attention", norms, None, 0, 0.0, False, 0, (3, 3), [], [])
    assert layer_pattern(layer) == "window of 1 x 3"
    layer.memory = True
    assert "window" not in layer_pattern(layer)


def test_entropy_counts_visible_keys_only(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "model=decoder", "position=rope")
    with torch.no_grad():
        for mixer in model.mixers:
            mixer.proj_in.weight[: mixer.widths[0]] = 0  # no query prefers a key
    for layer in attention_layers(model, samples):
        count = len(layer.queries)
        torch.testing.assert_close(layer.share, torch.ones(2))
        expected = torch.arange(1, count + 1).float().log().mean()
        torch.testing.assert_close(layer.entropy, expected.expand(2))
    with torch.no_grad():
        for mixer in model.mixers:
            mixer.proj_in.weight.mul_(1e4)
            mixer.proj_in.weight[: mixer.widths[0]] = 1e4
    assert all(layer.share.max() < 0.5 for layer in attention_layers(model, samples))


def test_the_weights_and_name_of_one_query(tmp_path: Path) -> None:
    model, samples = build_model(
        tmp_path, "head=class_token", "model.prefix.class_token=true", "model.prefix.registers=1"
    )
    (layer, _) = attention_layers(model, samples[:1])
    assert layer.queries[:4] == ["class", "reg 0", "0,0", "0,1"]
    assert query_weights(layer, None)[1] == "the class token"
    weights, name = query_weights(layer, 3)
    assert name == "token 3 (0,3)"
    torch.testing.assert_close(weights, layer.weights[:, 5])
    torch.testing.assert_close(query_weights(layer, "mean")[0], layer.weights.mean(1))
    with pytest.raises(ValueError, match="query=16 is out of range: the sequence has 16 tokens"):
        query_weights(layer, 16)


class Stopped(Exception):
    """Raised once the batch is recorded."""


def test_a_sample_is_masked_as_in_evaluation() -> None:
    """Masks depend on the sample's index: `inspect` and the attention maps use those of evaluation."""
    from types import SimpleNamespace

    from blockyard.contracts import Batch, TokenSpec
    from blockyard.engine.callbacks.attention_maps import AttentionMaps
    from blockyard.inspect.options import Options
    from blockyard.inspect.samples import load_samples

    class Split:
        def __len__(self) -> int:
            return 9

        def batch(self, order: Tensor, key: int | None) -> Batch:
            return Batch(order[:, None].expand(-1, 4))

    prepared: list[Any] = []

    def prepare(batch: Batch) -> Batch:
        prepared.append(None if batch.sample is None else batch.sample.tolist())
        return batch

    objective = SimpleNamespace(ready=prepare)
    splits = SimpleNamespace(validation=Split())
    names = {"token_name": lambda token_id: str(token_id)}
    data = SimpleNamespace(missing=lambda: None, prepare=lambda: None, **names)
    parts = {
        "model": SimpleNamespace(ctx=SimpleNamespace(tokens=TokenSpec((4,)))),
        "tokenizer": SimpleNamespace(**names),
    }
    loaded = SimpleNamespace(data=data, objective=objective, components=SimpleNamespace(load=lambda: splits), **parts)
    samples = load_samples(loaded, Options(sample=5, samples=2))
    assert [sample.batch.inputs[0, 0].item() for sample in samples] == [5, 6]
    assert prepared == [[5], [6]]

    def stop(batch: Batch) -> Batch:
        prepare(batch)
        raise Stopped

    learner = SimpleNamespace(device="cpu", objective=SimpleNamespace(ready=stop))
    with pytest.raises(Stopped):
        AttentionMaps(sample=7)._maps(SimpleNamespace(validation=Split(), learner=learner))
    assert prepared[-1] == [7]
