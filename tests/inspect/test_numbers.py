"""What `inspect` works out, against plain definitions in float64: Jacobians, circuits, entropies."""

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
from blockyard.inspect import attention_weights as attentions
from blockyard.inspect import circuits as heads_of
from blockyard.inspect import mixing as mixings
from blockyard.inspect.pattern import pattern
from blockyard.inspect.recorded_calls import unfused
from blockyard.inspect.samples import Sample
from blockyard.inspect.spectrum import spectrum
from blockyard.ops import maps
from tests.engine_runs import TINY
from tests.text_runs import TEXT

IMAGE = tuple(word for word in TINY if "token_mixer" not in word and "depth" not in word)
IMAGE = (*IMAGE, "model.depth=2", "tokenizer.size=2")


def built(outputs: Path, *words: str) -> tuple[nn.Module, list[Sample]]:
    """A model in float64 with trained-looking weights, and two samples."""
    base = (*TEXT, "tokenizer=byte") if "model=decoder" in words else IMAGE
    composed = compose([*base, *words, f"outputs={outputs}"])
    problems = check(composed)
    assert not problems, [str(problem) for problem in problems]
    plan = build.Components(composed.config)
    splits = plan.data.load(plan.tokenizer)
    model = plan.model(0).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight") or "finish" in name:
                weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    made = []
    for number in (0, 5):
        batch = plan.objective.prepare(splits.validation.batch(torch.tensor([number]), None))
        if batch.inputs.is_floating_point():
            batch.inputs = batch.inputs.double()
        made.append(Sample(batch, number))
    return model, made


def plain(model: nn.Module, path: str, sample: Sample) -> Tensor:
    """The definition: the whole Jacobian of one module at one sample, block by block."""
    module = model.get_submodule(path)
    kept: list[Any] = []
    handle = module.register_forward_pre_hook(lambda _, given, named: kept.append((given, named)), with_kwargs=True)
    with unfused(model), torch.no_grad():
        model(**sample.batch.arguments())
    handle.remove()
    (x, *rest), named = kept[0]
    jacobian = torch.autograd.functional.jacobian(lambda given: module(given, *rest, **named)[0], x)
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
    model, samples = built(tmp_path, *CASES[case])
    for of in ("mixer", "block"):
        (found,) = mixings.mixing(model, samples, of=of, probes=0, layers=(1,))
        wanted = torch.stack([plain(model, found.path, sample) for sample in samples]).mean(0)
        torch.testing.assert_close(found.norms, wanted)
        assert (found.probes, found.error) == (0, 0.0)


def test_random_directions_come_close_and_say_how_close(tmp_path: Path) -> None:
    model, samples = built(tmp_path, "block=pre_norm")
    exact = mixings.mixing(model, samples[:1], probes=0)[0].norms
    guess = mixings.mixing(model, samples[:1], probes=400)[0]
    assert guess.probes == 400
    assert 0.001 < guess.error < 0.05
    assert float(((guess.norms - exact) / exact).abs().median()) < 3 * guess.error
    with pytest.raises(AssertionError):  # a wrong weight of the directions would be seen
        torch.testing.assert_close(guess.norms * 2**0.5, exact, rtol=0.2, atol=0)


PATTERNS = {
    "band: 2 before and itself": ("token_mixer=conv", "position=none", "token_mixer.kernel=3"),
    "triangle: itself and all before": ("position=rope",),
    "band: 3 before and itself": ("position=rope", "token_mixer=windowed_attention", "token_mixer.window=4"),
}


@pytest.mark.parametrize("words", PATTERNS)
def test_the_pattern_of_a_row_of_text(tmp_path: Path, words: str) -> None:
    model, samples = built(tmp_path, "model=decoder", *PATTERNS[words])
    found = mixings.mixing(model, samples, probes=0, layers=(0,))
    assert [pattern(layer.norms, layer.grid, layer.prefix) for layer in found] == [words]
    assert found[0].norms.triu(1).abs().max() == 0


LONG = {
    "gru": ("triangle, fading: under 1e-5 beyond", ("token_mixer=gru",)),
    "linear_recurrence": ("triangle, fading: under 1e-5 beyond", ("token_mixer=linear_recurrence",)),
    "long_conv": ("triangle: itself and all before", ("token_mixer=long_conv",)),
    "long_conv, cut": ("band: 4 before and itself", ("token_mixer=long_conv", "token_mixer.cutoff=5")),
    "conv": ("band: 2 before and itself", ("token_mixer=conv", "token_mixer.kernel=3")),
    "windowed": ("band: 3 before and itself", ("token_mixer=windowed_attention", "token_mixer.window=4")),
}


