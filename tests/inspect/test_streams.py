"""Circuits where there is more than one stream: of an encoder, across two rows, of latents, without a residual."""

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
from blockyard.inspect import _token_circuits
from blockyard.inspect import circuits as heads_of
from blockyard.inspect.samples import Sample
from blockyard.inspect.spectrum import spectrum
from blockyard.ops import maps
from tests.engine_runs import TINY

TRANSLATE = ("data=translation", "tokenizer=char", "model=encoder_decoder", "head=token", "objective=translate")
MASKED = ("data=code", "data.context=16", "tokenizer=char", "head=token", "objective=masked_token")


def built(folder: Path, *words: str) -> tuple[nn.Module, Sample]:
    """A model in float64 whose norms have gains, and a sample."""
    rows = itertools.islice(itertools.permutations("abcdef", 5), 60)
    (folder / "pairs.tsv").write_text(
        "\n".join(["en\tde", *(f"{''.join(r)}\t{''.join(r[::-1])}" for r in rows)]) + "\n"
    )
    two = (f"data.path={folder / 'pairs.tsv'}", "data.context=8") if "model=encoder_decoder" in words else ()
    base = [word for word in TINY if word != "data.shift=1"]
    composed = compose([*base, "model.depth=2", "token_mixer.dropout=0", *words, *two, f"outputs={folder}"])
    problems = check(composed)
    assert not problems, [str(problem) for problem in problems]
    plan = build.Components(composed.config)
    splits = plan.data.load(plan.tokenizer)
    model = plan.model(0).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    return model, Sample(plan.objective.prepare(splits.validation.batch(torch.tensor([3]), None)), 3)


def seen_by(model: nn.Module, sample: Sample, path: str) -> tuple[Tensor, Any, maps.Seen, Tensor]:
    """What the norm in front of a cross mixer, or the mixer itself, was called with; what the mixer gave."""
    block, kept = model.get_submodule(path.rpartition(".")[0]), {}
    names = {"norm": block.cross_norm, "mixer": block.cross_mixer}
    handles = [m.register_forward_hook(lambda _, given, y, n=n: kept.update({n: (given, y)})) for n, m in names.items()]
    seen = {one.layer: one for one in maps.attention(model, **sample.batch.arguments())}[path]
    for handle in handles:
        handle.remove()
    (given, added) = kept["mixer"]
    in_stream = type(block).__name__ == "PostNorm"
    return (given[0] if in_stream else kept["norm"][0][0])[0], given[3].x[0], seen, added[0]


@pytest.mark.parametrize("block", ["pre_norm", "post_norm"])
def test_circuits_across_two_rows_are_what_the_layer_computes(tmp_path: Path, block: str) -> None:
    model, sample = built(tmp_path, *TRANSLATE, f"block={block}", "norm=rms")
    found = [head for head in heads_of.circuits(model, sample.batch) if head.cross]
    assert [head.path for head in found] == [f"blocks.{layer}.cross_mixer" for layer in (0, 0, 1, 1)]
    for path, group in itertools.groupby(found, key=lambda head: head.path):
        heads = list(group)
        x, memory, seen, added = seen_by(model, sample, path)
        norm = model.get_submodule(path.replace("cross_mixer", "cross_norm"))
        size = (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() if block == "pre_norm" else 1.0
        scores = (seen.q @ seen.k.transpose(-1, -2))[0] * seen.q.shape[-1] ** -0.5  # (H, N, M)
        torch.testing.assert_close(torch.stack([(x / size) @ one.qk @ memory.T for one in heads]), scores)
        weights = torch.softmax(scores, -1)
        torch.testing.assert_close(sum(w @ memory @ one.ov.T for w, one in zip(weights, heads, strict=True)), added)
    said = "; ".join(found[0].left_out)
    assert "as it ends, after RMS, which is not folded in" in said
    assert ("norms in the stream" in said) == (block == "post_norm")


def test_scaled_vectors_are_read_as_they_enter_the_stream(tmp_path: Path) -> None:
    """The answer's weights, tied to them, stay as they are."""
    words = ("data=code", "data.context=16", "tokenizer=char", "model=decoder", "head=token", "objective=next_token")
    model, sample = built(tmp_path, *words, "head.tied=true", "tokenizer.scale=sqrt_dim", "norm=none", "position=none")
    known = _token_circuits.tables(model, heads_of.circuits(model, sample.batch))[0]
    torch.testing.assert_close(known.embed[sample.batch.inputs], model.steps(sample.batch.inputs)["embedded"])
    torch.testing.assert_close(known.out, model.embedder.table.detach())
    assert model.embedder.scale > 1


@pytest.mark.parametrize("shared", [True, False])
def test_each_head_has_the_symbols_of_its_own_stream(tmp_path: Path, shared: bool) -> None:
    model, sample = built(tmp_path, *TRANSLATE, f"model.shared={str(shared).lower()}", "block=pre_norm", "norm=rms")
    found = heads_of.circuits(model, sample.batch)
    for head, known in zip(found, _token_circuits.tables(model, found), strict=True):
        said = "; ".join(known.left_out)
        if head.cross:
            assert (known.embed, known.out) == (None, None)
            assert "not both of its sides" in said
            continue
        encoder = head.path.startswith("encoder")
        table = (model.encoder if encoder and not shared else model).embedder.table
        torch.testing.assert_close(
            _token_circuits.qk_table(head, known, [1, 2]), table[[1, 2]] @ head.qk @ table[[1, 2]].T
        )
        assert (known.out is None) == encoder
        assert (_token_circuits.copying(head, known) is None) == encoder
        assert ("not the one that is answered from" in said) == encoder
        if not encoder:
            out = model.head.proj.weight * model.final_norm.weight
            torch.testing.assert_close(
                _token_circuits.ov_table(head, known, [1, 2]), out[[1, 2]] @ head.ov @ table[[1, 2]].T
            )


@pytest.mark.parametrize(
    ("words", "embed", "out", "why"),
    [
        (("model=perceiver", "position=learned"), {}, {}, "not both of its sides"),
        (("model=encoder", "head.hidden=gelu"), {0, 1}, {}, "hidden layer"),
        (("model=encoder", "block=no_residual"), {0}, {}, "carries nothing past"),
        (("model=encoder", "block=post_norm"), {0, 1}, {0, 1}, "norms in the stream between"),
        (("model=encoder", "position=sinusoidal", "position.combine=concat"), {}, {}, "a code beside"),
        (("model=encoder", "position=learned"), {0, 1}, {0, 1}, "the position's code"),
    ],
)
def test_what_has_no_symbols_says_why(
    tmp_path: Path, words: tuple[str, ...], embed: set[int], out: set[int], why: str
) -> None:
    model, sample = built(tmp_path, *MASKED, *words)
    found = heads_of.circuits(model, sample.batch)
    known = _token_circuits.tables(model, found)
    layers = [(head.path, table) for head, table in zip(found, known, strict=True)]
    assert {path for path, t in layers if t.embed is not None} == {f"blocks.{n}.token_mixer" for n in embed}
    assert {path for path, t in layers if t.out is not None} == {f"blocks.{n}.token_mixer" for n in out}
    assert any(why in word for _, t in layers for word in t.left_out)


def test_a_map_between_two_rows_has_no_eigenvalues() -> None:
    whole = torch.eye(6).double()
    found = spectrum(whole[:, :3], whole[:3], one_space=False)
    assert len(found.eigenvalues) == 0
    assert found.positive != found.positive
    torch.testing.assert_close(found.singular, torch.ones(3).double())
