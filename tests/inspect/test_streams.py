"""Circuits of models with several streams: an encoder, cross-attention, latents, and no residual."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blockyard.config import build
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.inspect.circuits import copying_spectrum, head_circuits, ov_circuit, qk_circuit, token_tables
from blockyard.inspect.jacobian import spectrum
from blockyard.inspect.samples import Sample
from blockyard.ops import maps
from tests.support.tiny import TINY, TRANSLATE

MASKED = ("data=code", "data.context=16", "tokenizer=char", "head=token", "objective=masked_token")


def build_model(folder: Path, *overrides: str) -> tuple[nn.Module, Sample]:
    """A model in float64 whose norms have gains, and a sample."""
    sequences = itertools.islice(itertools.permutations("abcdef", 5), 60)
    (folder / "pairs.tsv").write_text(
        "\n".join(["en\tde", *(f"{''.join(r)}\t{''.join(r[::-1])}" for r in sequences)]) + "\n"
    )
    pairs = (f"data.path={folder / 'pairs.tsv'}", "data.context=8") if "model=encoder_decoder" in overrides else ()
    base = [override for override in TINY if override != "data.shift=1"]
    composed = compose([*base, "model.depth=2", "token_mixer.dropout=0", *overrides, *pairs, f"outputs={folder}"])
    problems = check(composed)
    assert not problems, [str(problem) for problem in problems]
    components = build.Components(composed.config)
    splits = components.data.load(components.tokenizer)
    model = components.model(0).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    return model, Sample(components.objective.prepare(splits.validation.batch(torch.tensor([3]), None)), 3)


def record_cross(model: nn.Module, sample: Sample, path: str) -> tuple[Tensor, Any, maps.Seen, Tensor]:
    """Returns the stream that a cross mixer reads, its memory, its call of `attend`, and its output."""
    block, calls = model.get_submodule(path.rpartition(".")[0]), {}
    modules = {"norm": block.cross_norm, "mixer": block.cross_mixer}
    handles = [
        m.register_forward_hook(lambda _, args, y, n=n: calls.update({n: (args, y)})) for n, m in modules.items()
    ]
    call = {call.layer: call for call in maps.attention(model, sample.batch)}[path]
    for handle in handles:
        handle.remove()
    (args, added) = calls["mixer"]
    in_stream = type(block).__name__ == "PostNorm"
    return (args[0] if in_stream else calls["norm"][0][0])[0], args[3].x[0], call, added[0]


@pytest.mark.parametrize("block", ["pre_norm", "post_norm"])
def test_cross_attention_circuits_are_what_the_layer_computes(tmp_path: Path, block: str) -> None:
    model, sample = build_model(tmp_path, *TRANSLATE, f"block={block}", "norm=rms")
    cross = [head for head in head_circuits(model, sample.batch) if head.cross]
    assert [head.path for head in cross] == [f"blocks.{layer}.cross_mixer" for layer in (0, 0, 1, 1)]
    for path, group in itertools.groupby(cross, key=lambda head: head.path):
        heads = list(group)
        x, memory, call, added = record_cross(model, sample, path)
        norm = model.get_submodule(path.replace("cross_mixer", "cross_norm"))
        size = (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() if block == "pre_norm" else 1.0
        scores = (call.q @ call.k.transpose(-1, -2))[0] * call.q.shape[-1] ** -0.5  # (H, N, M)
        torch.testing.assert_close(torch.stack([(x / size) @ one.qk @ memory.T for one in heads]), scores)
        weights = torch.softmax(scores, -1)
        torch.testing.assert_close(sum(w @ memory @ one.ov.T for w, one in zip(weights, heads, strict=True)), added)
    left_out = "; ".join(cross[0].left_out)
    assert "final vectors, after RMS, which is not folded in" in left_out
    assert ("norms in the stream" in left_out) == (block == "post_norm")


def test_scaled_embeddings_enter_the_stream_scaled(tmp_path: Path) -> None:
    """The tied weights of the model's head are not scaled."""
    overrides = (
        "data=code",
        "data.context=16",
        "tokenizer=char",
        "model=decoder",
        "head=token",
        "objective=next_token",
    )
    model, sample = build_model(
        tmp_path, *overrides, "head.tied=true", "tokenizer.scale=sqrt_dim", "norm=none", "position=none"
    )
    tables = token_tables(model, head_circuits(model, sample.batch))[0]
    torch.testing.assert_close(tables.embedding[sample.batch.inputs], model.steps(sample.batch.inputs)["embedded"])
    torch.testing.assert_close(tables.unembedding, model.embedder.table.detach())
    assert model.embedder.scale > 1