@pytest.mark.parametrize("case", LONG)
def test_what_fades_is_no_band(tmp_path: Path, case: str) -> None:
    words, options = LONG[case]
    model, samples = built(tmp_path, "model=decoder", "data.context=48", "position=none", *options)
    (exact,) = mixings.mixing(model, samples[:1], probes=0, layers=(0,))
    found = pattern(exact.norms, exact.grid)
    assert found.startswith(words)
    if "fading" in words:  # it can be seen so far, and is there beyond
        far = int(found.rpartition(" ")[2])
        assert 4 < far < 47
        assert exact.norms.diagonal(-far - 1).max() > 1e-12 * exact.norms.max()
    (rough,) = mixings.mixing(model.float(), samples[:1], probes=0, layers=(0,))
    assert pattern(rough.norms, rough.grid) == found


def test_a_strict_head_reads_itself_by_its_query_alone(tmp_path: Path) -> None:
    model, samples = built(tmp_path, "model=decoder", "token_mixer=strict_attention")
    (layer, _) = mixings.mixing(model, samples[:1], probes=0)
    own = layer.norms.diagonal()
    assert own[:2].max() < 1e-12  # the first sees nothing, the second has no choice
    assert own[2:].min() > 1e-6
    assert layer.norms.triu(1).max() == 0


def test_a_mask_that_leaks_changes_the_picture(tmp_path: Path) -> None:
    model, samples = built(tmp_path, "model=decoder", "position=rope")
    for mixer in model.mixers:
        mixer.causal = False
    (layer, _) = mixings.mixing(model, samples[:1], probes=0)
    assert pattern(layer.norms) == "all"


def test_words_for_tables() -> None:
    full = torch.ones(16, 16)
    band = full.triu(-1).tril(1)
    assert pattern(band) == "band: 1 before to 1 after"
    assert pattern(full.tril().triu(-2)) == "band: 2 before and itself"
    assert pattern(full.tril(-1).triu(-2)) == "band: 2 before"
    assert pattern(torch.eye(16)) == "itself alone"
    assert pattern(0 * full) == "nothing"
    assert pattern(full[:, :4]) == "all"
    places = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    near = (places[:, None] - places).abs().amax(-1) <= 1
    assert pattern(near.float(), (4, 4)) == "window of 3 x 3"
    assert pattern(near.float() + 1e-7, (4, 4)) == "window of 3 x 3"
    assert pattern(near.float() + 1e-3, (4, 4)) == "all"
    far = (places[:, None] - places).abs().sum(-1).double()
    assert pattern(1e-3**far, (4, 4)) == "all, fading: under 1e-5 beyond 1 rows and 1 columns"
    apart = (torch.arange(16)[:, None] - torch.arange(16)).double()
    assert pattern(0.2 ** apart.abs()) == "all, fading: under 1e-5 beyond 7 before and 7 after"
    assert pattern(0.2 ** apart.tril() * full.tril()) == "triangle, fading: under 1e-5 beyond 7"
    assert pattern(0.2 ** apart.tril() * full.tril(-1)) == "strict triangle, fading: under 1e-5 beyond 8"
    assert pattern(1e-4 ** apart.abs() * full.triu(-1).tril(1)) == "band: 1 before to 1 after"
    holes = full.tril()
    holes[9, 3] = 1e-7
    assert pattern(holes) == "triangle, under 1e-5 in 1% of it"


@pytest.mark.parametrize(
    ("words", "shape", "depends"),
    [
        (("token_mixer=attention",), "all", True),
        (("token_mixer=fourier",), "all", False),
        (("token_mixer=fully_connected",), "all", False),
        (("token_mixer=pool",), "window of 3 x 3", False),
        (("token_mixer=token_mlp",), "all", True),
    ],
)
def test_what_depends_on_the_data(tmp_path: Path, words: tuple[str, ...], shape: str, depends: bool) -> None:
    model, samples = built(tmp_path, *words)
    for layer in mixings.mixing(model, samples, probes=0):
        assert pattern(layer.norms, layer.grid, layer.prefix) == shape
        assert layer.differs is not None
        assert (layer.differs > 1e-3) == depends, layer.differs


def test_a_linear_token_mlp_does_not_depend_on_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = built(tmp_path, "token_mixer=token_mlp")
    monkeypatch.setattr("blockyard.token_mixer.token_mlp.F.gelu", lambda x: x)
    assert all(layer.differs < 1e-12 for layer in mixings.mixing(model, samples, probes=0))


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


