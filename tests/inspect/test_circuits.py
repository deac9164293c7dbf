"""Circuits of a layer against what the layer computes, in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from blockyard.block.pre_norm import ScaledNorm
from blockyard.errors import UserError
from blockyard.inspect.circuits import head_circuits, token_tables
from blockyard.inspect.jacobian import spectrum
from blockyard.inspect.samples import Sample
from blockyard.ops import maps
from blockyard.ops.observed import unfused
from tests.inspect.small_models import build_model

CIRCUITS = {
    "layer": ("norm=layer",),
    "rms, grouped": ("norm=rms", "token_mixer.num_kv_heads=1"),
    "four heads, two of keys": ("model.heads=4", "token_mixer.num_kv_heads=2"),
    "rms, gains around one": ("norm=rms", "norm.zero_centred=true"),
    "norms scaled by depth": ("norm=rms", "block.depth_scaled=true"),
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
        call = maps.attention(model, sample.batch)[layer]
    for handle in handles:
        handle.remove()
    x, norm = stream[0][0], block.token_norm
    if type(block).__name__ == "PostNorm":
        return x, torch.ones(len(x), 1), call, added[0][0]
    if isinstance(norm, ScaledNorm):
        norm = norm.norm
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
    model, samples = build_model(tmp_path, "token_mixer.qk_norm=full", "token_mixer.gate=channel")
    (head, *_) = head_circuits(model, samples[0].batch, layers=(1,), heads=(1,))
    assert "the gate on what a head has read" in head.left_out


def test_tables_of_tokens_have_the_norm_of_embeddings_and_the_factor_of_the_head(tmp_path: Path) -> None:
    """Norms by their gain and centering, the cap of the head only by name."""
    overrides = ("model.embed_norm=true", "norm=layer", "head.scale=0.5", "head.softcap=20", "model=decoder")
    overrides += ("model.ngrams=[2]",)
    model, samples = build_model(tmp_path, *overrides)
    (tables, *_) = token_tables(model, head_circuits(model, samples[0].batch))
    table, gain = model.embedder.table.detach(), model.embed_norm.weight.detach()
    torch.testing.assert_close(tables.embedding, (table - table.mean(-1, keepdim=True)) * gain)
    final = model.final_norm.weight.detach() * model.head.proj.weight.detach()
    torch.testing.assert_close(tables.unembedding, 0.5 * (final - final.mean(-1, keepdim=True)))
    assert {"the soft cap of the head", "the vectors of n-grams"} <= {*tables.left_out}


def test_a_trained_query_is_left_out(tmp_path: Path) -> None:
    overrides = ("token_mixer=strict_attention", "token_mixer.layers=first", "token_mixer.asks=learned")
    model, samples = build_model(tmp_path, *overrides)
    strict, plain = (head_circuits(model, samples[0].batch, layers=(n,), heads=(0,))[0] for n in (0, 1))
    assert "the trained query vector" in "; ".join(strict.left_out)
    assert "the trained query vector" not in "; ".join(plain.left_out)


def test_a_vocabulary_of_a_model_without_text_is_refused() -> None:
    from types import SimpleNamespace

    from blockyard.contracts import DataSpec
    from blockyard.inspect.circuits import select_tokens
    from blockyard.tokenizer.symbols import Symbols

    data = SimpleNamespace(spec=DataSpec("symbols", (8,), vocabulary=4))
    loaded = SimpleNamespace(tokenizer=Symbols(), data=data, folder=SimpleNamespace(name="recall"))
    with pytest.raises(UserError, match="recall reads symbols, not text"):
        select_tokens(loaded, [], "abc")