@pytest.mark.parametrize("shared", [True, False])
def test_each_head_reads_the_embedding_of_its_own_stream(tmp_path: Path, shared: bool) -> None:
    model, sample = build_model(
        tmp_path, *TRANSLATE, f"model.shared={str(shared).lower()}", "block=pre_norm", "norm=rms"
    )
    heads = head_circuits(model, sample.batch)
    for head, tables in zip(heads, token_tables(model, heads), strict=True):
        left_out = "; ".join(tables.left_out)
        if head.cross:
            assert (tables.embedding, tables.unembedding) == (None, None)
            assert "not both of a token sequence" in left_out
            continue
        encoder = head.path.startswith("encoder")
        embedding = (model.encoder if encoder and not shared else model).embedder.table
        torch.testing.assert_close(qk_circuit(head, tables, [1, 2]), embedding[[1, 2]] @ head.qk @ embedding[[1, 2]].T)
        assert (tables.unembedding is None) == encoder
        assert (copying_spectrum(head, tables) is None) == encoder
        assert ("does not predict from its stream" in left_out) == encoder
        if not encoder:
            unembedding = model.head.proj.weight * model.final_norm.weight
            torch.testing.assert_close(
                ov_circuit(head, tables, [1, 2]), unembedding[[1, 2]] @ head.ov @ embedding[[1, 2]].T
            )


@pytest.mark.parametrize(
    ("overrides", "embedding", "unembedding", "reason"),
    [
        (("model=perceiver", "position=learned"), {}, {}, "not both of a token sequence"),
        (("model=encoder", "head.hidden=gelu"), {0, 1}, {}, "hidden layer"),
        (("model=encoder", "block=no_residual"), {0}, {}, "carries nothing past a mixer"),
        (("model=encoder", "block=post_norm"), {0, 1}, {0, 1}, "norms in the stream between"),
        (
            ("model=encoder", "position=sinusoidal", "position.combine=concat"),
            {},
            {},
            "the stream also holds a position code",
        ),
        (("model=encoder", "position=learned"), {0, 1}, {0, 1}, "the position code added"),
        (("model=encoder", "residual=hyper"), {0, 1}, {0, 1}, "residual=hyper: the weights with which it joins"),
    ],
)
def test_missing_token_circuits_have_a_reason(
    tmp_path: Path, overrides: tuple[str, ...], embedding: set[int], unembedding: set[int], reason: str
) -> None:
    model, sample = build_model(tmp_path, *MASKED, *overrides)
    heads = head_circuits(model, sample.batch)
    tables = token_tables(model, heads)
    layers = [(head.path, table) for head, table in zip(heads, tables, strict=True)]
    assert {path for path, t in layers if t.embedding is not None} == {f"blocks.{n}.token_mixer" for n in embedding}
    assert {path for path, t in layers if t.unembedding is not None} == {f"blocks.{n}.token_mixer" for n in unembedding}
    assert any(reason in text for _, t in layers for text in t.left_out)


def test_each_layer_names_the_scheme_of_its_kind(tmp_path: Path) -> None:
    kinds = ("layers.pattern=[base,far]", "layers.kinds.far=[position=none]")
    model, sample = build_model(tmp_path, *MASKED, "model=encoder", "position=rope", *kinds)
    rotated = {
        head.path: any(text.startswith("rotation") for text in head.left_out)
        for head in head_circuits(model, sample.batch)
    }
    assert rotated == {"blocks.0.token_mixer": True, "blocks.1.token_mixer": False}


def test_a_map_between_two_spaces_has_no_eigenvalues() -> None:
    identity = torch.eye(6).double()
    thin = spectrum(identity[:, :3], identity[:3], one_space=False)
    assert len(thin.eigenvalues) == 0
    assert thin.positive != thin.positive
    torch.testing.assert_close(thin.singular, torch.ones(3).double())