def layer_facts(model: nn.Module, sample: Sample, layer: int) -> tuple[Tensor, Tensor, maps.Seen, Tensor]:
    """Of one layer: the stream (N, D), its sizes (N, 1) that the norm divides by, the call, what is added (N, D)."""
    block = model.blocks[layer]
    stream, added = [], []
    handles = [block.register_forward_pre_hook(lambda _, given: stream.append(given[0]))]
    finish = getattr(block, "token_finish", None)
    handles.append((finish or block.token_mixer).register_forward_hook(lambda _, given, y: added.append(y)))
    with unfused(model):
        seen = maps.attention(model, **sample.batch.arguments())[layer]
    for handle in handles:
        handle.remove()
    x, norm = stream[0][0], block.token_norm
    if type(block).__name__ == "PostNorm":
        return x, torch.ones(len(x), 1), seen, added[0][0]
    middle = x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else 0
    return x, ((x - middle).square().mean(-1, keepdim=True) + norm.eps).sqrt(), seen, added[0][0]


@pytest.mark.parametrize("case", CIRCUITS)
def test_circuits_are_what_the_layer_computes(tmp_path: Path, case: str) -> None:
    model, samples = built(tmp_path, *CIRCUITS[case])
    found = heads_of.circuits(model, samples[0].batch)
    assert [(one.path, one.head) for one in found] == [
        (f"blocks.{layer}.token_mixer", head) for layer in (0, 1) for head in range(model.ctx.heads)
    ]
    for layer in (0, 1):
        x, size, seen, added = layer_facts(model, samples[0], layer)
        heads = [one for one in found if one.path.startswith(f"blocks.{layer}.")]
        k = seen.k.repeat_interleave(seen.q.shape[1] // seen.k.shape[1], dim=1)
        scores = (seen.q @ k.transpose(-1, -2))[0] * seen.q.shape[-1] ** -0.5  # (H, N, N)
        mine = torch.stack([(x / size) @ one.qk @ (x / size).T for one in heads])
        torch.testing.assert_close(mine, scores)
        weights = torch.softmax(scores, -1)
        torch.testing.assert_close(sum(w @ (x / size) @ one.ov.T for w, one in zip(weights, heads, strict=True)), added)
        with pytest.raises(AssertionError):  # queries in the place of keys would be seen
            torch.testing.assert_close(torch.stack([(x / size) @ one.qk.T @ (x / size).T for one in heads]), scores)


def test_spectra_are_those_of_the_large_matrices(tmp_path: Path) -> None:
    model, samples = built(tmp_path, "token_mixer.num_kv_heads=1")
    for head in heads_of.circuits(model, samples[0].batch):
        for left, right, whole in ((head.q.T, head.k, head.qk), (head.o, head.v, head.ov)):
            found, rank = spectrum(left, right), len(right)
            torch.testing.assert_close(found.singular, torch.linalg.svdvals(whole)[:rank])
            assert found.norm == pytest.approx(float(whole.norm()))
            values = torch.linalg.eigvals(whole)
            values = values[values.abs().argsort(descending=True)][:rank]
            assert found.positive == pytest.approx(float(values.sum().real / values.abs().sum()), abs=1e-6)
    copy = spectrum(torch.eye(8).double()[:, :3], torch.eye(8).double()[:3])
    assert (copy.positive, copy.rank) == pytest.approx((1.0, 3.0))
    assert spectrum(-torch.eye(8).double()[:, :3], torch.eye(8).double()[:3]).positive == pytest.approx(-1)


def test_circuits_are_refused_for_other_mixers(tmp_path: Path) -> None:
    model, samples = built(tmp_path, "token_mixer=fourier")
    with pytest.raises(UserError, match="block 0 mixes by Fourier: try mixing"):
        heads_of.circuits(model, samples[0].batch)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    model, samples = built(tmp_path, "position=rope", "token_mixer.qk_norm=true", "block=sandwich", "norm=layer")
    (head, *_) = heads_of.circuits(model, samples[0].batch, layers=(1,), heads=(1,))
    said = "; ".join(head.left_out)
    for part in ("size that Layer divides", "bias of Layer", "q/k norm", "rotation"):
        assert part in said


def test_a_trained_question_is_left_out(tmp_path: Path) -> None:
    words = ("token_mixer=strict_attention", "token_mixer.layers=first", "token_mixer.asks=learned")
    model, samples = built(tmp_path, *words)
    strict, plain = (heads_of.circuits(model, samples[0].batch, layers=(n,), heads=(0,))[0] for n in (0, 1))
    assert "the trained vector that asks" in "; ".join(strict.left_out)
    assert "the trained vector that asks" not in "; ".join(plain.left_out)


def test_a_vocabulary_of_a_model_without_text_is_refused() -> None:
    from types import SimpleNamespace

    from blockyard.contracts import DataSpec
    from blockyard.inspect._token_circuits import vocabulary
    from blockyard.tokenizer.symbols import Symbols

    data = SimpleNamespace(spec=DataSpec("symbols", (8,), vocabulary=4))
    loaded = SimpleNamespace(tokenizer=Symbols(), data=data, folder=SimpleNamespace(name="recall"))
    with pytest.raises(UserError, match="recall is a model of symbols, not of text"):
        vocabulary(loaded, [], "abc")


def test_another_row_lies_on_no_grid_of_this_one() -> None:
    """As many latents as patches: the picture of what they read is no window on the patches' grid."""
    from blockyard.inspect.views import _pattern

    norms = torch.eye(9)
    norms[0, 1] = 1.0
    one = mixings.LayerMixing("read", "Attention", norms, None, 0, 0.0, False, 0, (3, 3), [], [])
    assert _pattern(one) == "window of 1 x 3"
    one.memory = True
    assert "window" not in _pattern(one)


def test_entropy_is_of_what_may_be_seen(tmp_path: Path) -> None:
    model, samples = built(tmp_path, "model=decoder", "position=rope")
    with torch.no_grad():
        for mixer in model.mixers:
            mixer.proj_in.weight[: mixer.widths[0]] = 0  # no query prefers a key
    for layer in attentions.attention(model, samples):
        count = len(layer.queries)
        torch.testing.assert_close(layer.share, torch.ones(2))
        wanted = torch.arange(1, count + 1).float().log().mean()
        torch.testing.assert_close(layer.entropy, wanted.expand(2))
    with torch.no_grad():
        for mixer in model.mixers:
            mixer.proj_in.weight.mul_(1e4)
            mixer.proj_in.weight[: mixer.widths[0]] = 1e4
    assert all(layer.share.max() < 0.5 for layer in attentions.attention(model, samples))


def test_one_query_and_who_it_is(tmp_path: Path) -> None:
    model, samples = built(tmp_path, "head=class_token", "model.prefix.class_token=true", "model.prefix.registers=1")
    (layer, _) = attentions.attention(model, samples[:1])
    assert layer.queries[:4] == ["class", "reg 0", "0,0", "0,1"]
    assert attentions.one_query(layer, None)[1] == "the class token"
    weights, name = attentions.one_query(layer, 3)
    assert name == "token 3 (0,3)"
    torch.testing.assert_close(weights, layer.weights[:, 5])
    torch.testing.assert_close(attentions.one_query(layer, "mean")[0], layer.weights.mean(1))
    with pytest.raises(ValueError, match="query=16: the row has 16 tokens"):
        attentions.one_query(layer, 16)


class Stopped(Exception):
    """Everything was seen."""


def test_what_is_drawn_for_a_sample_is_what_evaluation_draws() -> None:
    """Not what it draws for sample 0: `inspect` and the attention maps show the masks that were judged."""
    from types import SimpleNamespace

    from blockyard.contracts import Batch, TokenSpec
    from blockyard.engine.callbacks.attention_maps import AttentionMaps
    from blockyard.inspect.options import Options
    from blockyard.inspect.samples import samples

    class Rows:
        def __len__(self) -> int:
            return 9

        def batch(self, order: Tensor, key: int | None) -> Batch:
            return Batch(order[:, None].expand(-1, 4))

    seen: list[Any] = []

    def prepare(batch: Batch) -> Batch:
        seen.append(None if batch.sample is None else batch.sample.tolist())
        return batch

    objective = SimpleNamespace(prepare=prepare)
    splits = SimpleNamespace(validation=Rows())
    called = {"token_name": lambda symbol: str(symbol)}
    data = SimpleNamespace(missing=lambda: None, prepare=lambda: None, load=lambda _: splits, **called)
    model = SimpleNamespace(ctx=SimpleNamespace(tokens=TokenSpec((4,))))
    loaded = SimpleNamespace(data=data, objective=objective, tokenizer=SimpleNamespace(**called), model=model)
    shown = samples(loaded, Options(sample=5, samples=2))
    assert [one.batch.inputs[0, 0].item() for one in shown] == [5, 6]
    assert seen == [[5], [6]]

    def stop(batch: Batch) -> Batch:
        prepare(batch)
        raise Stopped

    learner = SimpleNamespace(device="cpu", objective=SimpleNamespace(prepare=stop))
    with pytest.raises(Stopped):
        AttentionMaps(sample=7)._look(SimpleNamespace(validation=Rows(), learner=learner))
    assert seen[-1] == [7]
